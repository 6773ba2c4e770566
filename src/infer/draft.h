// What a draft leaves out, and what it then costs.
#pragma once

#include <span>
#include <string_view>

#include "infer/draft_length.h"
#include "infer/speculative_policy.h"
#include "model/model.h"

namespace fathom {

enum class DraftKind : uint8_t {
  kMethod,     // the skipping method at a smaller budget
  kHarmOrder,  // the same units for every row, those that matter least
  kExit,       // the last blocks
};
std::span<const std::string_view> enum_names(DraftKind);  // "method", "harm_order", "exit"

// The last blocks do not run: as many as leave `budget` of all, at least one.
DraftRule exit_draft(const ModelConfig& config, double budget);

// Units are dropped in harm order (skip/harm_order.h) until `budget` of the block multiply-adds is left. The
// order is measured here, on a short text of our own: a few dozen passes over a hundred rows.
DraftRule harm_order_draft(Context& ctx, const Model& model, double budget);

// By the bytes of weights that a drafting pass reads. `budget`: what a rule with thresholds leaves.
DraftCost draft_cost(const Model& model, const DraftRule& rule, double budget);

}  // namespace fathom
