#include "infer/calibration_run.h"

#include <algorithm>
#include <cmath>

#include "infer/stoppable_policy.h"
#include "model/flops.h"
#include "tensor/arena.h"

namespace fathom {
CalibrationOutcome CalibrationRunner::Totals::outcome() const {
  const auto share = [](auto part, auto whole) {
    return static_cast<float>(static_cast<double>(part) / static_cast<double>(whole));
  };
  return {share(madds, dense), share(held, dense_held), share(unit_rows, dense_unit_rows)};
}

KvCache cache_for(Context& ctx, const ModelConfig& config, const SkipPolicy& policy,
                  const std::vector<BatchRow>& rows, const CalibrationRunOptions& options) {
  std::vector<int64_t> lengths;
  for (const BatchRow& row : rows) {
    const auto at = static_cast<size_t>(row.sequence);
    if (at >= lengths.size()) lengths.resize(at + 1);
    ++lengths[at];
  }
  int64_t pages = 0;  // sequences differ in length: full contexts for all would be too much
  for (const int64_t length : lengths) pages += KvCache::pages_for(length) * config.layers;
  KvCacheOptions cache;
  cache.sequences = static_cast<int64_t>(lengths.size());
  cache.context = *std::max_element(lengths.begin(), lengths.end());
  cache.k_type = options.k_type;
  cache.v_type = options.v_type;
  cache.key_bias = policy.has_key_bias();
  cache.pages = pages;
  KvCache made(ctx, config, cache);
  for (size_t s = 0; s < lengths.size(); ++s) made.reserve(ctx, static_cast<int32_t>(s), lengths[s]);
  return made;
}

std::vector<BatchRow> joined(const CalibrationText& text) {
  std::vector<BatchRow> all;
  int32_t first = 0, next = 0;
  for (const std::vector<BatchRow>& batch : text) {
    for (BatchRow row : batch) {
      row.sequence += first;
      next = std::max(next, row.sequence + 1);
      all.push_back(row);
    }
    first = next;
  }
  return all;
}

std::vector<std::vector<BatchRow>> sequences_of(const CalibrationText& text) {
  std::vector<std::vector<BatchRow>> all;
  for (BatchRow row : joined(text)) {
    const auto at = static_cast<size_t>(row.sequence);
    if (at >= all.size()) all.resize(at + 1);
    row.sequence = 0;
    all[at].push_back(row);
  }
  return all;
}

CalibrationOutcome CalibrationRunner::run(const CalibrationText& text, const std::vector<float>& thresholds,
                                          std::vector<std::vector<float>>* scores) const {
  Totals totals;
  if (scores) scores->assign(static_cast<size_t>(2 * model_.config.layers), {});
  for (const std::vector<BatchRow>& rows : text) pass(rows, &thresholds, scores, nullptr, totals);
  if (options_.on_progress) options_.on_progress(1);
  return totals.outcome();
}

std::vector<SequenceWork> CalibrationRunner::each(const CalibrationText& text,
                                                  const std::vector<float>& thresholds) const {
  std::vector<SequenceWork> all;
  for (const std::vector<BatchRow>& rows : sequences_of(text)) {
    Totals totals;
    pass(rows, &thresholds, nullptr, nullptr, totals);
    all.push_back({static_cast<double>(totals.madds), static_cast<double>(totals.dense)});
  }
  if (options_.on_progress) options_.on_progress(1);
  return all;
}

double CalibrationRunner::dense_madds(const CalibrationText& text) const {
  double all = 0;
  for (const std::vector<BatchRow>& rows : text)
    all += static_cast<double>(dense_work(model_.config, rows).block_madds);
  return all;
}

CalibrationOutcome CalibrationRunner::fit(const CalibrationText& text, ThresholdFit& fit) const {
  fit.begin(2 * model_.config.layers);
  const std::vector<float> settings = fit.settings();
  Totals totals;
  pass(joined(text), fit.steers ? &settings : nullptr, nullptr, &fit, totals);
  if (options_.on_progress) options_.on_progress(1);
  return totals.outcome();
}

void CalibrationRunner::pass(const std::vector<BatchRow>& rows, const std::vector<float>* thresholds,
                             std::vector<std::vector<float>>* scores, ThresholdFit* fit,
                             Totals& totals) const {
  const ArenaScope scope(ctx_);
  std::vector<BatchRow> silent = rows;  // the output matrix is no block's work
  for (BatchRow& row : silent) row.wants_logits = false;
  Batch batch = make_batch(ctx_, silent);
  batch.given = silent;
  KvCache cache = cache_for(ctx_, model_.config, policy_, rows, options_);
  const std::unique_ptr<PolicyState> base = policy_.make_state(ctx_, model_.config, batch.sequences);
  auto& state = static_cast<SkipState&>(*base);
  for (int32_t s = 0; thresholds && s < batch.sequences; ++s) state.set_thresholds(ctx_, s, *thresholds);
  state.pass.collect = scores;
  state.pass.fit = fit;
  const Work before = ctx_.counters().total();
  forward(ctx_, model_, batch, cache, StoppablePolicy(policy_, options_.cancel), state);
  const Work work = ctx_.counters().total() - before;
  totals.madds += work.madds - work.policy_madds;
  totals.unit_rows += work.unit_rows;
  totals.dense_unit_rows += rows.size() * static_cast<uint64_t>(2 * model_.config.layers);
  totals.dense += dense_work(model_.config, rows).block_madds;
  for (int32_t s = 0; s < batch.sequences; ++s) cache.settle(ctx_, s, state.settle(ctx_, s, cache.rows(s)));
  totals.held += entries_held(cache);
  totals.dense_held += model_.config.layers * batch.rows();
}

// Not its pages: a long text fills them, and these sequences may be short.
int64_t CalibrationRunner::entries_held(KvCache& cache) const {
  std::vector<bool> seen(static_cast<size_t>(cache.layer(0).k.dim(0)));  // rows that copy list a slot twice
  std::vector<int32_t> lengths(static_cast<size_t>(cache.sequences()));
  for (int64_t index = 0; index < cache.layers(); ++index) {
    const KvView& view = cache.layer(index);
    std::vector<int32_t> entries(static_cast<size_t>(view.entries.numel()));
    copy_to_host(ctx_, view.lengths, lengths);
    copy_to_host(ctx_, view.entries, entries);
    for (size_t s = 0; s < lengths.size(); ++s) {
      const auto first = entries.begin() + static_cast<ptrdiff_t>(s) * cache.context();
      for (auto slot = first; slot != first + lengths[s]; ++slot) seen[static_cast<size_t>(*slot)] = true;
    }
  }
  return std::count(seen.begin(), seen.end(), true);
}

}  // namespace fathom
