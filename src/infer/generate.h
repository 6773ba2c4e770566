// Continues a prompt: prefill in chunks, then token by token with a sampler, until something ends it.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "infer/drafter.h"

namespace fathom {

// A part of the text as it is shown: whole UTF-8 characters, nothing that could still become a stop string.
struct TextPiece {
  std::string_view text;
  double depth;  // layers run for the newest token of this piece, as units / 2
};

struct GenerateOptions : AnswerOptions {
  bool context_shift = false;  // when the context is full: forget the older half and go on
  int64_t chunk = 512;         // rows of a prefill pass; a policy that must see the prompt whole does
  std::optional<Speculation> speculation = std::nullopt;  // needs a feeder with a SpeculativePolicy
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(const TextPiece&)> on_text = nullptr;
};

struct GenerateResult {
  std::string text;
  std::vector<int32_t> ids;   // generated, without the token that ended the text
  std::vector<double> depth;  // of each: units run / 2 by the row that gave it
  int64_t prompt_tokens = 0,
          reused_tokens = 0;  // of the prompt: those whose keys and values were still in the cache
  FinishReason finish = FinishReason::kLength;
  double prefill_seconds = 0, decode_seconds = 0;
  int64_t decode_steps = 0;  // tokens that were computed after the prefill
  SpeculationCounts speculation;
  int64_t context_shifts = 0;
  double prefill_tokens_per_s() const;
  double decode_tokens_per_s() const;
};

// One sequence. Between calls the cache keeps what was fed: a prompt that begins with it is not computed
// again.
class Generator {
 public:
  explicit Generator(Feeder& feeder, int32_t sequence = 0) : feeder_(feeder), sequence_(sequence) {}

  // An empty prompt, or one longer than the context, is a UserError before anything is computed.
  GenerateResult run(std::span<const int32_t> prompt, const GenerateOptions& options);

 private:
  struct Run;  // one call's state
  bool feed_prompt(std::span<const int32_t> tokens, const GenerateOptions& options,
                   std::vector<float>& logits);
  FinishReason decode(Run& run);
  const Writer::Written& write(Run& run);
  bool speculate(Run& run);
  bool feed_round(Run& run);
  Tensor feed(std::span<const int32_t> tokens, LogitsFor logits);
  void feed_one(int32_t token, std::vector<float>& logits);
  bool shift_context(const GenerateOptions& options, std::vector<float>& logits);
  void keep_logits(const Tensor& row, std::vector<float>& logits);

  Feeder& feeder_;
  int32_t sequence_;
  std::vector<int32_t> fed_;  // what the cache holds
  double depth_ = 0;          // of the last plain pass, mean over its rows: units run / 2
};

}  // namespace fathom
