// How many tokens to draft before the next verification, and from what: a fixed number, or as many as have
// paid so far. The choice depends only on the sequence's own history and on counted costs. Nothing is timed,
// so the machine's load cannot change an answer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace fathom {

// In passes of plain decoding.
struct DraftCost {
  double draft = 0.5;  // a drafting pass: draft_cost()
  // A pass over several rows, here about that of Q8_0; pass_cost() has a model's. Products take four rows at
  // a time: one or two rows take what memory takes, more what their multiply-adds take.
  double row = 0.1;                               // each further row, beside the products
  double first_four = 1.19, further_four = 0.94;  // products of three or four rows, of each further four
  double pass(int64_t rows) const;
};

inline constexpr double kDraftStake = 0.04;  // of each token: what trying may cost

// Of drafts that a part of the model makes.
class DraftLength {
 public:
  static DraftLength fixed(int64_t drafts) { return DraftLength(drafts, false, {}, 0); }
  // Spends at most `stake` more than plain decoding would have, however short the text is: a round begins
  // only when `stake` of the plain tokens so far and the passes that earlier rounds saved cover its cost.
  static DraftLength adaptive(DraftCost cost, double stake = kDraftStake) {
    return DraftLength(0, true, cost, stake);
  }

  int64_t next(int64_t most) const;      // 0: decode plainly
  double promise(int64_t drafts) const;  // tokens a pass, by the chance of drafts so far
  void plain();                          // a token was decoded plainly
  void round(int64_t drafted, int64_t accepted);

 private:
  DraftLength(int64_t drafts, bool adapts, DraftCost cost, double stake)
      : drafts_(drafts), adapts_(adapts), cost_(cost), stake_(stake) {}
  double round_cost(int64_t drafts) const;
  int64_t best(int64_t most) const;

  int64_t drafts_;
  bool adapts_;
  DraftCost cost_;
  double stake_;
  double saved_ = 0;                   // passes
  double tried_ = 2, accepted_ = 1.6;  // drafts that were judged, older ones counting less
  int64_t plain_ = 0, wait_ = 0;       // plain tokens since the last round, and before the next try
};

// Of drafts that are looked up (lookup.h): they cost rows of the verification and nothing else. How likely
// they stay depends on how many tokens the place has in common with the text's end: `match`, which grows by
// one with every draft that stays.
class LookupLength {
 public:
  static LookupLength fixed(int64_t drafts) { return LookupLength(drafts, false, {}, 0); }
  // Spends at most `stake` of each token and kCredit passes more than plain decoding would have.
  static LookupLength adaptive(DraftCost cost, double stake = kDraftStake) {
    return LookupLength(0, true, cost, stake);
  }
  static constexpr double kCredit = 0.5;

  int64_t next(int64_t match, int64_t most) const;  // 0: decode plainly
  double promise(int64_t match, int64_t drafts) const;
  void plain();
  void round(int64_t match, int64_t drafted, int64_t accepted);

 private:
  static constexpr size_t kLengths = 7;  // of matches, roughly: 2, 3, 4, 6, 9, 15 and more
  struct Chance {
    double tried, accepted;  // older ones counting less
  };
  LookupLength(int64_t drafts, bool adapts, DraftCost cost, double stake);
  static size_t index_of(int64_t match);
  double chance(int64_t match) const;

  int64_t drafts_;
  bool adapts_;
  DraftCost cost_;
  double stake_;
  double saved_ = kCredit;  // passes
  std::array<Chance, kLengths> chances_;
};

// What a sequence drafts from: the model, its own text, or whichever promises more.
struct DraftLengths {
  std::optional<DraftLength> model;
  std::optional<LookupLength> lookup;

  DraftLengths() = default;
  DraftLengths(DraftLength of_model) : model(of_model) {}      // NOLINT(google-explicit-constructor)
  DraftLengths(LookupLength of_lookup) : lookup(of_lookup) {}  // NOLINT(google-explicit-constructor)

  struct Choice {
    int64_t drafts = 0;  // 0: decode plainly
    bool looked_up = false;
  };
  Choice next(int64_t match, int64_t most) const;  // match: 0 where nothing is found
  void plain();
};

}  // namespace fathom
