#include "infer/draft_length.h"

#include <algorithm>

namespace fathom {
namespace {

constexpr double kStake = 0.04;   // of each token: what trying may cost
constexpr double kGain = 1.03;    // what a round must promise: its cost is an estimate
constexpr double kMostSaved = 8;  // no run of luck pays for a long run of bad luck
constexpr double kMemory = 0.9;   // of a round in the next one's estimate
constexpr int64_t kFirstWait = 32, kLongestWait = 1024;

}  // namespace

double DraftLength::round_cost(int64_t drafts) const {
  return 1 + static_cast<double>(drafts) * (cost_.draft + cost_.row);
}

// With chance a for each draft, K of them give Σ_{j ≤ K} a^j tokens. -> the K that gives most for its cost; 0
// when none gives more than plain decoding.
int64_t DraftLength::best(int64_t most) const {
  const double chance = accepted_ / tried_;
  double tokens = 1, power = 1, most_per_pass = kGain;
  int64_t best = 0;
  for (int64_t drafts = 1; drafts <= most; ++drafts) {
    power *= chance;
    tokens += power;
    const double per_pass = tokens / round_cost(drafts);
    if (per_pass > most_per_pass) {
      most_per_pass = per_pass;
      best = drafts;
    }
  }
  return best;
}

int64_t DraftLength::next(int64_t most) const {
  if (!adapts_) return std::min(drafts_, most);
  if (plain_ < wait_) return 0;
  const auto affordable = static_cast<int64_t>(saved_ / (cost_.draft + cost_.row));
  most = std::min(most, affordable);
  return std::min(most, std::max<int64_t>(1, best(most)));
}

void DraftLength::plain() {
  ++plain_;
  saved_ = std::min(kMostSaved, saved_ + kStake);
}

void DraftLength::round(int64_t drafted, int64_t accepted) {
  const auto tokens = static_cast<double>(accepted + 1);
  saved_ = std::min(kMostSaved, saved_ + tokens * (1 + kStake) - round_cost(drafted));
  accepted_ = kMemory * accepted_ + static_cast<double>(accepted);
  tried_ = kMemory * tried_ + static_cast<double>(accepted + (accepted < drafted ? 1 : 0));
  plain_ = 0;
  // Where it does not pay it is tried again, ever less often.
  const bool pays = best(drafted + 1) > 0;
  wait_ = pays ? 0 : std::clamp(2 * wait_, kFirstWait, kLongestWait);
}

}  // namespace fathom
