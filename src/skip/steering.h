// What steered thresholds (ops/rows/steer_rows.h) remember of each sequence: which rows ran, by position and
// unit.
#pragma once

#include <vector>

#include "model/batch.h"

namespace fathom {

class SteeringHistory {
 public:
  void set_size(int64_t sequences, int64_t units) { sequences_ = sequences, units_ = units; }
  // Room for the rows of a pass.
  void make_room(Context& ctx, const Batch& batch);
  // As PolicyState's. There is no truncate(): rows that come again take the place of those that were there.
  void fork(Context& ctx, int32_t from, int32_t to, int64_t position);
  void forget(Context& ctx);  // all sequences
  Tensor& blocks() { return blocks_; }

 private:
  int64_t sequences_ = 0, units_ = 0;
  Tensor blocks_;               // as steered_thresholds' history; undefined before the first pass
  std::vector<BatchRow> room_;  // for rows_on_host
};

}  // namespace fathom
