// What tests of scores share.
#pragma once

#include <numeric>
#include <vector>

#include "eval/batch_score.h"

namespace fathom {

inline std::vector<size_t> in_order(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

inline std::vector<double> logprobs_of(const std::vector<std::vector<TextScore>>& scores) {
  std::vector<double> all;
  for (const auto& item : scores) {
    for (const TextScore& score : item) all.push_back(score.logprob);
  }
  return all;
}

}  // namespace fathom
