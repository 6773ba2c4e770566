#include "infer/speculator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "infer/speculating_test.h"

namespace fathom {
namespace {

using Tokens = std::vector<int32_t>;
constexpr int32_t kDraftVocab = 4;

// Two models of a small language, which look at the last two tokens. The draft resembles the other.
std::vector<float> logits_after(std::span<const int32_t> history, bool draft) {
  const auto a = static_cast<uint32_t>(history.back()),
             b = static_cast<uint32_t>(history.size() > 1 ? history[history.size() - 2] : 9);
  Rng rng(17, {a, b, 0}), other(18, {a, b, 1});
  std::vector<float> logits;
  for (int32_t i = 0; i < kDraftVocab; ++i) {
    const float own = 1.2f * rng.normal(), moved = own + 0.9f * other.normal();
    logits.push_back(draft ? moved : own);
  }
  return logits;
}

// The probability of every text of `length` tokens, as plain decoding draws them.
void add_texts(Sampler& sampler, Tokens history, size_t length, double chance,
               std::map<Tokens, double>& all) {
  if (history.size() == length) {
    all[history] += chance;
    return;
  }
  const Distribution p = sampler.probabilities(logits_after(history, false), history);
  for (size_t i = 0; i < p.ids.size(); ++i) {
    history.push_back(p.ids[i]);
    add_texts(sampler, history, length, chance * double{p.probabilities[i]}, all);
    history.pop_back();
  }
}

Tokens speculate(const SamplerConfig& config, Tokens history, size_t length, int64_t drafts) {
  AnswerOptions options;
  options.sampler = config;
  Speculator speculator(DraftLength::fixed(drafts), options, kDraftVocab, 1);
  while (history.size() < length) {
    EXPECT_TRUE(speculator.start(history, drafts));
    Tokens seen = history;
    while (speculator.phase() == Phase::kDraft) {
      speculator.take_draft(logits_after(seen, true));
      seen.push_back(speculator.drafts().back());
    }
    std::vector<float> rows;
    for (size_t count = history.size(); count <= seen.size(); ++count) {
      const std::vector<float> row = logits_after(std::span(seen).first(count), false);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    const std::span<const int32_t> given = speculator.take_verified(rows);
    history.insert(history.end(), given.begin(), given.end());
  }
  history.resize(length);
  return history;
}

// Σ (seen − expected)² / expected, over its 1 − 10⁻⁴ quantile (Wilson and Hilferty): above 1, another
// distribution. Rare outcomes are counted together.
double chi_square(const std::map<Tokens, double>& chances, const std::map<Tokens, int64_t>& counts,
                  int64_t total) {
  double sum = 0, rare_expected = 0, rare_seen = 0, cells = -1;
  int64_t known = 0;
  const auto add = [&](double expected, double seen) {
    sum += (seen - expected) * (seen - expected) / expected;
    ++cells;
  };
  for (const auto& [text, chance] : chances) {
    const double expected = chance * static_cast<double>(total);
    const auto at = counts.find(text);
    const auto seen = static_cast<double>(at == counts.end() ? 0 : at->second);
    known += at == counts.end() ? 0 : at->second;
    if (expected < 8) {
      rare_expected += expected;
      rare_seen += seen;
    } else {
      add(expected, seen);
    }
  }
  if (rare_expected > 0) add(rare_expected, rare_seen);
  EXPECT_EQ(known, total) << "texts that cannot come";
  const double part = 2 / (9 * cells), quantile = cells * std::pow(1 - part + 3.72 * std::sqrt(part), 3);
  return sum / quantile;
}

TEST(Speculator, TextsHaveTheDistributionOfPlainDecoding) {
  SamplerConfig plain{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0};
  SamplerConfig steps{
      .temperature = 0.9f, .top_k = 3, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1.4f};
  constexpr int64_t kTexts = 20000;
  for (SamplerConfig config : {plain, steps}) {
    Sampler sampler(config, kDraftVocab);
    std::map<Tokens, double> chances;
    add_texts(sampler, {1}, 4, 1, chances);
    for (const int64_t drafts : {1, 2, 5}) {
      std::map<Tokens, int64_t> counts;
      for (int64_t i = 0; i < kTexts; ++i) {
        config.seed = static_cast<uint64_t>(1000 * drafts) + static_cast<uint64_t>(i) * 7919;
        ++counts[speculate(config, {1}, 4, drafts)];
      }
      EXPECT_LT(chi_square(chances, counts, kTexts), 1) << drafts << " drafts";
    }
  }
}

// The same through a model: the first two tokens of many seeds.
TEST(Speculator, AModelsTextsToo) {
  ModelConfig config = tiny_config();
  config.vocab = 5;
  Rig rig(R"({"name": "dense"})", config);
  Speculating speculating(rig, leaving_after(2));
  const Tokens prompt = random_tokens(4, 6, 5);
  AnswerOptions options;
  options.sampler = {.temperature = 1.5f, .top_k = 0, .top_p = 1, .min_p = 0};
  options.max_tokens = 3;
  constexpr int64_t kTexts = 3000;
  std::map<Tokens, int64_t> counts;
  const Speculation speculation{speculating.rule, DraftLength::fixed(2)};
  int64_t rejected = 0;
  for (int64_t i = 0; i < kTexts; ++i) {
    options.sampler.seed = static_cast<uint64_t>(i);
    const PlainAnswer result = PlainWriter(speculating.feeder, options, prompt, &speculation).run();
    ++counts[result.ids];
    rejected += result.speculation.drafted - result.speculation.accepted;
  }
  EXPECT_GT(rejected, kTexts / 20);

  std::map<Tokens, double> chances;
  Sampler sampler(options.sampler, 5);
  const std::function<void(Tokens, double)> add = [&](const Tokens& text, double chance) {
    if (text.size() == 3) {
      chances[text] = chance;
      return;
    }
    Tokens all = prompt;
    all.insert(all.end(), text.begin(), text.end());
    speculating.feeder.truncate(0, 0);
    const std::vector<float> rows = speculating.plain(all);
    const Distribution p = sampler.probabilities(std::span(rows).last(5), all);
    for (size_t i = 0; i < p.ids.size(); ++i) {
      Tokens next = text;
      next.push_back(p.ids[i]);
      add(next, chance * double{p.probabilities[i]});
    }
  };
  add({}, 1);
  EXPECT_LT(chi_square(chances, counts, kTexts), 1);
}

// Drafts that the text itself gives, without a distribution.
Tokens look_up(const SamplerConfig& config, Tokens history, size_t length, int64_t drafts, int64_t* judged) {
  AnswerOptions options;
  options.sampler = config;
  Speculator speculator(LookupLength::fixed(drafts), options, kDraftVocab, std::ssize(history));
  Sampler sampler(config, kDraftVocab);
  while (history.size() < length) {
    if (!speculator.start(history, drafts)) {
      history.push_back(sampler.next(logits_after(history, false), history, std::ssize(history)));
      continue;
    }
    EXPECT_EQ(speculator.phase(), Phase::kVerify);
    EXPECT_EQ(speculator.drafting_passes(), 0);
    Tokens seen = history;
    std::vector<float> rows = logits_after(seen, false);
    for (const int32_t draft : speculator.drafts()) {
      seen.push_back(draft);
      const std::vector<float> row = logits_after(seen, false);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    const std::span<const int32_t> given = speculator.take_verified(rows);
    history.insert(history.end(), given.begin(), given.end());
  }
  EXPECT_EQ(speculator.counts().looked_up, speculator.counts().drafted);
  *judged += speculator.counts().drafted;
  history.resize(length);
  return history;
}

TEST(Speculator, LookedUpTextsHaveTheDistributionOfPlainDecoding) {
  const SamplerConfig plain{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0};
  const SamplerConfig steps{
      .temperature = 0.9f, .top_k = 3, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1.4f};
  const Tokens prompt{0, 1, 2, 3, 0, 2, 1, 0, 3, 1, 1, 3, 2, 0, 1};
  constexpr int64_t kTexts = 20000;
  for (SamplerConfig config : {plain, steps}) {
    Sampler sampler(config, kDraftVocab);
    std::map<Tokens, double> chances;
    add_texts(sampler, prompt, prompt.size() + 3, 1, chances);
    for (const int64_t drafts : {1, 2, 5}) {
      std::map<Tokens, int64_t> counts;
      int64_t judged = 0;
      for (int64_t i = 0; i < kTexts; ++i) {
        config.seed = static_cast<uint64_t>(1000 * drafts) + static_cast<uint64_t>(i) * 7919;
        ++counts[look_up(config, prompt, prompt.size() + 3, drafts, &judged)];
      }
      EXPECT_GT(judged, kTexts);
      EXPECT_LT(chi_square(chances, counts, kTexts), 1) << drafts << " drafts";
    }
  }
}

TEST(Speculator, NothingIsLookedUpThatMayNotCome) {
  AnswerOptions options;
  options.sampler.temperature = 0;
  options.end_ids = {2};
  const auto drafts = [&](const Tokens& history, int64_t prompt, TokenMask* mask = nullptr) {
    Speculator speculator(LookupLength::fixed(8), options, kDraftVocab, prompt, mask);
    if (!speculator.start(history, 8)) return Tokens{};
    return Tokens(speculator.drafts().begin(), speculator.drafts().end());
  };
  EXPECT_EQ(drafts({1, 3, 0, 2, 1, 3}, 6), (Tokens{0, 2})) << "nothing after an end";
  options.min_tokens = 2;
  EXPECT_EQ(drafts({1, 3, 0, 2, 1, 3}, 6), Tokens{0}) << "no end before the second token";
  EXPECT_EQ(drafts({1, 3, 2, 0, 1, 3}, 6), Tokens{});
  EXPECT_EQ(drafts({1, 3, 0, 2, 1, 3}, 5), (Tokens{0, 2})) << "one of two is there";
  EXPECT_EQ(drafts({1, 3, 0, 0}, 4), Tokens{}) << "no such place";
  class Without final : public TokenMask {  // token 0 as the second token
   public:
    void forbid(std::span<float> logits) override {
      if (accepted == 1) logits[0] = -INFINITY;
    }
    void accept(int32_t) override { ++accepted; }
    void rollback(int64_t tokens) override { accepted -= tokens; }
    int64_t accepted = 0;
  } mask;
  options.end_ids.clear();
  EXPECT_EQ(drafts({1, 3, 3, 0, 1, 3}, 6, &mask), Tokens{3});
  mask.accepted = 5;
  EXPECT_EQ(drafts({1, 3, 3, 0, 1, 3}, 6, &mask).size(), 8u);
}

// The drafts' part of the vocabulary may hold nothing that may come: then the drafts end.
TEST(Speculator, DraftsEndWhereNoneMayCome) {
  AnswerOptions options;
  options.sampler.temperature = 0;
  Speculator speculator(DraftLength::fixed(4), options, kDraftVocab, 2);
  ASSERT_TRUE(speculator.start(Tokens{1, 3}, 8));
  speculator.take_draft(std::vector<float>{1, 0, -INFINITY, -INFINITY});
  speculator.take_draft(std::vector<float>(kDraftVocab, -INFINITY));
  EXPECT_EQ(speculator.phase(), Phase::kVerify);
  EXPECT_EQ(speculator.drafting_passes(), 2);
  EXPECT_EQ(Tokens(speculator.tokens().begin(), speculator.tokens().end()), (Tokens{3, 0}));
  const std::span<const int32_t> given = speculator.take_verified(std::vector<float>{9, 0, 0, 0, 0, 9, 0, 0});
  EXPECT_EQ(Tokens(given.begin(), given.end()), (Tokens{0, 1}));
}

TEST(Speculator, NothingIsDraftedAfterAnEnd) {
  AnswerOptions options;
  options.sampler.temperature = 0;
  options.end_ids = {2};
  Speculator speculator(DraftLength::fixed(8), options, kDraftVocab, 2);
  ASSERT_TRUE(speculator.start(Tokens{1, 3}, 8));
  EXPECT_EQ(Tokens(speculator.tokens().begin(), speculator.tokens().end()), Tokens{3});
  speculator.take_draft(std::vector<float>{0, 9, 1, 2});
  EXPECT_EQ(Tokens(speculator.tokens().begin(), speculator.tokens().end()), Tokens{1});
  speculator.take_draft(std::vector<float>{0, 1, 9, 2});
  EXPECT_EQ(speculator.phase(), Phase::kVerify);
  EXPECT_EQ(Tokens(speculator.tokens().begin(), speculator.tokens().end()), (Tokens{3, 1, 2}));
  const std::span<const int32_t> given =
      speculator.take_verified(std::vector<float>{0, 9, 1, 2, 9, 1, 0, 2, 0, 0, 0, 9});
  EXPECT_EQ(Tokens(given.begin(), given.end()), (Tokens{1, 0}));
  EXPECT_EQ(speculator.counts().drafted, 2);
  EXPECT_EQ(speculator.counts().accepted, 1);
}

TEST(Speculator, EndsComeOnlyAfterTheTokensAskedFor) {
  AnswerOptions options;
  options.sampler.temperature = 0;
  options.end_ids = {2};
  options.min_tokens = 2;
  Speculator speculator(DraftLength::fixed(3), options, kDraftVocab, 2);
  const std::vector<float> row{0, 1, 9, 2};
  ASSERT_TRUE(speculator.start(Tokens{1, 3, 0}, 3));  // one of two is there
  speculator.take_draft(row);
  speculator.take_draft(row);
  EXPECT_EQ(Tokens(speculator.drafts().begin(), speculator.drafts().end()), (Tokens{3, 2}));
  std::vector<float> rows = row;
  for (int i = 0; i < 2; ++i) rows.insert(rows.end(), row.begin(), row.end());
  const std::span<const int32_t> given = speculator.take_verified(rows);
  EXPECT_EQ(Tokens(given.begin(), given.end()), (Tokens{3, 2, 2}));
}

// Asked again where it was asked before, or after a round that was abandoned, it goes on as if asked once.
TEST(Speculator, AskingTwiceChangesNothing) {
  AnswerOptions options;
  options.sampler.temperature = 1;
  const auto lengths = [&](bool twice) {
    Speculator speculator(DraftLength::adaptive({.draft = 0.2}), options, kDraftVocab, 1);
    Tokens history{1};
    std::vector<int64_t> all;
    while (history.size() < 400) {
      bool drafts = speculator.start(history, 8);
      if (twice && drafts) {
        speculator.take_draft(logits_after(history, true));
        speculator.abandon();
      }
      if (twice) drafts = speculator.start(history, 8);
      all.push_back(0);
      if (!drafts) {
        history.push_back(static_cast<int32_t>(history.size() % kDraftVocab));
        continue;
      }
      Tokens seen = history;
      std::vector<float> rows = logits_after(seen, false);
      for (; speculator.phase() == Phase::kDraft; ++all.back()) {
        speculator.take_draft(logits_after(seen, true));
        seen.push_back(speculator.drafts().back());
        const std::vector<float> row = logits_after(seen, false);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      const std::span<const int32_t> given = speculator.take_verified(rows);
      history.insert(history.end(), given.begin(), given.end());
    }
    return all;
  };
  const std::vector<int64_t> once = lengths(false);
  EXPECT_EQ(lengths(true), once);
  EXPECT_GT(std::count(once.begin(), once.end(), 0), 5);
  EXPECT_GT(std::count_if(once.begin(), once.end(), [](int64_t drafts) { return drafts > 0; }), 5);
}

// Passes that `tokens` tokens took, in plain passes, when each draft stays with the given chance.
double passes_for(DraftCost cost, double chance, int64_t tokens, int64_t* longest = nullptr) {
  DraftLength length = DraftLength::adaptive(cost);
  Rng rng(5);
  double passes = 0;
  for (int64_t made = 0; made < tokens;) {
    const int64_t drafts = length.next(16);
    if (longest) *longest = std::max(*longest, drafts);
    if (drafts == 0) {
      length.plain();
      ++made;
      ++passes;
      continue;
    }
    int64_t accepted = 0;
    while (accepted < drafts && rng.uniform_double() < chance) ++accepted;
    length.round(drafts, accepted);
    made += accepted + 1;
    passes += static_cast<double>(drafts) * cost.draft + cost.pass(drafts + 1);
  }
  return passes / static_cast<double>(tokens);
}

TEST(DraftLength, CostsLittleWhereItDoesNotPay) {
  for (const double draft : {0.2, 0.5, 0.9}) {
    for (const double chance : {0.0, 0.2, 0.4, 0.6, 0.8}) {
      for (const int64_t tokens : {6, 8, 16, 20, 24, 28, 32, 128, 2000}) {
        EXPECT_LT(passes_for({.draft = draft}, chance, tokens), 1.05) << draft << " " << chance;
      }
    }
    EXPECT_LT(passes_for({.draft = draft}, 0, 20000), 1.01);  // it is tried ever less often
  }
}

TEST(DraftLength, UsesWhatPays) {
  int64_t longest = 0;
  EXPECT_LT(passes_for({.draft = 0.2, .row = 0.1, .first_four = 1, .further_four = 0}, 0.95, 2000, &longest),
            0.55);
  EXPECT_GT(longest, 4);
  EXPECT_LT(passes_for({.draft = 0.4, .row = 0.1, .first_four = 1, .further_four = 0}, 0.9, 2000), 0.8);
  EXPECT_EQ(DraftLength::fixed(5).next(16), 5);
  EXPECT_EQ(DraftLength::fixed(5).next(2), 2);
  EXPECT_LE(DraftLength::fixed(5).next(-1), 0);
}

}  // namespace
}  // namespace fathom
