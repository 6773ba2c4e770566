// What a draft leaves out, and what it then costs.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "infer/budgets.h"
#include "infer/draft_length.h"
#include "infer/fathom.h"
#include "infer/speculative_policy.h"
#include "model/model.h"

namespace fathom {

// What a model has to make drafts from.
struct DraftSource {
  const Budgets* budgets = nullptr;          // of its method; null or empty: no drafts by the method
  std::span<const int32_t> harm_order = {};  // measure_harm_order(); empty: no drafts of that kind
};

// How a sequence drafts.
struct Speculation {
  DraftRule rule;  // of drafts by the model
  DraftLengths length;
  int64_t vocab = 0;  // tokens that the model drafts from; 0: all
};
// The kind of drafts; none: whichever pays.
std::optional<DraftKind> draft_kind(const DraftOptions& options, bool calibrated);
// A UserError says what is missing or makes no sense. `budget`: of the output.
Speculation make_speculation(const Model& model, const DraftSource& source, const DraftOptions& options,
                             double budget);

// The last blocks do not run: as many as leave `budget` of all, at least one.
DraftRule exit_draft(const ModelConfig& config, double budget);

inline constexpr int64_t kHarmRows = 96;

// The 2L units, least harm per multiply-add first (skip/harm_order.h), measured on the first `rows` tokens of
// a text: one more than 2L passes over them. No text: a short built-in one. When `cancel` is set, it ends
// with PrepareCancelled.
std::vector<int32_t> measure_harm_order(Context& ctx, const Model& model,
                                        const std::atomic<bool>* cancel = nullptr, std::string_view text = {},
                                        int64_t rows = kHarmRows);
// They are dropped in that order until `budget` of the block multiply-adds is left.
DraftRule harm_order_draft(const ModelConfig& config, std::span<const int32_t> order, double budget);

// What a pass over several rows costs: by the bytes of the weights and their multiply-adds, as one machine
// was measured once. Nothing is timed.
DraftCost pass_cost(const Model& model);
// The same with the cost of a drafting pass: by the bytes of weights that it reads, and a fixed part.
// `budget`: what a rule with thresholds leaves; `vocab`: tokens drafted from, 0: all.
DraftCost draft_cost(const Model& model, const DraftRule& rule, double budget, int64_t vocab = 0);

}  // namespace fathom
