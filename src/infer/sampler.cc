#include "infer/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/format.h"
#include "base/isa.h"
#include "ops/kernels/row_access.h"

namespace fathom {
namespace {

[[noreturn]] void refuse_logit(float value, size_t id) {
  fail("sampling: the logit of token {} is {}; the model's weights or the arithmetic are broken", id, value);
}

// Four floats in a register, on every machine that gcc and clang know.
using Float4 = float __attribute__((vector_size(16)));
using Mask4 = int32_t __attribute__((vector_size(16)));

Float4 load(const float* from) {
  Float4 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

// Whether any of 16 logits is above `threshold` or a NaN. One test for a block: nearly all of a vocabulary is
// below the worst of the best 40, and this passes over it at the speed of the cache.
bool any_above(const float* logits, float threshold) {
  const Float4 t = {threshold, threshold, threshold, threshold};
  const Mask4 below =
      (load(logits) <= t) & (load(logits + 4) <= t) & (load(logits + 8) <= t) & (load(logits + 12) <= t);
  uint64_t halves[2];
  std::memcpy(halves, &below, sizeof halves);
  return (halves[0] & halves[1]) != ~uint64_t{0};
}

}  // namespace

SamplerConfig with_defaults(SamplerConfig config, const GenerationDefaults& defaults) {
  const auto take = [](auto& value, auto of_model) {
    if (of_model >= 0) value = of_model;
  };
  take(config.temperature, defaults.temperature);
  take(config.top_k, defaults.top_k);
  take(config.top_p, defaults.top_p);
  take(config.min_p, defaults.min_p);
  take(config.repeat_penalty, defaults.repeat_penalty);
  return config;
}

void check_sampler(const SamplerConfig& c) {
  const auto need = [](bool good, const char* name, const char* range, double got) {
    if (!good) throw UsageError(fmt::format("{} must be {}, got {}", name, range, got));
  };
  // Written so that a NaN fails too.
  need(c.temperature >= 0 && c.temperature < 1e6f, "temperature", "0 or more", c.temperature);
  need(c.top_k >= 0, "top-k", "0 (all) or more", c.top_k);
  need(c.top_p >= 0 && c.top_p <= 1, "top-p", "between 0 and 1", c.top_p);
  need(c.min_p >= 0 && c.min_p <= 1, "min-p", "between 0 and 1", c.min_p);
  need(c.repeat_penalty > 0 && c.repeat_penalty < 1e6f, "repeat-penalty", "above 0", c.repeat_penalty);
  need(c.repeat_last_n >= -1, "repeat-last-n", "-1 (all), 0 (off) or more", c.repeat_last_n);
  need(std::abs(c.presence_penalty) < 1e6f, "presence-penalty", "a finite number", c.presence_penalty);
  need(std::abs(c.frequency_penalty) < 1e6f, "frequency-penalty", "a finite number", c.frequency_penalty);
}

float probability_of(const Distribution& distribution, int32_t id) {
  const auto at = std::find(distribution.ids.begin(), distribution.ids.end(), id);
  return at == distribution.ids.end()
             ? 0.0f
             : distribution.probabilities[static_cast<size_t>(at - distribution.ids.begin())];
}

int32_t sample(const Distribution& distribution, Rng& rng) {
  double sum = 0;  // the floats' own sum, not quite 1
  for (float p : distribution.probabilities) sum += p;
  const double target = rng.uniform_double() * sum;
  double below = 0;
  for (size_t i = 0; i + 1 < distribution.ids.size(); ++i) {
    below += distribution.probabilities[i];
    if (target < below) return distribution.ids[i];
  }
  return distribution.ids.back();
}

Sampler::Sampler(SamplerConfig config, int64_t vocab, int64_t prompt_tokens)
    : config_(std::move(config)),
      vocab_(static_cast<size_t>(vocab)),
      prompt_tokens_(static_cast<size_t>(prompt_tokens)),
      kernels_(row_kernels(choose_isa())) {
  check_sampler(config_);
  for (const auto& [id, bias] : config_.logit_bias) {
    if (id < 0 || id >= vocab)
      throw UsageError(fmt::format("logit bias: token {} is not in the vocabulary of {}", id, vocab));
    if (std::isnan(bias) || bias > 1e6f)
      throw UsageError(fmt::format("logit bias of token {} must be a number, got {}", id, bias));
  }
  const bool repeats = config_.repeat_penalty != 1.0f;
  const bool counts = config_.presence_penalty != 0.0f || config_.frequency_penalty != 0.0f;
  const bool in_window = repeats || (counts && config_.penalise_prompt);
  if (!in_window) config_.repeat_last_n = 0;
  const bool penalises = config_.repeat_last_n != 0 || (counts && !config_.penalise_prompt);
  adjusts_ = penalises || !config_.logit_bias.empty();
  if (adjusts_) logits_.resize(vocab_);
  const size_t most = config_.temperature == 0 ? 1
                      : config_.top_k > 0 && static_cast<size_t>(config_.top_k) < vocab_
                          ? static_cast<size_t>(config_.top_k)
                      : cuts() ? vocab_
                               : 0;
  candidates_.reserve(most);
  distribution_.ids.reserve(most);
  distribution_.probabilities.reserve(most);
  recent_.reserve(static_cast<size_t>(std::max(0, config_.repeat_last_n)));
}

std::span<const float> Sampler::adjusted(std::span<const float> logits, std::span<const int32_t> history) {
  if (!adjusts_) return logits;
  std::copy(logits.begin(), logits.end(), logits_.begin());
  for (const auto& [id, bias] : config_.logit_bias) logits_[static_cast<size_t>(id)] += bias;
  penalise(history);
  return logits_;
}

void Sampler::penalise(std::span<const int32_t> history) {
  const SamplerConfig& c = config_;
  const size_t window =
      c.repeat_last_n < 0 ? history.size() : std::min(static_cast<size_t>(c.repeat_last_n), history.size());
  const auto last = history.subspan(history.size() - window);
  if (c.penalise_prompt)
    return penalise_window(last, c.repeat_penalty, c.presence_penalty, c.frequency_penalty);
  penalise_window(last, c.repeat_penalty, 0, 0);
  const auto answer = history.subspan(std::min(prompt_tokens_, history.size()));
  if (c.presence_penalty != 0 || c.frequency_penalty != 0)
    penalise_window(answer, 1, c.presence_penalty, c.frequency_penalty);
}

// Keskar et al. 2019 (CTRL): a logit is divided by the penalty when positive, multiplied when not; then the
// OpenAI penalties: frequency for every occurrence in the window, presence once.
void Sampler::penalise_window(std::span<const int32_t> window, float repeat, float presence,
                              float frequency) {
  recent_.assign(window.begin(), window.end());
  std::sort(recent_.begin(), recent_.end());
  for (size_t i = 0, next; i < recent_.size(); i = next) {
    next = i + 1;
    while (next < recent_.size() && recent_[next] == recent_[i]) ++next;
    if (recent_[i] < 0 || static_cast<size_t>(recent_[i]) >= vocab_) continue;
    float& logit = logits_[static_cast<size_t>(recent_[i])];
    logit = logit <= 0 ? logit * repeat : logit / repeat;
    logit -= frequency * static_cast<float>(next - i) + presence;
  }
}

// The `count` largest, best first, ties to the lower id. A heap with the worst of them on top: ids come in
// ascending order, so an equal logit never displaces an earlier one.
void Sampler::take_best(std::span<const float> logits, size_t count) {
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  };
  candidates_.clear();
  float threshold = -std::numeric_limits<float>::infinity();  // also keeps −∞ out
  const auto offer = [&](size_t i) {
    const float x = logits[i];
    if (!(x <= std::numeric_limits<float>::max())) refuse_logit(x, i);
    if (x <= threshold) return;
    if (candidates_.size() == count) {
      std::pop_heap(candidates_.begin(), candidates_.end(), better);
      candidates_.pop_back();
    }
    candidates_.push_back({x, static_cast<int32_t>(i)});
    std::push_heap(candidates_.begin(), candidates_.end(), better);
    if (candidates_.size() == count) threshold = candidates_.front().logit;
  };
  size_t i = 0;
  for (; i + 16 <= logits.size(); i += 16) {
    if (!any_above(logits.data() + i, threshold)) continue;
    for (size_t j = i; j < i + 16; ++j) offer(j);
  }
  for (; i < logits.size(); ++i) offer(i);
  std::sort_heap(candidates_.begin(), candidates_.end(), better);
}

void Sampler::take_all(std::span<const float> logits) {
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] <= std::numeric_limits<float>::max())) refuse_logit(logits[i], i);
    if (logits[i] > -std::numeric_limits<float>::infinity())
      candidates_.push_back({logits[i], static_cast<int32_t>(i)});
  }
}

