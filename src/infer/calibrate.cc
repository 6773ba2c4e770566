#include "infer/calibrate.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/format.h"
#include "model/flops.h"
#include "model/kv_cache.h"
#include "model/weights.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

// What is turned to meet a budget: the share of the rows that run, or (one number for the network) of the
// work that they stand for.
class Dial {
 public:
  Dial(Context& ctx, const Model& model, const MethodPolicy& policy,
       std::span<const std::vector<BatchRow>> batches, const CalibrateOptions& options)
      : ctx_(ctx), model_(model), policy_(policy), options_(options), batches_(batches) {
    const int64_t units = 2 * model.config.layers;
    for (int64_t unit = 0; unit < units; ++unit)
      weights_.push_back(policy.threshold_weight(model.config, unit));
    common_ = *std::max_element(weights_.begin(), weights_.end()) > 0;
    scores_.resize(weights_.size());
    for (const auto& batch : batches) dense_ += dense_work(model.config, batch).block_madds;
    std::vector<float> open(weights_.size(), -INFINITY);
    if (common_) run_all(open, 1);
  }

  // A pass under skipping at this share. -> β achieved
  float turn(float share, std::vector<float>& thresholds) {
    thresholds.assign(weights_.size(), -INFINITY);
    if (common_) {
      const float value = common_value(share);
      for (size_t unit = 0; unit < weights_.size(); ++unit) {
        // Just above: the score that set the value is not to run.
        if (!scores_[unit].empty()) thresholds[unit] = std::nextafter(value * weights_[unit], INFINITY);
      }
    }
    return static_cast<float>(static_cast<double>(run_all(thresholds, share)) / static_cast<double>(dense_));
  }

 private:
  // The value per weight that `share` of the weight lies above, in the pass before.
  float common_value(float share) const {
    std::vector<std::pair<float, float>> values;  // score / weight, weight
    double total = 0;
    for (size_t unit = 0; unit < weights_.size(); ++unit) {
      for (const float score : scores_[unit]) values.emplace_back(score / weights_[unit], weights_[unit]);
      total += static_cast<double>(weights_[unit]) * static_cast<double>(scores_[unit].size());
    }
    std::sort(values.begin(), values.end());
    double below = 0;
    for (const auto& [value, weight] : values) {
      below += static_cast<double>(weight);
      if (below >= (1.0 - static_cast<double>(share)) * total) return value;
    }
    return values.empty() ? 0 : values.back().first;
  }

  uint64_t run_all(std::vector<float>& thresholds, float share) {
    for (std::vector<float>& scores : scores_) scores.clear();
    uint64_t madds = 0;
    for (const auto& rows : batches_) madds += run(rows, share, thresholds);
    return madds;
  }

  uint64_t run(const std::vector<BatchRow>& rows, float share, std::vector<float>& thresholds) {
    const ArenaScope scope(ctx_);
    const Batch batch = make_batch(ctx_, rows);
    KvCache cache = filled_cache(rows, batch.sequences);
    const std::unique_ptr<PolicyState> base = policy_.make_state(ctx_, model_.config, batch.sequences);
    auto& state = static_cast<SkipState&>(*base);
    if (common_) {
      state.thresholds = Tensor::from(ctx_, thresholds, {static_cast<int64_t>(thresholds.size())});
      state.collect = &scores_;
    } else {
      state.find = &thresholds;
      state.find_share = share;
    }
    const Work before = ctx_.counters().total();
    forward(ctx_, model_, batch, cache, policy_, state);
    const Work work = ctx_.counters().total() - before;
    return work.madds - work.policy_madds;
  }

  // Room for these rows. Through a cache, as inference goes.
  KvCache filled_cache(const std::vector<BatchRow>& rows, int64_t sequences) const {
    std::vector<int64_t> lengths(static_cast<size_t>(sequences));
    for (const BatchRow& row : rows) ++lengths[static_cast<size_t>(row.sequence)];
    KvCacheOptions options;
    options.sequences = sequences;
    options.context = *std::max_element(lengths.begin(), lengths.end());
    options.k_type = options_.k_type;
    options.v_type = options_.v_type;
    options.key_bias = policy_.has_key_bias();
    KvCache cache(ctx_, model_.config, options);
    for (size_t s = 0; s < lengths.size(); ++s) cache.reserve(ctx_, static_cast<int32_t>(s), lengths[s]);
    return cache;
  }

