#include "infer/calibrate.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/format.h"
#include "model/flops.h"
#include "model/kv_cache.h"
#include "model/weights.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

using Thresholds = std::vector<float>;  // (2L)

// What a run over a text gave.
struct Outcome {
  float beta = 1, held = 1;                // of the dense multiply-adds, and of the dense cache's entries
  std::vector<std::vector<float>> scores;  // (2L), of every row that was asked
};

// Runs a text at thresholds, through a cache, as inference goes.
class Runner {
 public:
  Runner(Context& ctx, const Model& model, const MethodPolicy& policy, const CalibrateOptions& options)
      : ctx_(ctx), model_(model), policy_(policy), options_(options) {}

  Outcome run(const CalibrationText& text, const Thresholds& thresholds) const {
    Outcome out;
    out.scores.resize(thresholds.size());
    Totals totals;
    for (const std::vector<BatchRow>& rows : text) run_batch(rows, thresholds, out.scores, totals);
    out.beta = static_cast<float>(static_cast<double>(totals.madds) / static_cast<double>(totals.dense));
    out.held = static_cast<float>(static_cast<double>(totals.held) / static_cast<double>(totals.dense_held));
    if (options_.on_progress) options_.on_progress(1);
    return out;
  }

 private:
  struct Totals {
    uint64_t madds = 0, dense = 0;
    int64_t held = 0, dense_held = 0;
  };
  void run_batch(const std::vector<BatchRow>& rows, const Thresholds& thresholds,
                 std::vector<std::vector<float>>& scores, Totals& totals) const {
    const ArenaScope scope(ctx_);
    const Batch batch = make_batch(ctx_, rows);
    KvCache cache = room_for(rows, batch.sequences);
    const std::unique_ptr<PolicyState> base = policy_.make_state(ctx_, model_.config, batch.sequences);
    auto& state = static_cast<SkipState&>(*base);
    for (int32_t s = 0; s < batch.sequences; ++s) state.set_thresholds(ctx_, s, thresholds);
    state.collect = &scores;
    const Work before = ctx_.counters().total();
    forward(ctx_, model_, batch, cache, policy_, state);
    const Work work = ctx_.counters().total() - before;
    totals.madds += work.madds - work.policy_madds;
    totals.dense += dense_work(model_.config, rows).block_madds;
    for (int32_t s = 0; s < batch.sequences; ++s) cache.settle(ctx_, s, state.settle(ctx_, s, cache.rows(s)));
    totals.held += entries_held(cache);
    totals.dense_held += model_.config.layers * batch.rows();
  }

  // Not its pages: a long text fills them, and these sequences may be short.
  int64_t entries_held(KvCache& cache) const {
    std::set<int32_t> slots;  // rows that copy list one of the layer below
    std::vector<int32_t> lengths(static_cast<size_t>(cache.sequences()));
    for (int64_t index = 0; index < cache.layers(); ++index) {
      const KvView& view = cache.layer(index);
      std::vector<int32_t> entries(static_cast<size_t>(view.entries.numel()));
      copy_to_host(ctx_, view.lengths, lengths);
      copy_to_host(ctx_, view.entries, entries);
      for (size_t s = 0; s < lengths.size(); ++s) {
        const auto first = entries.begin() + static_cast<ptrdiff_t>(s) * cache.context();
        slots.insert(first, first + lengths[s]);
      }
    }
    return std::ssize(slots);
  }

  KvCache room_for(const std::vector<BatchRow>& rows, int64_t sequences) const {
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
};

// The one number that is turned to meet a budget: the share of the scores that lie at or below their
// thresholds, of each unit's, or (one threshold for the network) of all of them by the work they stand for.
class Dial {
 public:
  Dial(const ModelConfig& config, const MethodPolicy& policy) {
    for (int64_t unit = 0; unit < 2 * config.layers; ++unit)
      weights_.push_back(policy.threshold_weight(config, unit));
    common_ = *std::max_element(weights_.begin(), weights_.end()) > 0;
  }