// The smallest set of best candidates whose probabilities reach top-p (at least one), sorted; of a whole
// vocabulary only as much as is needed gets sorted. Returns its size.
size_t Sampler::sort_until_top_p() {
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  };
  float largest = candidates_.front().logit;
  for (const Candidate& c : candidates_) largest = std::max(largest, c.logit);
  double sum = 0;
  if (config_.top_p < 1) {
    for (const Candidate& c : candidates_) sum += std::exp(c.logit - largest);
  }
  const double enough = config_.top_p * sum;
  double reached = 0;
  size_t sorted = 0;
  while (sorted < candidates_.size()) {
    const size_t piece = std::min(candidates_.size(), std::max<size_t>(64, sorted * 8));
    const auto begin = candidates_.begin() + static_cast<ptrdiff_t>(sorted);
    const auto end = candidates_.begin() + static_cast<ptrdiff_t>(piece);
    if (end != candidates_.end()) std::nth_element(begin, end, candidates_.end(), better);
    std::sort(begin, end, better);
    const float floor = largest + std::log(config_.min_p);  // below it min-p would cut anyway; −∞ when off
    for (; sorted < piece; ++sorted) {
      const float logit = candidates_[sorted].logit;
      if (sorted > 0 && logit < floor) return sorted;
      if (config_.top_p >= 1) continue;
      reached += std::exp(logit - largest);
      if (reached >= enough) return sorted + 1;
    }
  }
  return sorted;
}

