#include "infer/trace.h"

#include <algorithm>
#include <cmath>

#include "ops/select_rows.h"

namespace fathom {

double Trace::depth(size_t row) const {
  const auto begin = ran_.begin() + static_cast<ptrdiff_t>(at(row, 0));
  return static_cast<double>(std::count(begin, begin + units_, 1)) / 2;
}

void Trace::clear() {
  rows_.clear();
  ran_.clear();
  scores_.clear();
  pass_ = 0;
}

void RecordingPolicy::begin(Context& ctx, const Model& model, const Batch& batch, PolicyState& state) const {
  ForwardingPolicy::begin(ctx, model, batch, state);
  Trace& t = trace_;
  t.units_ = 2 * model.config.layers;
  t.pass_ = t.rows_.size();
  const auto rows = static_cast<size_t>(batch.rows());
  std::vector<int32_t> tokens(rows), positions(rows), sequences(rows);
  copy_to_host(ctx, batch.tokens, tokens);
  copy_to_host(ctx, batch.positions, positions);
  copy_to_host(ctx, batch.sequence, sequences);
  for (size_t r = 0; r < rows; ++r) t.rows_.push_back({tokens[r], positions[r], sequences[r]});
  t.ran_.resize(t.at(t.rows_.size(), 0), 0);
  t.scores_.resize(t.at(t.rows_.size(), 0), NAN);
}

Decision RecordingPolicy::decide(Context& ctx, const UnitInput& input, PolicyState& state) const {
  Decision decision = ForwardingPolicy::decide(ctx, input, state);
  Trace& t = trace_;
  const int64_t unit = input.index();
  std::vector<float> values(t.rows_.size() - t.pass_, 1.0f);
  if (!decision.kept.is_all())
    copy_to_host(ctx, row_mask(ctx, decision.kept, static_cast<int64_t>(values.size())), values);
  for (size_t r = 0; r < values.size(); ++r) t.ran_[t.at(t.pass_ + r, unit)] = values[r] != 0;
  if (!decision.score) return decision;
  copy_to_host(ctx, decision.score, values);
  for (size_t r = 0; r < values.size(); ++r) t.scores_[t.at(t.pass_ + r, unit)] = values[r];
  return decision;
}

}  // namespace fathom
