// Repeated measurements.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace fathom {

struct Samples {
  std::vector<double> values;
  double median() const;
  double least() const;
  double most() const;
  nlohmann::ordered_json json() const;  // {"median", "min", "max"}
};

}  // namespace fathom
