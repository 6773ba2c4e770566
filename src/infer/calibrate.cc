#include "infer/calibrate.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/format.h"
#include "infer/ratio_of_sums.h"
#include "model/flops.h"
#include "model/weights.h"

namespace fathom {
namespace {

using Thresholds = std::vector<float>;               // (2L)
using UnitScores = std::vector<std::vector<float>>;  // (2L, rows that were asked)

CalibrationPoint point_of(const CalibrationOutcome& outcome, Thresholds thresholds) {
  return {outcome.beta, outcome.beta, NAN, std::move(thresholds), outcome.held};
}

// The beginnings of sequences, where any is longer; else nothing.
CalibrationText beginnings_of(const CalibrationText& text) {
  CalibrationText all;
  bool longer = false;
  for (std::vector<BatchRow> rows : text) {
    longer =
        std::erase_if(rows, [](const BatchRow& row) { return row.position >= kFirstRows; }) > 0 || longer;
    all.push_back(std::move(rows));
  }
  return longer ? all : CalibrationText();
}

// What is turned to meet a budget: a share of what could be skipped, 0 to 1, and, where thresholds are
// steered, ThresholdFit::first.
class Dial {
 public:
  Dial(const CalibrationRunner& runner, const CalibrationText& text, bool steers = false)
      : runner_(runner), text_(text), steers_(steers) {
    if (steers) beginnings_ = beginnings_of(text);
  }
  virtual ~Dial() = default;
  // Where the search begins. Not at the lowest score itself: it may lie far out, where nothing follows for
  // long.
  virtual float start() const { return 0.005f; }
  // Runs the text with the dial there: the thresholds, and what they gave.
  virtual CalibrationPoint turn(float share, float first) = 0;
  // The part of the text's work that the beginnings of sequences are; 0: nothing is looked at there.
  float beginnings_share() const {
    if (beginnings_.empty()) return 0;
    return static_cast<float>(runner_.dense_madds(beginnings_) / runner_.dense_madds(text_));
  }
  // By how much the beginnings of sequences miss the budget: a short text is no more than that.
  float first_missed(const CalibrationPoint& point, float budget) const {
    return beginnings_.empty() ? 0 : runner_.run(beginnings_, point.settings()).beta - budget;
  }
  // What these thresholds give on another text, sequence by sequence.
  virtual std::vector<SequenceWork> each(const CalibrationText& text, const Thresholds& thresholds) const {
    return runner_.each(text, thresholds);
  }
  // How far apart the budgets of two points may be.
  virtual float apart() const { return 0.026f; }  // each takes a pass
  // A point between two, at `share`, where it takes no pass; none: turn() must measure one.
  virtual std::optional<Thresholds> between(float /*share*/) const { return std::nullopt; }
  // The largest share that gives the same thresholds.
  virtual float end_of(float share) const { return share; }

 protected:
  static constexpr float kFree = 0.0125f;  // apart(), where a point takes no pass
  const CalibrationRunner& runner_;
  // The text at the fit's share, or at the thresholds that it is given; where these are steered, with that.
  CalibrationPoint point_of_fit(ThresholdFit fit) const {
    fit.steers = steers_;
    const CalibrationOutcome outcome = runner_.fit(text_, fit);
    CalibrationPoint point = point_of(outcome, std::move(fit.thresholds));
    point.steering = std::move(fit.steering);
    return point;
  }

  const CalibrationText& text_;
  const bool steers_;

