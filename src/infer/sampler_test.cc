#include "infer/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"
#include "support/heap_allocations.h"

namespace fathom {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(size_t n, uint64_t seed, float scale = 3.0f) {
  Rng rng(seed);
  std::vector<float> logits(n);
  for (float& x : logits) x = scale * rng.normal();
  return logits;
}

// Everything off but temperature 1.
SamplerConfig plain() {
  SamplerConfig config;
  config.temperature = 1;
  config.top_k = 0;
  config.top_p = 1;
  config.min_p = 0;
  return config;
}

// The definition, step by step over the whole vocabulary in double: shares nothing with the sampler.
std::map<int32_t, double> expected(const SamplerConfig& c, std::vector<float> logits,
                                   const std::vector<int32_t>& history) {
  std::vector<std::pair<double, int32_t>> all;
  std::map<int32_t, int> counts;
  const size_t window = c.repeat_last_n < 0
                            ? history.size()
                            : std::min<size_t>(history.size(), static_cast<size_t>(c.repeat_last_n));
  for (size_t i = history.size() - window; i < history.size(); ++i) ++counts[history[i]];
  for (size_t i = 0; i < logits.size(); ++i) {
    double x = logits[i];
    for (const auto& [id, bias] : c.logit_bias) x += id == static_cast<int32_t>(i) ? bias : 0;
    if (const auto it = counts.find(static_cast<int32_t>(i)); it != counts.end()) {
      x = x <= 0 ? x * c.repeat_penalty : x / c.repeat_penalty;
      x -= it->second * c.frequency_penalty + c.presence_penalty;
    }
    if (x > -kInf) all.push_back({-x, static_cast<int32_t>(i)});
  }
  std::sort(all.begin(), all.end());
  if (c.temperature == 0) return {{all[0].second, 1.0}};
  if (c.top_k > 0 && static_cast<size_t>(c.top_k) < all.size()) all.resize(static_cast<size_t>(c.top_k));
  double sum = 0, reached = 0;
  for (const auto& [x, id] : all) sum += std::exp(all[0].first - x);
  size_t keep = 0;
  while (keep < all.size() && (keep == 0 || reached < c.top_p * sum))
    reached += std::exp(all[0].first - all[keep++].first);
  if (c.top_p < 1) all.resize(keep);
  while (all.size() > 1 && std::exp(all[0].first - all.back().first) < c.min_p) all.pop_back();
  std::map<int32_t, double> p;
  sum = 0;
  for (const auto& [x, id] : all) sum += p[id] = std::exp((all[0].first - x) / c.temperature);
  for (auto& [id, value] : p) value /= sum;
  return p;
}

void expect_matches(const SamplerConfig& config, const std::vector<float>& logits,
                    const std::vector<int32_t>& history = {}) {
  Sampler sampler(config, static_cast<int64_t>(logits.size()));
  const Distribution& got = sampler.probabilities(logits, history);
  const std::map<int32_t, double> want = expected(config, logits, history);
  ASSERT_EQ(got.ids.size(), want.size());
  const bool cuts = config.temperature == 0 || config.top_p < 1 || config.min_p > 0 ||
                    (config.top_k > 0 && static_cast<size_t>(config.top_k) < logits.size());
  double sum = 0;
  for (size_t i = 0; i < got.ids.size(); ++i) {
    ASSERT_TRUE(want.contains(got.ids[i])) << got.ids[i];
    EXPECT_NEAR(got.probabilities[i], want.at(got.ids[i]), 1e-6);
    if (i > 0) {
      EXPECT_TRUE(cuts ? got.probabilities[i - 1] >= got.probabilities[i] : got.ids[i - 1] < got.ids[i]);
    }
    sum += got.probabilities[i];
  }
  EXPECT_NEAR(sum, 1.0, 1e-5);
}

TEST(Sampler, EveryStepMatchesItsDefinition) {
  const std::vector<int32_t> history{1, 5, 5, 900, 7, 5, 3};
  for (size_t vocab : {5u, 16u, 33u, 1000u}) {
    const std::vector<float> logits = random_logits(vocab, vocab);
    const auto check = [&](auto&& change) {
      SamplerConfig config = plain();
      change(config);
      SCOPED_TRACE("vocabulary " + std::to_string(vocab));
      expect_matches(config, logits, history);
    };
    check([](auto&) {});
    for (float t : {0.0f, 0.1f, 0.7f, 2.0f}) check([&](auto& c) { c.temperature = t; });
    for (int32_t k : {1, 4, 5, 40, 999, 1000, 5000}) check([&](auto& c) { c.top_k = k; });
    for (float p : {0.0f, 0.1f, 0.5f, 0.9f, 0.999f}) check([&](auto& c) { c.top_p = p; });
    for (float p : {0.01f, 0.1f, 0.5f, 1.0f}) check([&](auto& c) { c.min_p = p; });
    check([](auto& c) { c.min_p = 0.3f, c.top_k = 30; });
    check([](auto& c) { c.repeat_penalty = 1.3f; });
    check([](auto& c) { c.repeat_penalty = 1.3f, c.repeat_last_n = 2; });
    check([](auto& c) { c.presence_penalty = 0.5f; });
    check([](auto& c) { c.frequency_penalty = 0.5f, c.repeat_last_n = -1; });
    check([](auto& c) { c.logit_bias = {{2, 5.0f}, {0, -kInf}}; });
    check([](auto& c) { c = SamplerConfig{}; });
    check([](auto& c) { c = SamplerConfig{}, c.repeat_penalty = 1.1f, c.temperature = 1.5f, c.top_k = 0; });
  }
}

TEST(Sampler, EveryOptionChangesTheDistribution) {
  const std::vector<float> logits = random_logits(200, 3);
  const std::vector<int32_t> history{
      static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin())};
  Sampler base(plain(), 200);
  const Distribution reference = base.probabilities(logits, history);
  const auto changes = [&](auto&& change) {
    SamplerConfig config = plain();
    change(config);
    Sampler sampler(config, 200);
    return sampler.probabilities(logits, history).probabilities != reference.probabilities;
  };
  EXPECT_FALSE(changes([](auto&) {}));
  EXPECT_TRUE(changes([](auto& c) { c.temperature = 0.9f; }));
  EXPECT_TRUE(changes([](auto& c) { c.top_k = 10; }));
  EXPECT_TRUE(changes([](auto& c) { c.top_p = 0.9f; }));
  EXPECT_TRUE(changes([](auto& c) { c.min_p = 0.1f; }));
  EXPECT_TRUE(changes([](auto& c) { c.repeat_penalty = 1.1f; }));
  EXPECT_TRUE(changes([](auto& c) { c.presence_penalty = 0.1f; }));
  EXPECT_TRUE(changes([](auto& c) { c.frequency_penalty = 0.1f; }));
  EXPECT_TRUE(changes([](auto& c) { c.logit_bias = {{0, 1.0f}}; }));
  EXPECT_FALSE(changes([](auto& c) { c.repeat_penalty = 1.1f, c.repeat_last_n = 0; }));
}

