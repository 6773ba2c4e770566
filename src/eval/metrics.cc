#include "eval/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace fathom {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double standard_error(std::span<const double> values) {
  if (values.size() < 2) return kNone;
  const double mean = mean_of(values), n = static_cast<double>(values.size());
  double squares = 0;
  for (double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / (n - 1)) / std::sqrt(n);
}

}  // namespace

bool counts_right_items(const std::string& metric) {
  return metric == "acc" || metric == "exact_match" || metric == "em" || metric == "exact";
}

bool lower_is_better(const std::string& metric) {
  return metric.ends_with("perplexity") || metric == "bits_per_byte";
}

Metric paired_difference(const Metric& a, const Metric& b) {
  Metric out{a.name, a.value - b.value, kNone};
  if (a.items.size() != b.items.size()) return out;
  std::vector<double> differences(a.items.size());
  for (size_t i = 0; i < differences.size(); ++i) differences[i] = a.items[i] - b.items[i];
  out.error = standard_error(differences);
  return out;
}

std::string verdict_of(const Metric& difference) {
  constexpr double kSure = 1.96;  // 19 of 20 times
  if (std::isnan(difference.error)) return "";
  if (difference.value == 0 || std::abs(difference.value) < kSure * difference.error) return "level";
  return (difference.value < 0) == lower_is_better(difference.name) ? "better" : "worse";
}

Metric mean_metric(const std::string& name, std::span<const double> values) {
  return {name, mean_of(values), standard_error(values), {values.begin(), values.end()}};
}

Metric grouped_mean_metric(const std::string& name, std::span<const double> values,
                           std::span<const std::string> groups) {
  std::map<std::string, std::vector<double>> by_group;
  for (size_t i = 0; i < values.size(); ++i) by_group[groups[i]].push_back(values[i]);
  Metric metric = mean_metric(name, values);
  double pooled = 0;
  for (const auto& [group, own] : by_group) {
    const auto n = static_cast<double>(own.size());
    if (n < 2) return metric;  // a group of one has no error of its own to pool
    pooled += (n - 1) * n * std::pow(standard_error(own), 2);
  }
  const auto n = static_cast<double>(values.size());
  metric.error = std::sqrt(pooled / (n - static_cast<double>(by_group.size())) / n);
  return metric;
}

Metric perplexity_metric(std::span<const double> logprobs) {
  const double mean = mean_of(logprobs), value = std::exp(-mean);
  Metric metric{"perplexity", value, value * standard_error(logprobs)};
  for (const double logprob : logprobs) metric.items.push_back(value * (1 + mean - logprob));
  return metric;
}

Metric window_metric(const std::string& name, double value, double slope, std::span<const double> logprobs,
                     std::span<const double> tokens, double total) {
  const double loss = -std::accumulate(logprobs.begin(), logprobs.end(), 0.0),
               scored = std::accumulate(tokens.begin(), tokens.end(), 0.0);
  const auto count = static_cast<double>(logprobs.size());
  Metric metric{name, value, kNone};
  for (size_t i = 0; i < logprobs.size(); ++i) {
    const double expected = loss * tokens[i] / scored;
    metric.items.push_back(value + count * slope * (-logprobs[i] - expected) / total);
  }
  return metric;
}

double f1_score(std::span<const int64_t> gold, std::span<const int64_t> predicted, int64_t positive) {
  int64_t both = 0, either = 0;
  for (size_t i = 0; i < gold.size(); ++i) {
    both += gold[i] == positive && predicted[i] == positive;
    either += (gold[i] == positive) + (predicted[i] == positive);
  }
  return either == 0 ? 0 : 2.0 * static_cast<double>(both) / static_cast<double>(either);
}

int64_t index_of_largest(std::span<const double> values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

}  // namespace fathom