 private:
  CalibrationText beginnings_;
};

// Every unit has a threshold of its own: the same share of its rows skips everywhere. They are found in the
// order of the network, each on the scores that rows have after everything below has skipped.
class UnitDial final : public Dial {
 public:
  using Dial::Dial;
  CalibrationPoint turn(float share, float first) override {
    return point_of_fit({.share = share, .first = first});
  }
};

// One number for the network, times each unit's weight: at the share of all scores, by the work they stand
// for, that lies at or below it. Scores are those of a pass in which no row skips: an early exit leaves none
// behind it, and any order of values serves to search in.
class CommonDial final : public Dial {
 public:
  CommonDial(const CalibrationRunner& runner, const CalibrationText& text, bool steers,
             std::vector<float> weights, const UnitScores& scores)
      : Dial(runner, text, steers), weights_(std::move(weights)) {
    for (size_t unit = 0; unit < weights_.size(); ++unit) {
      if (weights_[unit] <= 0) continue;
      for (const float score : scores[unit]) {
        if (std::isfinite(score)) values_.emplace_back(score / weights_[unit], weights_[unit]);
      }
      if (!scores[unit].empty()) asked_.push_back(unit);
    }
    std::sort(values_.begin(), values_.end());
    for (const auto& [value, weight] : values_) total_ += static_cast<double>(weight);
  }
  CalibrationPoint turn(float share, float first) override {
    Thresholds thresholds = at(share);
    if (steers_) return point_of_fit({.given = std::move(thresholds), .first = first});
    const CalibrationOutcome outcome = runner_.run(text_, thresholds);
    return point_of(outcome, std::move(thresholds));
  }
  float apart() const override { return steers_ ? Dial::apart() : kFree; }
  std::optional<Thresholds> between(float share) const override {
    if (steers_) return std::nullopt;  // what steers it takes a pass
    return at(share);
  }
  float end_of(float share) const override {
    const std::pair<float, float> last{value_at(share), INFINITY};
    double below = 0;
    for (auto each = values_.begin(); each != values_.end() && *each <= last; ++each)
      below += static_cast<double>(each->second);
    return static_cast<float>(below / total_);
  }

 private:
  Thresholds at(float share) const {
    Thresholds out(weights_.size(), -INFINITY);
    // Just above: the score that set the value is not to run, whatever the rounding.
    const float value = value_at(share);
    for (const size_t unit : asked_) out[unit] = std::nextafter(value * weights_[unit], INFINITY);
    return out;
  }
  float value_at(float share) const {
    double below = 0;
    for (const auto& [value, weight] : values_) {
      below += static_cast<double>(weight);
      if (below >= static_cast<double>(share) * total_) return value;
    }
    return values_.empty() ? 0 : values_.back().first;
  }

  std::vector<float> weights_;                   // (2L)
  std::vector<size_t> asked_;                    // units that have scores
  std::vector<std::pair<float, float>> values_;  // of all units: score / weight and weight, sorted
  double total_ = 0;                             // Σ weight
};

// A method with a fixed order of units: the share of them that is dropped. No pass is run: which units go is
// known, and what share of the work they are depends on the text's lengths alone.
class ListDial final : public Dial {
 public:
  ListDial(const CalibrationRunner& runner, const ModelConfig& config, const CalibrationText& text,
           UnitList list)
      : Dial(runner, text), config_(config), list_(std::move(list)) {}
  float start() const override { return 0; }
  float apart() const override { return kFree; }
  CalibrationPoint turn(float share, float /*first*/) override {
    Thresholds thresholds = list_.without(dropped(share), 2 * config_.layers);
    const std::vector<SequenceWork> work = each(text_, thresholds);
    const RatioOfSums beta = ratio_of_sums<SequenceWork>(work, &SequenceWork::ran, &SequenceWork::dense);
    int64_t attention = 0;
    for (size_t unit = 0; unit < thresholds.size(); unit += 2) attention += thresholds[unit] < 0;
    const auto held = static_cast<float>(attention) / static_cast<float>(config_.layers);
    return point_of({.beta = static_cast<float>(beta.value), .held = held}, std::move(thresholds));
  }
  std::vector<SequenceWork> each(const CalibrationText& text, const Thresholds& thresholds) const override {
    std::vector<uint8_t> units;
    for (const float threshold : thresholds) units.push_back(threshold < 0);
    std::vector<SequenceWork> all;
    for (const std::vector<BatchRow>& rows : sequences_of(text)) {
      SequenceWork work{0, static_cast<double>(dense_work(config_, rows).block_madds)};
      for (const BatchRow& row : rows)
        work.ran += static_cast<double>(row_block_madds(config_, row.position, units));
      all.push_back(work);
    }
    return all;
  }

 private:
  size_t dropped(float share) const {
    return static_cast<size_t>(std::lround(share * static_cast<float>(list_.order.size())));
  }

  const ModelConfig& config_;
  UnitList list_;
};

// A point of the table and where the dial stood.
struct Found {
  CalibrationPoint point;
  float share = 0, first = 0;
  float level = 1;  // what it would achieve if its beginnings were as far from the budget as the rest
};

// ThresholdFit::first, turned until the beginnings of sequences are as far from the budget as all rows are.
struct Beginnings {
  float first = 0;
  float slope = 1, last_first = NAN, last_apart = NAN;

