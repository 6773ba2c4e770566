// One sequence that speculates, on a feeder that it may share with others. It says which rows the next pass
// runs for it, and takes that pass's results. The tokens are the Speculator's, what the rows run is the
// SpeculativeState's.
#pragma once

#include "infer/draft.h"
#include "infer/feeder.h"
#include "infer/speculator.h"

namespace fathom {

class Drafter {
 public:
  // Where the model drafts, the feeder's policy is a SpeculativePolicy, or this is a UserError. `how`
  // outlives the drafter. `mask`: the answer's, or null.
  Drafter(Feeder& feeder, const Speculation& how, const AnswerOptions& options, int64_t prompt_tokens,
          TokenMask* mask = nullptr);
  ~Drafter() { stop(); }
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;

  // Starts a round unless one is under way. The cache's `sequence` holds all of `history` but the last token
  // and has room for that token and `most` more rows. Returns false when this token is to be decoded plainly.
  bool start(int32_t sequence, std::span<const int32_t> history, int64_t most);
  Phase phase() const { return speculator_.phase(); }  // kPlain: no round is under way

  // The rows of the next pass.
  Feed feed() const;
  // What the pass gave: logits (rows of feed(), vocab, or fewer columns where all of the pass's rows are
  // drafts from a part of it); the trace's rows from `row` on are those, unless none are recorded. Returns
  // true when the round is over: the cache then holds the history and all of the tokens but the last. Logits
  // that no token can be drawn from end the round with a UserError.
  bool take(const Tensor& logits, const Trace& trace, size_t row);
  std::span<const int32_t> tokens() const { return tokens_; }  // that the round gave
  double depth(size_t token) const { return depths_[token]; }  // layers run by the row that gave it
  std::span<const uint8_t> units(size_t token) const;          // (2L): the units that it ran

  // Forgets the round, for which start() may be asked again. Its rows are left for the caller to truncate.
  void stop();

  const SpeculationCounts& counts() const { return speculator_.counts(); }

 private:
  bool drafts_by_model() const { return phase() == Phase::kDraft || speculator_.drafting_passes() > 0; }
  void take_draft(const Trace& trace, size_t row);
  void take_verified(const Trace& trace, size_t row);

  Feeder& feeder_;
  SpeculativeState* state_;  // null: the model makes no drafts
  const Speculation& how_;
  Speculator speculator_;
  int32_t sequence_ = 0;
  int64_t first_ = 0;  // position of its first row
  // since_: Feeder::dense_passes() at which a dense model, at one token a pass, would reach this round.
  // lead_: how many passes that is ahead of the sequence's tokens.
  int64_t since_ = 0;
  std::optional<int64_t> lead_;
  std::vector<float> host_;   // logits
  std::vector<uint8_t> ran_;  // (drafts, 2L): the units that each draft ran
  std::vector<int32_t> tokens_;
  std::vector<double> depths_;
  std::vector<uint8_t> units_;  // (tokens, 2L): the units that the row of each ran
  size_t units_of_a_row_ = 0;
};

}  // namespace fathom
