// Averages and their standard errors, as lm-evaluation-harness computes them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fathom {

struct Metric {
  std::string name;
  double value = 0;
  double error = 0;  // standard error; NaN: there is none
  // Each item's own score; their mean is the value. Of a text's perplexity: each window's, to first order.
  // Empty: it has none.
  std::vector<double> items = {};
};

// Whether it is the share of items that are right, by any of the names that tasks give it.
bool counts_right_items(const std::string& metric);

// a − b of the same items, with the error of the mean of the items' own differences: what is hard, or easy,
// for both cancels. The error is NaN where there are not two items that both have.
Metric paired_difference(const Metric& a, const Metric& b);

// "level" where a difference is less than 1.96 of its errors, else "better" or "worse"; "" without an error.
std::string verdict_of(const Metric& difference);
bool lower_is_better(const std::string& metric);  // perplexities, bits_per_byte

// The sample standard deviation over √n; one value alone has none (NaN).
Metric mean_metric(const std::string& name, std::span<const double> values);

// The mean over all items of several groups, with the error pooled from the groups' own.
Metric grouped_mean_metric(const std::string& name, std::span<const double> values,
                           std::span<const std::string> groups);

// exp(−mean); the error by the delta method, where the harness draws bootstrap samples.
Metric perplexity_metric(std::span<const double> logprobs);

// Of a text in windows: m = −Σ logprobs / total is the mean loss of a token, a word or a byte, of which a
// window has its share by its tokens. `value` is a function of m, `slope` its derivative. Without an error,
// as the harness has it.
Metric window_metric(const std::string& name, double value, double slope, std::span<const double> logprobs,
                     std::span<const double> tokens, double total);

// The F1 score of class `positive`: 0 when it is neither predicted nor there.
double f1_score(std::span<const int64_t> gold, std::span<const int64_t> predicted, int64_t positive);

// The largest, the first of equals.
int64_t index_of_largest(std::span<const double> values);

}  // namespace fathom
