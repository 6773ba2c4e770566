// What every row ran and why: for shades, pictures, statistics and tests. The decisions stay on
// the device until the pass ends and are then read once. Without a trace there is no cost.
#pragma once

#include <vector>

#include "model/policy.h"

namespace fathom {

struct TraceRow {
  int32_t token = 0, position = 0, sequence = 0;
};

// Rows in the order they ran. Rows that were taken back and fed again appear more than once.
class Trace {
 public:
  enum class Scores : uint8_t { kKept, kLeftOut };
  explicit Trace(Scores scores = Scores::kKept) : keeps_scores_(scores == Scores::kKept) {}

  size_t rows() const { return rows_.size(); }
  int64_t units() const { return units_; }  // 2L: attention and FFN of layer 0, of layer 1, …
  const TraceRow& row(size_t row) const { return rows_[row]; }
  bool ran(size_t row, int64_t unit) const { return ran_[at(row, unit)] != 0; }
  // What the method decided on; NaN where it rates nothing (a fixed list of units, units it leaves alone).
  float score(size_t row, int64_t unit) const { return scores_[at(row, unit)]; }
  std::span<const uint8_t> units_of(size_t row) const {  // (2L), 1: ran
    return std::span(ran_).subspan(at(row, 0), static_cast<size_t>(units_));
  }
  double depth(size_t row) const;  // in layers: units run / 2
  void clear();

 private:
  friend class TracingPolicy;
  size_t at(size_t row, int64_t unit) const {
    return row * static_cast<size_t>(units_) + static_cast<size_t>(unit);
  }
  void begin(Context& ctx, const Batch& batch, int64_t units);
  void add(Context& ctx, int64_t unit, const Decision& decision);
  void end(Context& ctx);

  const bool keeps_scores_;
  int64_t units_ = 0;
  std::vector<TraceRow> rows_;
  std::vector<uint8_t> ran_;   // (rows, units)
  std::vector<float> scores_;  // (rows, units), where they are kept

  // Of the pass that runs.
  size_t first_ = 0;                     // its first row
  Tensor marks_, ratings_;               // f32 (units, rows), for the units of marked_ and rated_
  std::vector<int64_t> marked_, rated_;  // units that only some rows ran; units that were scored
  std::vector<float> host_;
};

// Writes into a trace what another policy decides.
class TracingPolicy final : public ForwardingPolicy {
 public:
  TracingPolicy(const SkipPolicy& inner, Trace& trace) : ForwardingPolicy(inner), trace_(trace) {}
  void begin(Context& ctx, const Model& model, const Batch& batch, PolicyState& state) const override;
  Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const override;
  void after_block(Context& ctx, const UnitInput& input, Tensor& h, PolicyState& state) const override;

 private:
  Trace& trace_;
};

}  // namespace fathom
