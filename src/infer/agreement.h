// How far a drafted row did what the verifying policy would have done: block by block, where the decisions
// are.
#pragma once

#include <span>
#include <vector>

#include "model/policy.h"

namespace fathom {

// A row of a pass that drafts. It cannot agree for longer than `limit` blocks: there its keys end to be
// right.
struct DraftRow {
  int32_t row = 0, limit = 0;
};

// Made for one pass; its tensors live until the pass ends.
class Agreement {
 public:
  void begin(Context& ctx, std::span<const DraftRow> drafts, int64_t rows, int64_t width);

  // At each unit: who would have run under the verifying policy, and who ran.
  void unit(Context& ctx, const RowSet& verifier, const RowSet& ran);
  // A unit that everybody runs but no drafted row.
  void part() { over_ = true; }
  // After each block, with the residual stream behind it.
  void block(Context& ctx, int64_t layer, const Tensor& h);
  // After the last: of each draft the number of blocks in which it agreed.
  std::span<const int32_t> blocks(Context& ctx);

  // f32 (rows, width): of each draft the state behind the last of those blocks.
  const Tensor& states() const { return states_; }

 private:
  void split(Context& ctx);

  std::vector<DraftRow> drafts_;
  std::vector<int32_t> blocks_;
  std::vector<float> host_;  // (rows)
  int64_t rows_ = 0;
  int64_t common_ = 0;  // blocks in which all drafts agreed
  bool over_ = false;   // none does any longer
  bool split_ = false;  // they differ, and the tensors hold, f32 (rows):
  Tensor agrees_;       // 1 where a draft still agrees
  Tensor counts_;       // the blocks in which it did
  Tensor states_;
};

}  // namespace fathom
