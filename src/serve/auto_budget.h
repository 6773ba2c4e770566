// Depth that follows load: the budget of a request that leaves it to the server.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "infer/fathom.h"

namespace fathom {

// How busy the engine is.
struct Load {
  int64_t waiting = 0;       // answers without a place
  double token_seconds = 0;  // recent time between an answer's tokens; 0: not known
  double budget = 1;         // mean of the answers that run, which took that time
};

// Returns the answers that will still wait when the next pass has filled the places. One that came during a
// pass waits for that pass alone.
int64_t without_place(int64_t running, int64_t waiting, int64_t places);

// Returns the largest of `grid` (falling) that the load allows, and none below `floor` (the smallest that is
// not below it). An empty grid: 1.
//
// A token's time grows with the share of the blocks that runs, so the share that meets the target is the
// running answers' times target over time. While an answer waits for a place it is the smallest.
float auto_budget(const std::vector<float>& grid, float floor, double target_seconds, const Load& load);

// The time between tokens over the last some of them, of all answers. Any thread may call.
class TokenTimes {
 public:
  void add(double seconds, int64_t tokens, Moment now);
  // Returns 0 where no token came lately.
  double recent(Moment now) const;

 private:
  mutable std::mutex mutex_;
  double mean_ = 0;
  std::optional<Moment> last_;
};

}  // namespace fathom
