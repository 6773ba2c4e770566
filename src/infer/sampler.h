// From logits to the next token. The steps are llama.cpp's, in its default order: logit bias, penalties,
// top-k, top-p, min-p, temperature.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace fathom {

struct SamplerConfig {
  float temperature = 0.8f;  // 0: greedy, ties to the lowest id
  int32_t top_k = 40;        // 0: all
  float top_p = 0.95f;       // 1: all
  float min_p = 0.05f;       // 0: all
  float repeat_penalty = 1.0f;
  int32_t repeat_last_n = 64;  // tokens the penalties look back on; 0: none, -1: all
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token, added to its logit; −∞ forbids it
  uint64_t seed = 0;

  template <class V>
  void visit(V& v) {
    v("temperature", temperature, "0: greedy");
    v("top_k", top_k, "keep the k most likely tokens; 0: all");
    v("top_p", top_p, "keep the most likely tokens that reach this probability; 1: all");
    v("min_p", min_p, "drop tokens less likely than this share of the best; 0: none");
    v("repeat_penalty", repeat_penalty, "above 1: tokens of the window become less likely");
    v("repeat_last_n", repeat_last_n, "the window of the penalties; 0: none, -1: all");
    v("presence_penalty", presence_penalty, "taken once from the logit of every token of the window");
    v("frequency_penalty", frequency_penalty, "taken for every occurrence in the window");
    v("seed", seed, "of the random draws");
  }
};

// Throws a UsageError naming the first value that makes no sense.
void check_sampler(const SamplerConfig& config);

// What may come next: the tokens that passed every step, most likely first (ties: lowest id first), with
// probabilities that sum to 1.
struct Distribution {
  std::vector<int32_t> ids;
  std::vector<float> probabilities;
};

float probability_of(const Distribution& distribution, int32_t id);  // 0 when it is not among them

// What a random number is for: with the seed and the position it is the whole key, so that an answer does not
// depend on what else runs.
enum class Draw : uint32_t { kToken = 0, kDraft = 1, kAccept = 2, kResidual = 3 };
inline Rng rng_for(uint64_t seed, int64_t position, Draw draw) {
  return Rng(seed, {static_cast<uint32_t>(position), static_cast<uint32_t>(draw), 0});
}

int32_t sample(const Distribution& distribution, Rng& rng);

// Holds the buffers: after the first calls no heap allocation is made. One per sequence being generated.
class Sampler {
 public:
  // `vocab`: logits per row. A config that check_sampler refuses, or a bias on a token that does not exist,
  // is a UsageError.
  Sampler(SamplerConfig config, int64_t vocab);

  // The distribution after all steps. `history`: the tokens so far, prompt included, oldest first. Logits
  // with a NaN or +∞, or nothing but −∞, are a UserError. Valid until the next call.
  const Distribution& probabilities(std::span<const float> logits, std::span<const int32_t> history);

  // probabilities(), then a draw for the token at `position`.
  int32_t next(std::span<const float> logits, std::span<const int32_t> history, int64_t position);

  const SamplerConfig& config() const { return config_; }

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };

  std::span<const float> adjusted(std::span<const float> logits, std::span<const int32_t> history);
  void penalise(std::span<const int32_t> history);
  void take_best(std::span<const float> logits, size_t count);
  void take_all(std::span<const float> logits);
  size_t sort_until_top_p();
  void cut_by_min_p();
  void soften();

  SamplerConfig config_;
  size_t vocab_;
  bool adjusts_;
  std::vector<float> logits_;          // with bias and penalties, when there are any
  std::vector<int32_t> recent_;        // the window, sorted
  std::vector<Candidate> candidates_;  // sorted best first once cut
  Distribution distribution_;
};

}  // namespace fathom