// OpenAI's penalties of an answer: of its tokens, all of them, and none of the prompt's. The repeat penalty
// keeps its window.
TEST(Sampler, PenaltiesOfAnAnswerLeaveThePromptOut) {
  SamplerConfig config = plain();
  config.presence_penalty = 1;
  config.frequency_penalty = 0.5f;
  config.repeat_penalty = 1.5f;
  config.repeat_last_n = 2;
  config.penalise_prompt = false;
  const std::vector<float> logits(6, 2.0f);
  const std::vector<int32_t> history{0, 0, 1, /* the answer */ 2, 2, 3, 0};
  Sampler sampler(config, 6, 3);
  const Distribution got = sampler.probabilities(logits, history);
  const std::vector<float> want{2.0f / 1.5f - 1.5f, 2.0f, 2.0f - 2.0f, 2.0f / 1.5f - 1.5f, 2.0f, 2.0f};
  double sum = 0;
  for (const float x : want) sum += std::exp(double{x});
  for (int32_t id = 0; id < 6; ++id)
    EXPECT_NEAR(probability_of(got, id), std::exp(double{want[static_cast<size_t>(id)]}) / sum, 1e-6) << id;
  // Without a repeat penalty no window is needed.
  config.repeat_penalty = 1;
  config.repeat_last_n = 0;
  const Distribution bare = Sampler(config, 6, 3).probabilities(logits, history);
  EXPECT_NEAR(probability_of(bare, 2) / probability_of(bare, 1), std::exp(-2.0), 1e-6);
  EXPECT_NEAR(probability_of(bare, 0) / probability_of(bare, 1), std::exp(-1.5), 1e-6);
}

