#include "infer/draft_length.h"

#include <algorithm>

namespace fathom {
namespace {

constexpr double kGain = 1.03;    // what a round must promise: its cost is an estimate
constexpr double kMostSaved = 8;  // no run of luck pays for a long run of bad luck
constexpr double kMemory = 0.9;   // of a round in the next one's estimate
constexpr int64_t kFirstWait = 32, kLongestWait = 1024;

// Of drafts that are looked up: how likely they stay before any was judged, and how many judged ones that
// counts as. (SmolLM2's answers, editing, code, lists, prose and chat together.)
constexpr double kPriorWeight = 4;
constexpr double kLookupMemory = 0.95;  // of a draft in the next one's estimate
constexpr std::array<double, 7> kPriors{0.45, 0.6, 0.66, 0.74, 0.8, 0.9, 0.93};
constexpr std::array<int64_t, 6> kLengthEnds{2, 3, 4, 6, 9, 15};

}  // namespace

double DraftCost::pass(int64_t rows) const {
  const auto fours = static_cast<double>((rows + 3) / 4);
  return (rows <= 2 ? 1 : first_four + (fours - 1) * further_four) + row * static_cast<double>(rows - 1);
}

double DraftLength::round_cost(int64_t drafts) const {
  return static_cast<double>(drafts) * cost_.draft + cost_.pass(drafts + 1);
}

// With chance a for each draft, K of them give Σ_{j ≤ K} a^j tokens.
double DraftLength::promise(int64_t drafts) const {
  double tokens = 1, power = 1;
  for (int64_t i = 0; i < drafts; ++i) {
    power *= accepted_ / tried_;
    tokens += power;
  }
  return tokens / round_cost(drafts);
}

// Returns the number that gives most for its cost; 0 when none gives more than plain decoding.
int64_t DraftLength::best(int64_t most) const {
  double most_per_pass = kGain;
  int64_t best = 0;
  for (int64_t drafts = 1; drafts <= most; ++drafts) {
    const double per_pass = promise(drafts);
    if (per_pass <= most_per_pass) continue;
    most_per_pass = per_pass;
    best = drafts;
  }
  return best;
}

int64_t DraftLength::next(int64_t most) const {
  if (!adapts_) return std::min(drafts_, most);
  if (plain_ < wait_) return 0;
  while (most > 0 && round_cost(most) - 1 > saved_) --most;
  return std::min(most, std::max<int64_t>(1, best(most)));
}

void DraftLength::plain() {
  ++plain_;
  saved_ = std::min(kMostSaved, saved_ + stake_);
}

void DraftLength::round(int64_t drafted, int64_t accepted) {
  const auto tokens = static_cast<double>(accepted + 1);
  saved_ = std::min(kMostSaved, saved_ + tokens * (1 + stake_) - round_cost(drafted));
  accepted_ = kMemory * accepted_ + static_cast<double>(accepted);
  tried_ = kMemory * tried_ + static_cast<double>(accepted + (accepted < drafted ? 1 : 0));
  plain_ = 0;
  // Where it does not pay it is tried again, ever less often.
  const bool pays = best(drafted + 1) > 0;
  wait_ = pays ? 0 : std::clamp(2 * wait_, kFirstWait, kLongestWait);
}

LookupLength::LookupLength(int64_t drafts, bool adapts, DraftCost cost, double stake)
    : drafts_(drafts), adapts_(adapts), cost_(cost), stake_(stake) {
  static_assert(kPriors.size() == kLengths && kLengthEnds.size() + 1 == kLengths);
  for (size_t i = 0; i < kLengths; ++i) chances_[i] = {kPriorWeight, kPriorWeight * kPriors[i]};
}

size_t LookupLength::index_of(int64_t match) {
  const auto at = std::lower_bound(kLengthEnds.begin(), kLengthEnds.end(), match);
  return static_cast<size_t>(at - kLengthEnds.begin());
}

double LookupLength::chance(int64_t match) const {
  const Chance& of = chances_[index_of(match)];
  return of.accepted / of.tried;
}

double LookupLength::promise(int64_t match, int64_t drafts) const {
  double tokens = 1, power = 1;
  for (int64_t i = 0; i < drafts; ++i) {
    power *= chance(match + i);
    tokens += power;
  }
  return tokens / cost_.pass(drafts + 1);
}

int64_t LookupLength::next(int64_t match, int64_t most) const {
  if (!adapts_) return std::min(drafts_, most);
  int64_t best = 0;
  double most_per_pass = kGain;
  for (int64_t drafts = 1; drafts <= most && cost_.pass(drafts + 1) - 1 <= saved_; ++drafts) {
    const double per_pass = promise(match, drafts);
    if (per_pass <= most_per_pass) continue;
    most_per_pass = per_pass;
    best = drafts;
  }
  return best;
}

void LookupLength::plain() {
  saved_ = std::min(kMostSaved, saved_ + stake_);
}

void LookupLength::round(int64_t match, int64_t drafted, int64_t accepted) {
  const auto tokens = static_cast<double>(accepted + 1);
  saved_ = std::min(kMostSaved, saved_ + tokens * (1 + stake_) - cost_.pass(drafted + 1));
  for (int64_t i = 0; i < std::min(drafted, accepted + 1); ++i) {
    Chance& of = chances_[index_of(match + i)];
    of.tried = kLookupMemory * of.tried + 1;
    of.accepted = kLookupMemory * of.accepted + (i < accepted ? 1 : 0);
  }
}

DraftLengths::Choice DraftLengths::next(int64_t match, int64_t most) const {
  const int64_t found = lookup && match > 0 ? lookup->next(match, most) : 0;
  const int64_t made = model ? model->next(most) : 0;
  const bool looked_up = found > 0 && (made <= 0 || lookup->promise(match, found) >= model->promise(made));
  return {looked_up ? found : made, looked_up};
}

void DraftLengths::plain() {
  if (model) model->plain();
  if (lookup) lookup->plain();
}

}  // namespace fathom