  // The scores that the shares are of. One threshold for the network keeps those of the first time: an early
  // exit leaves no scores behind it, and any order of values serves to search in.
  // -> whether they were taken.
  bool learn(std::vector<std::vector<float>> scores) {
    if (common_ && !values_.empty()) return false;
    for (std::vector<float>& unit : scores) {
      std::erase_if(unit, [](float score) { return !std::isfinite(score); });
      std::sort(unit.begin(), unit.end());
    }
    scores_ = std::move(scores);
    if (common_) pool();
    return true;
  }
  bool empty() const {
    return std::all_of(scores_.begin(), scores_.end(), [](const auto& unit) { return unit.empty(); });
  }

  Thresholds at(float share) const {
    Thresholds out(weights_.size(), -INFINITY);
    const float value = common_ ? common_value(share) : 0;
    for (size_t unit = 0; unit < out.size(); ++unit) {
      const std::vector<float>& scores = scores_[unit];
      if (scores.empty()) continue;  // never asked
      const auto place = static_cast<size_t>(share * static_cast<float>(scores.size()));
      // Just above: the score that set the value is not to run, whatever the rounding.
      out[unit] = common_ ? std::nextafter(value * weights_[unit], INFINITY)
                          : scores[std::min(place, scores.size() - 1)];
    }
    return out;
  }

  // The share that these thresholds stand for, by the scores known now.
  float share_of(const Thresholds& thresholds) const {
    double below = 0, all = 0;
    for (size_t unit = 0; unit < weights_.size(); ++unit) {
      const std::vector<float>& scores = scores_[unit];
      if (scores.empty()) continue;
      const auto count = std::upper_bound(scores.begin(), scores.end(), thresholds[unit]) - scores.begin();
      const double weight = common_ ? static_cast<double>(weights_[unit])
                                    : 1.0 / static_cast<double>(scores.size());  // each unit alike
      below += weight * static_cast<double>(count);
      all += weight * static_cast<double>(scores.size());
    }
    return static_cast<float>(below / all);
  }

 private:
  void pool() {
    for (size_t unit = 0; unit < weights_.size(); ++unit) {
      if (weights_[unit] <= 0) continue;
      for (const float score : scores_[unit]) values_.emplace_back(score / weights_[unit], weights_[unit]);
    }
    std::sort(values_.begin(), values_.end());
    for (const auto& [value, weight] : values_) total_ += static_cast<double>(weight);
  }
  float common_value(float share) const {
    double below = 0;
    for (const auto& [value, weight] : values_) {
      below += static_cast<double>(weight);
      if (below >= static_cast<double>(share) * total_) return value;
    }
    return values_.empty() ? 0 : values_.back().first;
  }

  std::vector<float> weights_;                   // (2L)
  std::vector<std::vector<float>> scores_;       // (2L), sorted
  std::vector<std::pair<float, float>> values_;  // of all units: score / weight and weight, sorted
  double total_ = 0;                             // Σ weight
  bool common_ = false;
};

// `low` and `high` hold elementwise.
Thresholds limited(Thresholds thresholds, const Thresholds& low, const Thresholds* high = nullptr) {
  for (size_t i = 0; i < thresholds.size(); ++i) {
    thresholds[i] = std::max(thresholds[i], low[i]);
    if (high) thresholds[i] = std::min(thresholds[i], (*high)[i]);
  }
  return thresholds;
}

// Finds one budget after another, each smaller than the one before.
class Search {
 public:
  // most, least: β with the dial at 0 and at 1.
  Search(const Runner& runner, Dial& dial, const CalibrationText& text, const CalibrateOptions& options,
         float most, float least)
      : runner_(runner), dial_(dial), text_(text), options_(options), fall_(std::max(0.01f, most - least)) {}