  void turn(float apart) {
    constexpr float kMostFirst = 0.25f, kLeastSlope = 0.75f, kMostSlope = 3, kTellingTurn = 0.005f;
    if (std::abs(first - last_first) > kTellingTurn)
      slope = std::clamp((apart - last_apart) / (first - last_first), kLeastSlope, kMostSlope);
    last_first = first, last_apart = apart;
    first = std::clamp(first - apart / slope, -kMostFirst, kMostFirst);
  }
};

// Finds one budget after another, each smaller than the one before.
class Search {
 public:
  Search(Dial& dial, const CalibrateOptions& options, Found most, Found least)
      : dial_(dial),
        options_(options),
        beginnings_share_(dial.beginnings_share()),
        last_(std::move(most)),
        least_(std::move(least)) {}

  const Found& last() const { return last_; }
  float reach() const { return least_.point.achieved; }

  // The best of a few passes: the dial between the last budget's place and its end, by the slope seen there.
  Found find(float budget) {
    Found low = last_, high = least_, best;  // the dial lies between
    Beginnings beginnings{last_.first};
    float error = INFINITY;
    for (int pass = 0; pass < options_.most_passes && error > options_.tolerance; ++pass) {
      const float fall = low.level - high.level;
      float place = fall > 0 ? (low.level - budget) / fall : 0.5f;
      const bool slow = beginnings_share_ == 0 && pass % 4 == 3;
      if (!(place > 0.01f && place < 0.99f) || slow) place = 0.5f;  // a slope that misleads
      Found now;
      now.share = low.share + place * (high.share - low.share);
      now.first = beginnings.first;
      now.point = dial_.turn(now.share, now.first);
      const float missed = now.point.achieved - budget, at_first = dial_.first_missed(now.point, budget);
      const float apart = beginnings_share_ > 0 ? at_first - missed : 0;
      now.level = now.point.achieved - beginnings_share_ * apart;
      beginnings.turn(apart);
      narrow(now, budget, low, high);
      const float both = std::max(std::abs(missed), std::abs(at_first) / 2);  // these are a part of all rows
      if (both >= error) continue;
      error = both;
      best = std::move(now);
    }
    best.point.budget = budget;
    return best;
  }

  // Adds the point, and before it others so close that what lies between two of them is nearly straight.
  void add(Found found, std::vector<CalibrationPoint>& points) {
    const float gap = points.back().budget - found.point.budget;
    const int parts = std::max(1, static_cast<int>(std::ceil(gap / dial_.apart())));
    for (int i = 1; i < parts; ++i) {
      const float place = static_cast<float>(i) / static_cast<float>(parts);
      const float share = last_.share + place * (found.share - last_.share);
      CalibrationPoint point;
      if (std::optional<Thresholds> thresholds = dial_.between(share)) {
        point.budget = points.back().budget +
                       (found.point.budget - points.back().budget) / static_cast<float>(parts - i + 1);
        point.thresholds = std::move(*thresholds);
      } else {
        point = dial_.turn(share, last_.first + place * (found.first - last_.first));
        point.budget = point.achieved;
        if (point.budget >= points.back().budget || point.budget <= found.point.budget) continue;
      }
      point.achieved = point.held = NAN;
      points.push_back(std::move(point));
    }
    points.push_back(found.point);
    last_ = std::move(found);
  }

 private:
  // `now` replaces `low` or `high`, between which the dial's place lies. `first` moves the levels of both:
  // where `now` has come less than half the way that it was to come, the other end lies farther off than it
  // seemed.
  void narrow(const Found& now, float budget, Found& low, Found& high) const {
    Found& near = now.level > budget ? low : high;
    Found& far = now.level > budget ? high : low;
    const bool slow = std::abs(now.level - budget) > 0.5f * std::abs(near.level - budget);
    near = now;
    if (slow && beginnings_share_ > 0)
      far.share = std::clamp(2 * far.share - now.share, last_.share, least_.share);
  }

