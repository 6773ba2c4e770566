// From logits to the next token. The steps are llama.cpp's, in its default order: logit bias, penalties,
// top-k, top-p, min-p, temperature.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"
#include "infer/fathom.h"
#include "model/model.h"
#include "ops/rows/draw_tokens.h"

namespace fathom {

// Returns `config` with the model's own values where its files have them.
SamplerConfig with_defaults(SamplerConfig config, const GenerationDefaults& defaults);

// Throws a UsageError naming the first value that makes no sense.
void check_sampler(const SamplerConfig& config);

// What may come next: the tokens that passed every step, with probabilities that sum to 1. Most likely first
// (ties: lowest id first) where a step cut; in the order of their ids where all may come.
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
  // `vocab`: logits per row. `prompt_tokens`: of every history, the first ones, which are no answer. A config
  // that check_sampler refuses, or a bias on a token that does not exist, is a UsageError.
  Sampler(SamplerConfig config, int64_t vocab, int64_t prompt_tokens = 0);

  // The distribution after all steps. `history`: the tokens so far, prompt included, oldest first. Logits
  // with a NaN or +∞, or nothing but −∞, are a UserError. Valid until the next call.
  const Distribution& probabilities(std::span<const float> logits, std::span<const int32_t> history);

  // A draw from probabilities() for the token at `position`.
  int32_t next(std::span<const float> logits, std::span<const int32_t> history, int64_t position);

  // Whether next() draws from all of a row's logits as they are, so that draw_tokens() can draw instead, and
  // what it draws then.
  bool draws_of_all() const { return !cuts() && !adjusts_; }
  TokenDraw draw_at(int32_t row, int64_t position) const;

  const SamplerConfig& config() const { return config_; }

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };

  std::span<const float> adjusted(std::span<const float> logits, std::span<const int32_t> history);
  void penalise(std::span<const int32_t> history);
  void penalise_window(std::span<const int32_t> window, float repeat, float presence, float frequency);
  void take_best(std::span<const float> logits, size_t count);
  void take_all(std::span<const float> logits);
  size_t sort_until_top_p();
  void cut_by_min_p();
  void soften();
  bool cuts() const;

  SamplerConfig config_;
  size_t vocab_, prompt_tokens_;
  bool adjusts_;
  std::vector<float> logits_;          // with bias and penalties, when there are any
  std::vector<int32_t> recent_;        // the window, sorted
  std::vector<Candidate> candidates_;  // sorted best first once cut
  Distribution distribution_;
  const RowKernels& kernels_;
  DrawRoom draw_room_;
};

}  // namespace fathom
