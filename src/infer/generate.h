// Continues a prompt: one answer of the batcher, on the caller's thread.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "infer/batcher.h"

namespace fathom {

// A part of the text as it is shown: whole UTF-8 characters, nothing that could still become a stop string.
struct TextPiece {
  std::string_view text;
  double depth;  // layers run for the newest token of this piece, as units / 2; 0 where none is recorded
};

// The model's end tokens end the text unless ignore_eos. `prompt` is run()'s.
struct GenerateOptions : Request {
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(const TextPiece&)> on_text = nullptr;
  std::function<void(int64_t rows)> on_prefill = nullptr;  // rows of the prompt that are in the cache by now
};

struct GenerateResult {
  std::string text;
  std::vector<int32_t> ids;   // generated, without the token that ended the text
  std::vector<double> depth;  // of each: units run / 2 by the row that gave it
  FinishReason finish = FinishReason::kLength;
  AnswerStats stats;
  int64_t decode_steps = 0;  // tokens that were computed after the first

  double prefill_tokens_per_s() const;
  double decode_tokens_per_s() const;
};

// One sequence. Between calls the cache keeps what was fed: a prompt that begins with it is not computed
// again.
class Generator {
 public:
  // The feeder's cache is the generator's alone. Drafts and depths need options.records.
  explicit Generator(Feeder& feeder, BatcherOptions options = {});

  // A prompt that cannot be answered is a UserError before anything is computed; so is what breaks on the
  // way.
  GenerateResult run(std::span<const int32_t> prompt, const GenerateOptions& options);

 private:
  Batcher batcher_;
};

}  // namespace fathom