  Dial& dial_;
  const CalibrateOptions& options_;
  const float beginnings_share_;
  Found last_, least_;
};

std::vector<float> falling_budgets(const CalibrateOptions& options) {
  std::vector<float> budgets = options.budgets;
  std::sort(budgets.rbegin(), budgets.rend());
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
  for (const float budget : budgets) {
    if (!(budget > 0 && budget < 1))
      fail("calibrate: a budget must be above 0 and below 1, got {:g}", budget);
  }
  return budgets;
}

void add_kind(const std::vector<SequenceWork>& sequences, CalibrationPoint& point) {
  const RatioOfSums beta = ratio_of_sums<SequenceWork>(sequences, &SequenceWork::ran, &SequenceWork::dense);
  point.of_kinds.push_back(static_cast<float>(beta.value));
  point.errors_of_kinds.push_back(static_cast<float>(beta.error));
}

void check(const Dial& dial, const CalibrateOptions& options, CalibrationPoint& point) {
  double sum = 0, rows = 0;
  for (const CheckText& each : options.check) {
    add_kind(dial.each(each.text, point.settings()), point);
    if (!each.calibrated) continue;
    for (const auto& batch : each.text) {
      sum += static_cast<double>(point.of_kinds.back()) * static_cast<double>(batch.size());
      rows += static_cast<double>(batch.size());
    }
  }
  if (rows > 0) point.checked = static_cast<float>(sum / rows);
}

// Rows that run whatever the threshold score infinity: that is no score to find one on.
void expect_scores(const std::vector<std::vector<float>>& scores, const MethodPolicy& policy) {
  for (const std::vector<float>& unit : scores) {
    if (std::any_of(unit.begin(), unit.end(), [](float score) { return std::isfinite(score); })) return;
  }
  fail(
      "calibrate: {} gives no row of this text a score that a threshold could stand against: it has no "
      "budgets here",
      policy.name());
}

bool steers(const MethodPolicy& policy, const CalibrateOptions& options) {
  if (options.steer == Steer::kOn && !policy.steers())
    fail("calibrate: {} has no thresholds that could be steered", policy.name());
  return options.steer != Steer::kOff && policy.steers();
}

// `open`: what runs where nothing is skipped, measured on the way. A list needs no pass: there it stays 1.
std::unique_ptr<Dial> make_dial(const CalibrationRunner& runner, const Model& model,
                                const MethodPolicy& policy, const CalibrationText& text, bool steers,
                                CalibrationOutcome& open) {
  UnitList list = policy.fixed_list() ? policy.list(model.config) : UnitList();
  if (!list.order.empty()) return std::make_unique<ListDial>(runner, model.config, text, std::move(list));
  std::vector<float> weights;
  for (int64_t unit = 0; unit < 2 * model.config.layers; ++unit)
    weights.push_back(policy.threshold_weight(model.config, unit));
  UnitScores scores;
  open = runner.run(text, Thresholds(weights.size(), -INFINITY), &scores);
  expect_scores(scores, policy);
  if (*std::max_element(weights.begin(), weights.end()) > 0)
    return std::make_unique<CommonDial>(runner, text, steers, weights, scores);
  return std::make_unique<UnitDial>(runner, text, steers);
}

}  // namespace

Calibration calibrate(Context& ctx, const Model& model, const MethodPolicy& policy,
                      const CalibrationText& text, const CalibrateOptions& options) {
  if (text.empty()) fail("calibrate: there is no text");
  const std::vector<float> budgets = falling_budgets(options);
  const CalibrationRunner runner(ctx, model, policy, options);
  CalibrationOutcome open;
  const std::unique_ptr<Dial> dial = make_dial(runner, model, policy, text, steers(policy, options), open);
  Found most{dial->turn(dial->start(), 0), dial->end_of(dial->start())};
  most.point.budget = most.point.achieved = most.level = open.beta;
  most.point.held = open.held;
  Calibration table;
  table.weight_type = weight_type_name(model);
  for (const CheckText& each : options.check) table.kinds.push_back(each.kind);
  table.points.push_back(most.point);
  Found least{dial->turn(1, 0), 1};
  least.level = least.point.achieved;
  Search search(*dial, options, most, std::move(least));
  for (const float budget : budgets) {
    constexpr float kFarOff = 0.05f;  // a smaller miss is stored, and CalibrationPoint::achieved says it
    const bool too_much = budget >= open.beta;
    Found found;
    if (!too_much) found = search.find(budget);
    const float nearest = too_much ? open.beta : found.point.achieved;
    if (too_much || std::abs(nearest - budget) > kFarOff) {
      if (!options.all_budgets && (too_much || nearest < budget)) continue;
      if (!options.all_budgets) break;  // what is smaller is out of reach, too
      fail("calibrate: {} cannot meet a budget of {:g} with this model: the nearest is {:.4f}", policy.name(),
           budget, nearest);
    }
    check(*dial, options, found.point);
    search.add(std::move(found), table.points);
  }
  if (table.points.size() == 1)
    fail("calibrate: {} can meet none of the budgets with this model: it runs from {:.3f} to {:.3f}",
         policy.name(), search.reach(), open.beta);
  if (options.cancel && options.cancel->load(std::memory_order_relaxed)) throw CalibrationCancelled();
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
