#include "infer/trace.h"

#include <algorithm>
#include <cmath>

#include "ops/rows/assign.h"
#include "ops/rows/select_rows.h"

namespace fathom {

double Trace::depth(size_t row) const {
  const auto begin = ran_.begin() + static_cast<ptrdiff_t>(at(row, 0));
  return static_cast<double>(std::count(begin, begin + units_, 1)) / 2;
}

void Trace::clear() {
  rows_.clear();
  ran_.clear();
  scores_.clear();
}

void Trace::begin(Context& ctx, const Batch& batch, int64_t units) {
  units_ = units;
  first_ = rows_.size();
  std::vector<BatchRow> room;
  for (const BatchRow& row : rows_on_host(ctx, batch, room))
    rows_.push_back({row.token, row.position, row.sequence});
  ran_.resize(at(rows_.size(), 0), 0);
  marked_.clear();
  rated_.clear();
  marks_ = Tensor::empty(ctx, DType::kF32, {units, batch.rows()});
  if (!keeps_scores_) return;
  scores_.resize(at(rows_.size(), 0), NAN);
  ratings_ = Tensor::empty(ctx, DType::kF32, {units, batch.rows()});
}

void Trace::add(Context& ctx, int64_t unit, const Decision& decision) {
  const int64_t rows = marks_.dim(1);
  if (decision.kept.is_all()) {
    for (size_t r = first_; r < rows_.size(); ++r) ran_[at(r, unit)] = 1;
  } else if (!decision.kept.is_none()) {
    Tensor marks = marks_.rows(unit, 1).reshape({rows});
    assign(ctx, marks, row_mask(ctx, decision.kept, rows));
    marked_.push_back(unit);
  }
  if (!keeps_scores_ || !decision.score) return;
  Tensor ratings = ratings_.rows(unit, 1).reshape({rows});
  assign(ctx, ratings, decision.score);
  rated_.push_back(unit);
}

void Trace::end(Context& ctx) {
  const size_t rows = rows_.size() - first_;
  const auto read = [&](Tensor& table, const std::vector<int64_t>& units, auto&& take) {
    if (!units.empty()) {
      host_.resize(static_cast<size_t>(table.numel()));
      copy_to_host(ctx, table, host_);
    }
    for (const int64_t unit : units) {
      for (size_t r = 0; r < rows; ++r)
        take(at(first_ + r, unit), host_[static_cast<size_t>(unit) * rows + r]);
    }
    table = {};  // its memory is the pass's
  };
  read(marks_, marked_, [&](size_t to, float mark) { ran_[to] = mark > 0; });
  read(ratings_, rated_, [&](size_t to, float score) { scores_[to] = score; });
}

void TracingPolicy::begin(Context& ctx, const Model& model, const Batch& batch, PolicyState& state) const {
  ForwardingPolicy::begin(ctx, model, batch, state);
  trace_.begin(ctx, batch, 2 * model.config.layers);
}

Decision TracingPolicy::decide(Context& ctx, const UnitInput& input, PolicyState& state) const {
  Decision decision = ForwardingPolicy::decide(ctx, input, state);
  trace_.add(ctx, input.index(), decision);
  return decision;
}

void TracingPolicy::after_block(Context& ctx, const UnitInput& input, Tensor& h, PolicyState& state) const {
  ForwardingPolicy::after_block(ctx, input, h, state);
  if (input.layer + 1 == input.model.config.layers) trace_.end(ctx);
}

}  // namespace fathom
