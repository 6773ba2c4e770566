#include "infer/agreement.h"

#include <algorithm>

#include "ops/rows/assign.h"
#include "ops/rows/fill.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/merge_rows.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/select_rows.h"

namespace fathom {

void Agreement::begin(Context& ctx, std::span<const DraftRow> drafts, int64_t rows, int64_t width) {
  drafts_.assign(drafts.begin(), drafts.end());
  rows_ = rows;
  common_ = 0;
  const auto ended = [](const DraftRow& draft) { return draft.limit == 0; };
  over_ = std::all_of(drafts_.begin(), drafts_.end(), ended);
  split_ = false;
  if (over_) return;
  agrees_ = Tensor::empty(ctx, DType::kF32, {rows});
  counts_ = Tensor::empty(ctx, DType::kF32, {rows});
  states_ = Tensor::empty(ctx, DType::kF32, {rows, width});
  if (std::any_of(drafts_.begin(), drafts_.end(), ended)) split(ctx);
}

// From here on each draft for itself: those whose limit is not reached yet.
void Agreement::split(Context& ctx) {
  if (split_) return;
  split_ = true;
  host_.assign(static_cast<size_t>(rows_), 0.0f);
  for (const DraftRow& draft : drafts_)
    host_[static_cast<size_t>(draft.row)] = draft.limit > common_ ? 1.0f : 0.0f;
  assign(ctx, agrees_, Tensor::from(ctx, host_, {rows_}));
  for (const DraftRow& draft : drafts_)
    host_[static_cast<size_t>(draft.row)] = static_cast<float>(std::min<int64_t>(draft.limit, common_));
  assign(ctx, counts_, Tensor::from(ctx, host_, {rows_}));
}

void Agreement::unit(Context& ctx, const RowSet& verifier, const RowSet& ran) {
  if (over_ || (verifier.is_all() && ran.is_all()) || (verifier.is_none() && ran.is_none())) return;
  split(ctx);
  const Tensor difference =
      add(ctx, row_mask(ctx, verifier, rows_), affine(ctx, row_mask(ctx, ran, rows_), -1.0f, 0.0f));
  const Tensor same = affine(ctx, apply(ctx, Unary::kAbs, difference), -1.0f, 1.0f);
  assign(ctx, agrees_, multiply(ctx, agrees_, same));
}

void Agreement::block(Context& ctx, int64_t layer, const Tensor& h) {
  if (over_) return;
  const auto here = [&](const DraftRow& draft) { return draft.limit == layer + 1; };
  const bool any_ends = std::any_of(drafts_.begin(), drafts_.end(), here);
  if (!split_) {
    common_ = layer + 1;
    assign(ctx, states_, h);
    over_ = std::all_of(drafts_.begin(), drafts_.end(), here);
    if (any_ends && !over_) split(ctx);
    return;
  }
  const RowSet some = select_rows(ctx, agrees_, Compare::kAbove, scalar(ctx, 0.5f));
  assign(ctx, states_, merge_rows(ctx, states_, some, gather_rows(ctx, h, some)));
  assign(ctx, counts_, add(ctx, counts_, agrees_));
  if (!any_ends) return;
  host_.assign(static_cast<size_t>(rows_), 1.0f);
  for (const DraftRow& draft : drafts_) {
    if (here(draft)) host_[static_cast<size_t>(draft.row)] = 0.0f;
  }
  assign(ctx, agrees_, multiply(ctx, agrees_, Tensor::from(ctx, host_, {rows_})));
}

std::span<const int32_t> Agreement::blocks(Context& ctx) {
  blocks_.clear();
  if (split_) {
    host_.resize(static_cast<size_t>(rows_));
    copy_to_host(ctx, counts_, host_);
  }
  for (const DraftRow& draft : drafts_) {
    const auto agreed = split_ ? static_cast<int64_t>(host_[static_cast<size_t>(draft.row)]) : common_;
    blocks_.push_back(static_cast<int32_t>(std::min<int64_t>(draft.limit, agreed)));
  }
  return blocks_;
}

}  // namespace fathom
