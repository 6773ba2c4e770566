#include "cli/samples.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace fathom {

double Samples::median() const {
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const size_t n = sorted.size();
  return n == 0 ? 0 : n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

double Samples::least() const {
  return values.empty() ? 0 : *std::min_element(values.begin(), values.end());
}

double Samples::most() const {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

nlohmann::ordered_json Samples::json() const {
  return {{"median", median()}, {"min", least()}, {"max", most()}};
}

}  // namespace fathom