TEST(Sampler, GreedyTakesTheLowestIdOfEqualLogits) {
  std::vector<float> logits(100, -1.0f);
  logits[70] = logits[31] = logits[99] = 2.0f;
  SamplerConfig config = plain();
  config.temperature = 0;
  Sampler sampler(config, 100);
  EXPECT_EQ(sampler.next(logits, {}, 0), 31);
  std::fill(logits.begin(), logits.end(), 0.5f);
  EXPECT_EQ(sampler.next(logits, {}, 0), 0);
  config = plain();
  config.top_k = 3;
  Sampler three(config, 100);
  EXPECT_EQ(three.probabilities(logits, {}).ids, (std::vector<int32_t>{0, 1, 2}));
}

// Pearson's χ² of seeded draws against the exact probabilities. 20 draws are 20 different positions of one
// seed.
double chi_square(const SamplerConfig& config, const std::vector<float>& logits, int draws, size_t* degrees) {
  Sampler sampler(config, static_cast<int64_t>(logits.size()));
  const std::map<int32_t, double> want = expected(config, logits, {});
  std::map<int32_t, int> seen;
  for (int i = 0; i < draws; ++i) ++seen[sampler.next(logits, {}, i)];
  double chi = 0;
  for (const auto& [id, p] : want) {
    const double mean = p * draws, difference = seen[id] - mean;
    chi += difference * difference / mean;
    seen.erase(id);
  }
  EXPECT_TRUE(seen.empty()) << "drew a token that was cut";
  *degrees = want.size() - 1;
  return chi;
}

TEST(Sampler, DrawsFollowTheProbabilities) {
  const std::vector<float> logits = random_logits(60, 5, 1.0f);
  SamplerConfig config = plain();
  config.top_k = 30;
  config.top_p = 0.9f;
  config.temperature = 1.3f;
  for (uint64_t seed : {1u, 2u, 0xFFFFFFFFu}) {
    config.seed = seed;
    size_t degrees = 0;
    const double chi = chi_square(config, logits, 40000, &degrees);
    ASSERT_GT(degrees, 10u);
    // Mean n, standard deviation √(2n): 4 of those away has a probability below 1e-3, and the seeds are
    // fixed.
    EXPECT_LT(chi, static_cast<double>(degrees) + 4 * std::sqrt(2.0 * static_cast<double>(degrees)))
        << "seed " << seed;
  }
}

// Where nothing is cut a draw makes no distribution; it is still the one from the distribution.
TEST(Sampler, ADrawOfAllIsThatOfTheDistribution) {
  for (const size_t vocab : {3, 512, 2000}) {
    for (const float temperature : {1.0f, 0.6f, 2.5f}) {
      SamplerConfig config = plain();
      config.temperature = temperature;
      config.seed = vocab;
      std::vector<float> logits = random_logits(vocab, 7);
      logits[1] = -kInf;
      Sampler sampler(config, static_cast<int64_t>(vocab)), other(config, static_cast<int64_t>(vocab));
      std::map<int32_t, int> drawn;
      for (int64_t position = 0; position < 3000; ++position) {
        const int32_t id = sampler.next(logits, {}, position);
        ++drawn[id];
        Rng rng = rng_for(config.seed, position, Draw::kToken);
        ASSERT_EQ(id, sample(other.probabilities(logits, {}), rng)) << vocab << " " << temperature;
      }
      EXPECT_EQ(drawn.count(1), 0u);
      EXPECT_GT(drawn.size(), 1u);
    }
  }
}

