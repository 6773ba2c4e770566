// What nested lists of units cost each row: KL(full depth ‖ with the list).
#pragma once

#include <functional>

#include "skip/method.h"

namespace fathom {

struct ListLosses {
  std::vector<float> x;                 // (rows, width): the normalised input of the first unit of `layer`
  std::vector<std::vector<double>> kl;  // (lists, rows)
  int64_t rows() const { return kl.empty() ? 0 : std::ssize(kl.front()); }
};

struct ListMeasure {
  const Model& model;
  int64_t layer;                   // the units before it are on no list
  std::span<const uint8_t> group;  // (2L): the first list that leaves the unit out, from 1; 0: none does
  int lists;
  const std::atomic<bool>* cancel = nullptr;  // when set, it ends with PrepareCancelled
};

// Runs each batch at full depth and with each list, all rows alike. `take` gets what was measured of a batch:
// of its rows that want logits.
void measure_lists(Context& ctx, const ListMeasure& measure, std::span<const Batch> batches,
                   const std::function<void(const ListLosses&)>& take);

}  // namespace fathom
