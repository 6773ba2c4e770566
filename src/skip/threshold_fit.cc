#include "skip/threshold_fit.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>

#include "ops/rows/steer_block.h"

namespace fathom {
namespace {

// How far a threshold moves for a share of the rows: by this part of its slope in the unit's scores, over
// that share on either side. (A larger part corrects sooner, and moves more rows that had no need.)
constexpr float kGain = 0.5f;
constexpr double kSlopeShare = 0.2;

// (threshold of that many more rows that skip − threshold) / their share, among ascending scores.
float slope_of(const std::vector<float>& scores, double rows, ptrdiff_t at, float threshold, ptrdiff_t step) {
  const ptrdiff_t to = std::clamp<ptrdiff_t>(at + step, 0, std::ssize(scores) - 1);
  if (to == at) return 0;
  const float slope =
      (scores[static_cast<size_t>(to)] - threshold) / static_cast<float>(static_cast<double>(to - at) / rows);
  return kGain * std::max(slope, 0.0f);
}

// What steers a unit, without its start: the share that runs, and the slopes. `scores`: the finite ones of
// all its rows, sorted.
SteeringRule rule_of(const std::vector<float>& scores, float threshold, int64_t ran, double rows) {
  if (scores.empty() || !std::isfinite(threshold)) return {threshold, -1, 0, 0, 0};
  const ptrdiff_t at = std::upper_bound(scores.begin(), scores.end(), threshold) - scores.begin();
  const auto step = static_cast<ptrdiff_t>(std::lround(kSlopeShare * rows));
  const float up = slope_of(scores, rows, at, threshold, step),
              down = slope_of(scores, rows, at, threshold, -step);
  return {threshold, static_cast<float>(static_cast<double>(ran) / rows), up > 0 ? up : down,
          down > 0 ? down : up, 0};
}

struct Head {
  int64_t rows = 0, ran = 0;
};

// What steered_thresholds lets run of the first rows of all sequences.
Head head_of(const SteeringRule& rule, const std::vector<float>& scores, std::span<const BatchRow> rows,
             float least) {
  Head head;
  std::map<int32_t, SteeredBlock> blocks;  // the one that each sequence is in
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].position >= kFirstRows) continue;
    SteeredBlock& block = blocks[rows[r].sequence];
    const auto place = static_cast<int>(rows[r].position % kSteeredRows);
    if (place == 0) {
      const float excess = rows[r].position == 0 ? rule.start
                                                 : excess_after(block, rule.share, std::popcount(block.ran),
                                                                std::popcount(block.seen));
      block = {0, 0, excess};
    }
    const bool runs = !(scores[r] <= std::max(steered(rule, block.excess), least));  // NaN runs
    block.seen |= 1u << place;
    block.ran |= (runs ? 1u : 0u) << place;
    ++head.rows;
    head.ran += runs;
  }
  return head;
}

// The start with which that share of the first rows runs: the more a sequence begins with, the less it runs.
float start_of(SteeringRule rule, float share, const std::vector<float>& scores,
               std::span<const BatchRow> rows, float least) {
  if (rule.share < 0 || (rule.up == 0 && rule.down == 0)) return 0;
  const Head plain = head_of(rule, scores, rows, least);
  const int64_t wanted = std::lround(std::clamp(share, 0.0f, 1.0f) * static_cast<float>(plain.rows));
  if (plain.ran == wanted) return 0;
  constexpr int kHalvings = 12;
  float low = plain.ran > wanted ? 0 : -kMostExcess, high = low + kMostExcess;
  for (int i = 0; i < kHalvings; ++i) {
    rule.start = (low + high) / 2;
    (head_of(rule, scores, rows, least).ran > wanted ? low : high) = rule.start;
  }
  return (low + high) / 2;
}

// The threshold at or below which about `share` of the scores lie (finite ones, sorted). Among equal ones:
// the nearer of all and none.
float quantile_of(const std::vector<float>& scores, float share) {
  if (scores.empty()) return -INFINITY;
  const auto wanted =
      static_cast<ptrdiff_t>(std::lround(std::clamp(share, 0.0f, 1.0f) * static_cast<float>(scores.size())));
  if (wanted == 0) return std::nextafter(scores.front(), -INFINITY);
  const float value = scores[static_cast<size_t>(wanted - 1)];
  const auto [first, last] = std::equal_range(scores.begin(), scores.end(), value);
  const bool without = last - scores.begin() - wanted > wanted - (first - scores.begin());
  return without ? std::nextafter(value, -INFINITY) : value;
}

}  // namespace

void ThresholdFit::begin(int64_t units) {
  thresholds.assign(static_cast<size_t>(units), -INFINITY);
  steering.assign(steers ? static_cast<size_t>((kSteeringParts - 1) * units) : 0, 0.0f);
  if (steers) std::fill_n(steering.begin(), units, -1.0f);
}

void ThresholdFit::find(int64_t unit, const std::vector<float>& scores, std::span<const BatchRow> rows,
                        float least) {
  const auto at = static_cast<size_t>(unit);
  std::vector<float> finite = scores;
  std::erase_if(finite, [](float score) { return !std::isfinite(score); });
  std::sort(finite.begin(), finite.end());
  float& threshold = thresholds[at];
  threshold = given.empty() ? quantile_of(finite, shares.empty() ? share : shares[at]) : given[at];
  if (!steers) return;
  const auto ran =
      std::count_if(scores.begin(), scores.end(), [&](float score) { return !(score <= threshold); });
  SteeringRule rule = rule_of(finite, threshold, ran, static_cast<double>(scores.size()));
  rule.start = start_of(rule, rule.share + first, scores, rows, least);
  const std::array<float, kSteeringParts - 1> parts{rule.share, rule.up, rule.down, rule.start};
  for (size_t part = 0; part < parts.size(); ++part) steering[part * thresholds.size() + at] = parts[part];
}

std::vector<float> ThresholdFit::settings() const {
  std::vector<float> all = thresholds;
  all.insert(all.end(), steering.begin(), steering.end());
  return all;
}

}  // namespace fathom