  // The best of a few passes under skipping. Monotone: what a larger budget skips, a smaller one does, too.
  CalibrationPoint find(float budget, const CalibrationPoint& before) {
    CalibrationPoint best;
    best.budget = budget;
    float low = 0, high = 1;  // the share lies between
    float share = std::min(1.0f, dial_.share_of(before.thresholds) + (before.budget - budget) / fall_);
    float slope = fall_;
    float best_error = INFINITY, last_share = NAN, last_beta = NAN;
    for (int pass = 0; pass < options_.most_passes; ++pass) {
      Thresholds thresholds = limited(dial_.at(share), before.thresholds);
      Outcome outcome = runner_.run(text_, thresholds);
      const float missed = outcome.beta - budget;
      if (std::abs(missed) < best_error) {
        best_error = std::abs(missed);
        best.achieved = outcome.beta;
        best.held = outcome.held;
        best.thresholds = std::move(thresholds);
      }
      if (best_error <= options_.tolerance) break;
      // Scores have moved since the budget before, and what a share means with them: once is enough.
      if (pass > 0 || !dial_.learn(std::move(outcome.scores))) {
        (missed > 0 ? low : high) = share;
        const float seen = (last_beta - outcome.beta) / (share - last_share);
        if (seen > 0) slope = std::clamp(seen, fall_ / 4, fall_ * 4);  // at first it is NaN
        last_share = share;
        last_beta = outcome.beta;
      }
      share += missed / slope;
      if (!(share > low && share < high)) share = (low + high) / 2;
    }
    return best;
  }

  // Points between the budget before and the one just found, where the share says they are: thresholds bend
  // between them, β over the share hardly does.
  void fill(std::vector<CalibrationPoint>& points, const CalibrationPoint& found) const {
    constexpr int kParts = 4;
    const CalibrationPoint before = points.back();
    const float first = dial_.share_of(before.thresholds), last = dial_.share_of(found.thresholds);
    for (int i = 1; i < kParts; ++i) {
      const float place = static_cast<float>(i) / kParts;
      CalibrationPoint point;
      point.budget = before.budget + place * (found.budget - before.budget);
      point.achieved = NAN;
      point.thresholds =
          limited(dial_.at(first + place * (last - first)), points.back().thresholds, &found.thresholds);
      points.push_back(std::move(point));
    }
  }

 private:
  const Runner& runner_;
  Dial& dial_;
  const CalibrationText& text_;
  const CalibrateOptions& options_;
  float fall_;  // of β, over the whole dial
};

}  // namespace

Calibration calibrate(Context& ctx, const Model& model, const MethodPolicy& policy,
                      const CalibrationText& text, const CalibrateOptions& options) {
  if (text.empty()) fail("calibrate: there is no text");
  std::vector<float> budgets = options.budgets;
  std::sort(budgets.rbegin(), budgets.rend());
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
  for (const float budget : budgets) {
    if (!(budget > 0 && budget < 1))
      fail("calibrate: a budget must be above 0 and below 1, got {:g}", budget);
  }
  const Runner runner(ctx, model, policy, options);
  Dial dial(model.config, policy);
  Outcome open = runner.run(text, Thresholds(static_cast<size_t>(2 * model.config.layers), -INFINITY));
  dial.learn(std::move(open.scores));
  if (dial.empty())
    fail("calibrate: {} gives rows no score that a threshold could stand against: it has no budgets",
         policy.name());

  Calibration table;
  table.weight_type = weight_type_name(model);
  // Not the lowest score itself: it may lie far out, where nothing follows for long.
  constexpr float kWhereScoresBegin = 0.005f;
  table.points.push_back({open.beta, open.beta, NAN, dial.at(kWhereScoresBegin), open.held});
  const float least = runner.run(text, dial.at(1)).beta;
  Search search(runner, dial, text, options, open.beta, least);
  for (const float budget : budgets) {
    constexpr float kFarOff = 0.05f;
    const bool too_much = budget >= open.beta;
    CalibrationPoint point;
    if (!too_much) point = search.find(budget, table.points.back());
    if (too_much || std::abs(point.achieved - budget) > kFarOff) {
      if (!options.all_budgets && (too_much || point.achieved < budget)) continue;
      if (!options.all_budgets) break;  // what is smaller is out of reach, too
      fail("calibrate: {} cannot meet a budget of {:g} with this model: the nearest is {:.4f}", policy.name(),
           budget, too_much ? open.beta : point.achieved);
    }
    if (!options.check.empty()) point.checked = runner.run(options.check, point.thresholds).beta;
    search.fill(table.points, point);
    table.points.push_back(std::move(point));
  }
  if (table.points.size() == 1)
    fail("calibrate: {} can meet none of the budgets with this model: it runs from {:.3f} to {:.3f}",
         policy.name(), least, open.beta);
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
