// How many tokens to draft before the next verification: a fixed number, or as many as have paid so far. The
// choice depends only on the sequence's own history and on counted costs. Nothing is timed, so the machine's
// load cannot change an answer.
#pragma once

#include <cstdint>

namespace fathom {

// In passes of plain decoding.
struct DraftCost {
  double draft = 0.5;  // a drafting pass: draft_cost()
  double row = 0.2;    // each further row of a pass (Q8_0: 0.18 for the second, 0.24 each for four)
};

class DraftLength {
 public:
  static DraftLength fixed(int64_t drafts) { return DraftLength(drafts, false, {}); }
  // Spends at most 4 % more than plain decoding would have, however short the text is: rounds are paid from
  // what plain tokens and earlier rounds have laid by.
  static DraftLength adaptive(DraftCost cost) { return DraftLength(0, true, cost); }

  int64_t next(int64_t most) const;  // 0: decode plainly
  void plain();                      // a token was decoded plainly
  void round(int64_t drafted, int64_t accepted);

 private:
  DraftLength(int64_t drafts, bool adapts, DraftCost cost) : drafts_(drafts), adapts_(adapts), cost_(cost) {}
  double round_cost(int64_t drafts) const;
  int64_t best(int64_t most) const;

  int64_t drafts_;
  bool adapts_;
  DraftCost cost_;
  double saved_ = 0;                   // passes
  double tried_ = 2, accepted_ = 1.6;  // drafts that were judged, older ones counting less
  int64_t plain_ = 0, wait_ = 0;       // plain tokens since the last round, and before the next try
};

}  // namespace fathom
