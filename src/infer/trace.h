// What every row ran and why, copied out while the passes make it: for shades, pictures and tests. Nobody
// pays for it who does not ask: the model is then asked about by its own policy.
#pragma once

#include <vector>

#include "model/policy.h"

namespace fathom {

struct TraceRow {
  int32_t token = 0, position = 0, sequence = 0;
};

// Rows in the order they ran, those of a sequence that was cut back and fed again more than once.
class Trace {
 public:
  size_t rows() const { return rows_.size(); }
  int64_t units() const { return units_; }  // 2L: attention and FFN of layer 0, of layer 1, …
  const TraceRow& row(size_t row) const { return rows_[row]; }
  bool ran(size_t row, int64_t unit) const { return ran_[at(row, unit)] != 0; }
  // What the method decided on; NaN where it rates nothing (a fixed list of units, units it leaves alone).
  float score(size_t row, int64_t unit) const { return scores_[at(row, unit)]; }
  double depth(size_t row) const;  // in layers: units run / 2
  void clear();

 private:
  friend class RecordingPolicy;
  size_t at(size_t row, int64_t unit) const {
    return row * static_cast<size_t>(units_) + static_cast<size_t>(unit);
  }

  int64_t units_ = 0;
  std::vector<TraceRow> rows_;
  std::vector<uint8_t> ran_;   // (rows, units)
  std::vector<float> scores_;  // (rows, units)
  size_t pass_ = 0;            // first row of the newest pass
};

// Writes into a trace what another policy decides. On a GPU each unit's decision is waited for.
class RecordingPolicy final : public ForwardingPolicy {
 public:
  RecordingPolicy(const SkipPolicy& inner, Trace& trace) : ForwardingPolicy(inner), trace_(trace) {}
  void begin(Context& ctx, const Model& model, const Batch& batch, PolicyState& state) const override;
  Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const override;

 private:
  Trace& trace_;
};

}  // namespace fathom
