// The requests of one item as a tree: what they have in common is fed once.
#pragma once

#include <cstdint>
#include <span>

#include "eval/encode.h"

namespace fathom {

// At position `row` the log-probability of `token` is asked for by request `request`.
struct Target {
  int64_t row = 0;
  int32_t token = 0;
  size_t request = 0;
};

// A path from the tree's root to a leaf. Its targets are at the rows that no path before it has; ascending.
struct Path {
  std::vector<int32_t> tokens;
  std::vector<Target> targets;
};

// In an order in which a sequence that goes back to where it leaves the path before feeds every row of the
// tree exactly once. `apart`: a path for each request, nothing shared.
std::vector<Path> plan_paths(std::span<const TokenRequest> requests, bool apart = false);

}  // namespace fathom
