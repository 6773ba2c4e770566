#include "serve/auto_budget.h"

#include <algorithm>
#include <cmath>

namespace fathom {
namespace {

// Tokens that the mean looks back on: more than one prompt's pass, in which every answer waits, so that two
// requests that come close together are no load.
constexpr double kTokens = 256;
constexpr auto kStale = std::chrono::seconds(2);  // after which it says nothing

}  // namespace

int64_t without_place(int64_t running, int64_t waiting, int64_t places) {
  return std::max<int64_t>(0, running + waiting - places);
}

float auto_budget(const std::vector<float>& grid, float floor, double target_seconds, const Load& load) {
  // At full depth a token would take token_seconds / budget. Compared with that, not with token_seconds:
  // answers that are fast because they skip are no reason to run everything.
  double wanted = 1;
  if (load.token_seconds > 0) wanted = load.budget * target_seconds / load.token_seconds;
  if (load.waiting > 0) wanted = 0;  // places are what is short: every one of them must be free sooner
  float least = 1;                   // the smallest that may be chosen
  for (const float budget : grid) {
    if (budget < floor) continue;
    if (budget <= static_cast<float>(wanted)) return budget;
    least = std::min(least, budget);
  }
  return least;
}

void TokenTimes::add(double seconds, int64_t tokens, Moment now) {
  if (tokens <= 0) return;
  const double one = seconds / static_cast<double>(tokens);
  const std::lock_guard lock(mutex_);
  const bool fresh = last_ && now - *last_ < kStale;
  const double share = fresh ? 1 - std::pow(1 - 1 / kTokens, static_cast<double>(tokens)) : 1;
  mean_ += share * (one - mean_);
  last_ = now;
}

double TokenTimes::recent(Moment now) const {
  const std::lock_guard lock(mutex_);
  return last_ && now - *last_ < kStale ? mean_ : 0;
}

}  // namespace fathom
