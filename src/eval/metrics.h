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
};

// The sample standard deviation over √n; one value alone has none (NaN).
Metric mean_metric(const std::string& name, std::span<const double> values);

// The mean over all items of several groups, with the error pooled from the groups' own.
Metric grouped_mean_metric(const std::string& name, std::span<const double> values,
                           std::span<const std::string> groups);

// exp(−mean); the error by the delta method, where the harness draws bootstrap samples.
Metric perplexity_metric(std::span<const double> logprobs);

// The F1 score of class `positive`: 0 when it is neither predicted nor there.
double f1_score(std::span<const int64_t> gold, std::span<const int64_t> predicted, int64_t positive);

// The largest, the first of equals.
int64_t index_of_largest(std::span<const double> values);

}  // namespace fathom
