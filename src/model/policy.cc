#include "model/policy.h"

#include <array>

#include "base/format.h"
#include "ops/rows/add_rows.h"
#include "ops/rows/mask_rows.h"

namespace fathom {

std::span<const std::string_view> enum_names(SkippedKv) {
  static constexpr std::array<std::string_view, 3> kNames{"project", "copy", "hide"};
  return kNames;
}

void PolicyState::set_thresholds(Context&, int32_t sequence, std::span<const float> thresholds) {
  fail("sequence {} was given {} thresholds, but this policy has no thresholds to set", sequence,
       thresholds.size());
}

void add_branch(Context& ctx, const Decision& decision, const Tensor& branch, const Tensor& score,
                Tensor& h) {
  if (decision.masked) {
    add_rows_to(ctx, h, RowSet::all(h.dim(0)), mask_rows(ctx, branch, decision.kept, score));
  } else {
    add_rows_to(ctx, h, decision.kept, branch, score);
  }
}

void SkipPolicy::join(Context& ctx, const UnitInput&, const Decision& decision, const Tensor& branch,
                      Tensor& h, PolicyState&) const {
  if (branch) add_branch(ctx, decision, branch, decision.score, h);
}

}  // namespace fathom