  Context& ctx_;
  const Model& model_;
  const MethodPolicy& policy_;
  const CalibrateOptions& options_;
  std::span<const std::vector<BatchRow>> batches_;
  std::vector<float> weights_;
  std::vector<std::vector<float>> scores_;  // (2L), of the last pass
  bool common_ = false;
  uint64_t dense_ = 0;
};

// The share asked for is moved by what the last pass missed: β follows it nearly one to one.
CalibrationPoint find(Dial& dial, float budget, const CalibrateOptions& options, float& share) {
  CalibrationPoint best;
  best.budget = budget;
  float best_error = INFINITY, best_share = share;
  for (int pass = 0; pass < options.most_passes && best_error > options.tolerance; ++pass) {
    std::vector<float> thresholds;
    const float beta = dial.turn(share, thresholds);
    if (options.on_progress) options.on_progress(1);
    if (std::abs(beta - budget) < best_error) {
      best_error = std::abs(beta - budget);
      best_share = share;
      best.achieved = beta;
      best.thresholds = std::move(thresholds);
    }
    share = std::clamp(share + (budget - beta), 0.0f, 1.0f);
  }
  share = best_share;
  return best;
}

}  // namespace

std::vector<float> Calibration::thresholds(float budget) const {
  if (points.empty()) fail("the calibration table is empty");
  const CalibrationPoint& least = points.back();
  if (budget < least.budget - 1e-6f)
    fail("a budget of {:g} is below the smallest that was calibrated, {:g}", budget, least.budget);
  // Between the largest budget and 1 nothing was calibrated: its thresholds, which save a little more, serve.
  if (budget >= points.front().budget) {
    std::vector<float> open = points.front().thresholds;
    if (budget >= 1) std::fill(open.begin(), open.end(), -INFINITY);
    return open;
  }
  size_t at = 1;
  while (points[at].budget > budget + 1e-6f) ++at;
  const CalibrationPoint &above = points[at - 1], &below = points[at];
  const float place = (above.budget - budget) / (above.budget - below.budget);
  std::vector<float> mixed(above.thresholds.size());
  for (size_t i = 0; i < mixed.size(); ++i) {
    const bool never = !std::isfinite(above.thresholds[i]) || !std::isfinite(below.thresholds[i]);
    mixed[i] = never ? above.thresholds[i]
                     : above.thresholds[i] + place * (below.thresholds[i] - above.thresholds[i]);
  }
  return mixed;
}

Calibration calibrate(Context& ctx, const Model& model, const MethodPolicy& policy,
                      std::span<const std::vector<BatchRow>> batches, const CalibrateOptions& options) {
  if (batches.empty()) fail("calibrate: there is no text");
  Dial dial(ctx, model, policy, batches, options);
  Calibration table;
  table.weight_type = weight_type_name(model);
  std::vector<float> budgets = options.budgets;
  std::sort(budgets.rbegin(), budgets.rend());
  float share = 1, asked = 1;
  for (const float budget : budgets) {
    if (!(budget > 0 && budget < 1))
      fail("calibrate: a budget must be above 0 and below 1, got {:g}", budget);
    share = std::clamp(share - (asked - budget), 0.0f, 1.0f);
    asked = budget;
    CalibrationPoint point = find(dial, budget, options, share);
    constexpr float kFarOff = 0.05f;
    if (point.achieved > budget + kFarOff)
      fail("calibrate: {} cannot reach a budget of {:g} with this model: the nearest is {:.3f}",
           policy.name(), budget, point.achieved);
    if (!table.points.empty()) {  // monotone: a smaller budget never runs what a larger one skips
      const std::vector<float>& before = table.points.back().thresholds;
      for (size_t i = 0; i < before.size(); ++i)
        point.thresholds[i] = std::max(point.thresholds[i], before[i]);
    }
    table.points.push_back(std::move(point));
  }
  return table;
}

std::string weight_type_name(const Model& model) {
  std::map<DType, int64_t> bytes;
  for (const WeightSpec& spec : weight_specs(model)) {
    if (spec.matrix && spec.tensor->defined()) bytes[spec.tensor->dtype()] += spec.tensor->numel();
  }
  const auto most = std::max_element(bytes.begin(), bytes.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? "f32" : name_of(most->first);
}

}  // namespace fathom
