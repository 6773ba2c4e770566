// Counts the blocks in which a drafted row ran the units that the verifying policy would have run.
// The count stays on the device, where the decisions are.
#pragma once

#include <span>
#include <vector>

#include "model/policy.h"

namespace fathom {

// A drafted row of a pass. Its keys are right in the first `limit` blocks only, so it agrees for at most
// `limit` blocks.
struct DraftRow {
  int32_t row = 0, limit = 0;
};

// Made for one pass; its tensors live until the pass ends.
class Agreement {
 public:
  void begin(Context& ctx, std::span<const DraftRow> drafts, int64_t rows, int64_t width);

  // Call it at each unit: the rows that the verifying policy would have run, and the rows that ran.
  void unit(Context& ctx, const RowSet& verifier, const RowSet& ran);
  // Call it at a unit that the verifying policy runs for every row and no drafted row runs.
  void part() { over_ = true; }
  // Call it after each block, with the residual stream that leaves the block.
  void block(Context& ctx, int64_t layer, const Tensor& h);
  // Call it after the last block. Returns for each draft the number of blocks in which it agreed.
  std::span<const int32_t> blocks(Context& ctx);

  // f32 (rows, width): for each draft the residual stream after the last block in which it agreed.
  const Tensor& states() const { return states_; }

 private:
  void split(Context& ctx);

  std::vector<DraftRow> drafts_;
  std::vector<int32_t> blocks_;
  std::vector<float> host_;  // (rows)
  int64_t rows_ = 0;
  int64_t common_ = 0;  // blocks in which all drafts agreed
  bool over_ = false;   // no draft agrees any longer
  bool split_ = false;  // drafts differ, and these tensors hold, f32 (rows):
  Tensor agrees_;       // 1 where a draft still agrees
  Tensor counts_;       // the blocks in which it agreed
  Tensor states_;
};

}  // namespace fathom
