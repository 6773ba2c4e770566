// Which units the rows of a pass ran. Marks stay where the decisions are and are read once, after the pass;
// units that all rows run cost nothing.
#pragma once

#include <vector>

#include "model/policy.h"

namespace fathom {

class UnitTrace {
 public:
  // For whoever runs the pass: before the first block (tensors live until the pass ends), at each unit that
  // ran, and after the last.
  void begin(Context& ctx, int64_t rows, int64_t units);
  void add(Context& ctx, int64_t unit, const RowSet& kept);
  void end(Context& ctx);

  // Of the last pass.
  double depth(int64_t row) const {  // layers run, as units / 2
    return units_run_[static_cast<size_t>(row)] / 2.0;
  }
  const std::vector<int64_t>& rows_run() const { return rows_run_; }  // (units): rows that ran each

 private:
  Tensor marks_;                 // f32 (units, rows): 1 where the row ran, for the units of marked_
  std::vector<int64_t> marked_;  // units that some rows ran and others may not have
  std::vector<float> host_;      // marks_, after the pass
  std::vector<int32_t> units_run_;
  std::vector<int64_t> rows_run_;
};

class TracingPolicy final : public ForwardingPolicy {
 public:
  TracingPolicy(const SkipPolicy& inner, UnitTrace& trace) : ForwardingPolicy(inner), trace_(trace) {}
  void begin(Context& ctx, const Model& model, const Batch& batch, PolicyState& state) const override {
    trace_.begin(ctx, batch.rows(), 2 * model.config.layers);
    ForwardingPolicy::begin(ctx, model, batch, state);
  }
  void join(Context& ctx, const UnitInput& input, const Decision& decision, const Tensor& branch, Tensor& h,
            PolicyState& state) const override {
    if (branch) trace_.add(ctx, input.index(), decision.kept);
    ForwardingPolicy::join(ctx, input, decision, branch, h, state);
  }

 private:
  UnitTrace& trace_;
};

}  // namespace fathom