TEST(Sampler, ADrawDependsOnSeedPositionAndPurposeAlone) {
  const std::vector<float> logits = random_logits(500, 9, 0.5f);
  SamplerConfig config = plain();
  config.seed = 42;
  Sampler a(config, 500), b(config, 500);
  std::vector<int32_t> forward, backward;
  for (int i = 0; i < 50; ++i) forward.push_back(a.next(logits, {}, i));
  for (int i = 49; i >= 0; --i) backward.push_back(b.next(logits, {}, i));
  std::reverse(backward.begin(), backward.end());
  EXPECT_EQ(forward, backward);
  config.seed = 43;
  Sampler c(config, 500);
  int same = 0;
  for (int i = 0; i < 50; ++i) same += c.next(logits, {}, i) == forward[static_cast<size_t>(i)];
  EXPECT_LT(same, 10);
  EXPECT_NE(rng_for(1, 2, Draw::kToken).next_u32(), rng_for(1, 2, Draw::kAccept).next_u32());
}

TEST(Sampler, ProbabilityOfLooksUp) {
  Distribution d{{7, 3}, {0.75f, 0.25f}};
  EXPECT_EQ(probability_of(d, 3), 0.25f);
  EXPECT_EQ(probability_of(d, 4), 0.0f);
}

TEST(Sampler, BrokenLogitsAreRefused) {
  for (int32_t k : {0, 5}) {
    SamplerConfig config = plain();
    config.top_k = k;
    Sampler sampler(config, 40);
    for (size_t at : {0u, 17u, 39u}) {
      std::vector<float> logits = random_logits(40, 1);
      logits[at] = kNan;
      EXPECT_THROW(sampler.probabilities(logits, {}), UserError);
      logits[at] = kInf;
      EXPECT_THROW(sampler.probabilities(logits, {}), UserError);
      logits[at] = -kInf;
      EXPECT_EQ(probability_of(sampler.probabilities(logits, {}), static_cast<int32_t>(at)), 0.0f);
    }
    EXPECT_THROW(sampler.probabilities(std::vector<float>(40, -kInf), {}), UserError);
    EXPECT_THROW(sampler.probabilities(std::vector<float>(39, 0.0f), {}), UserError);
  }
}

TEST(Sampler, BadConfigsAreRefused) {
  const auto refused = [](auto&& change) {
    SamplerConfig config;
    change(config);
    EXPECT_THROW(Sampler(config, 10), UsageError);
  };
  refused([](auto& c) { c.temperature = -1; });
  refused([](auto& c) { c.temperature = kNan; });
  refused([](auto& c) { c.top_k = -1; });
  refused([](auto& c) { c.top_p = 1.5f; });
  refused([](auto& c) { c.min_p = -0.1f; });
  refused([](auto& c) { c.repeat_penalty = 0; });
  refused([](auto& c) { c.repeat_last_n = -2; });
  refused([](auto& c) { c.logit_bias = {{10, 1.0f}}; });
  refused([](auto& c) { c.logit_bias = {{1, kNan}}; });
}

TEST(Sampler, ASteadySamplerMakesNoHeapAllocation) {
  const std::vector<float> logits = random_logits(4096, 2);
  std::vector<int32_t> history(200);
  std::iota(history.begin(), history.end(), 0);
  for (int32_t k : {0, 40}) {
    SamplerConfig config;
    config.top_k = k;
    config.repeat_penalty = 1.1f;
    Sampler sampler(config, 4096);
    sampler.next(logits, history, 0);
    const size_t before = heap_allocations();
    for (int i = 0; i < 20; ++i) sampler.next(logits, history, i);
    EXPECT_EQ(heap_allocations(), before);
  }
}

}  // namespace
}  // namespace fathom
