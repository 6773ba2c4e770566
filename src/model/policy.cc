#include "model/policy.h"

#include <array>

#include "ops/mask_rows.h"
#include "ops/rows.h"

namespace fathom {

std::span<const std::string_view> enum_names(SkippedKv) {
  static constexpr std::array<std::string_view, 3> kNames{"project", "copy", "hide"};
  return kNames;
}

Tensor gather_gate(Context& ctx, const Tensor& gate, const RowSet& rows) {
  if (gate.rank() == 2) return gather_rows(ctx, gate, rows);
  const Tensor column = gather_rows(ctx, gate.reshape({gate.dim(0), 1}), rows);
  return column.reshape({column.dim(0)});
}

void SkipPolicy::join(Context& ctx, const UnitInput&, const Decision& decision, const Tensor& branch,
                      Tensor& h, PolicyState&) const {
  if (!branch) return;
  if (decision.masked) {
    add_rows_to(ctx, h, RowSet::all(h.dim(0)), mask_rows(ctx, branch, decision.kept, decision.score));
  } else {
    add_rows_to(ctx, h, decision.kept, branch);
  }
}

}  // namespace fathom