// min-p (Nguyen et al. 2024): what is less likely than min_p × the best goes. Candidates are sorted.
void Sampler::cut_by_min_p() {
  if (config_.min_p <= 0) return;
  const float floor = candidates_.front().logit + std::log(config_.min_p);
  while (candidates_.size() > 1 && candidates_.back().logit < floor) candidates_.pop_back();
}

// Temperature and softmax over what is left.
void Sampler::soften() {
  distribution_.ids.clear();
  distribution_.probabilities.clear();
  float largest = candidates_.front().logit;
  for (const Candidate& c : candidates_) largest = std::max(largest, c.logit);
  double sum = 0;
  for (const Candidate& c : candidates_) {
    const float p = config_.temperature > 0 ? std::exp((c.logit - largest) / config_.temperature) : 1.0f;
    distribution_.ids.push_back(c.id);
    distribution_.probabilities.push_back(p);
    sum += p;
  }
  for (float& p : distribution_.probabilities) p = static_cast<float>(p / sum);
}

const Distribution& Sampler::probabilities(std::span<const float> logits, std::span<const int32_t> history) {
  if (logits.size() != vocab_) fail("sampling: expected {} logits, got {}", vocab_, logits.size());
  const std::span<const float> row = adjusted(logits, history);
  const auto k = static_cast<size_t>(config_.top_k);
  const bool greedy = config_.temperature == 0, by_k = greedy || (k > 0 && k < vocab_);
  if (by_k) {
    take_best(row, greedy ? 1 : k);
  } else {
    take_all(row);
  }
  if (candidates_.empty()) fail("sampling: every logit is -inf, so no token can follow");
  const bool by_probability =
      config_.top_p < 1 || config_.min_p > 0;  // sorting a whole vocabulary costs milliseconds
  if (!greedy && by_probability) {
    if (!by_k || config_.top_p < 1) candidates_.resize(sort_until_top_p());
    cut_by_min_p();
  }
  soften();
  return distribution_;
}

// Whether any step may leave a token out.
bool Sampler::cuts() const {
  return config_.temperature == 0 || config_.top_p < 1 || config_.min_p > 0 ||
         (config_.top_k > 0 && static_cast<size_t>(config_.top_k) < vocab_);
}

TokenDraw Sampler::draw_at(int32_t row, int64_t position) const {
  return {row, config_.temperature, rng_for(config_.seed, position, Draw::kToken).uniform_double()};
}

int32_t Sampler::next(std::span<const float> logits, std::span<const int32_t> history, int64_t position) {
  if (!cuts() && logits.size() == vocab_) {
    const TokenDraw draw = draw_at(0, position);
    const int32_t drawn =
        draw_token(kernels_, adjusted(logits, history), draw.temperature, draw.at, draw_room_);
    if (drawn >= 0) return drawn;  // otherwise probabilities() says what is wrong
  }
  const Distribution& distribution = probabilities(logits, history);
  if (distribution.ids.size() == 1) return distribution.ids.front();
  Rng rng = rng_for(config_.seed, position, Draw::kToken);
  return sample(distribution, rng);
}

}  // namespace fathom
