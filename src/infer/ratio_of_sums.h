// A ratio of two sums over sequences, which differ in length, with its error.
#pragma once

#include <cmath>
#include <span>

namespace fathom {

struct RatioOfSums {
  double value = 0, error = 0;  // error: of the sequences' residuals; NaN where there is one sequence
};

template <class Sums>
RatioOfSums ratio_of_sums(std::span<const Sums> sequences, double Sums::*part, double Sums::*whole) {
  double parts = 0, wholes = 0, squares = 0;
  for (const Sums& each : sequences) {
    parts += each.*part;
    wholes += each.*whole;
  }
  const double value = parts / wholes, n = static_cast<double>(sequences.size());
  for (const Sums& each : sequences) squares += std::pow(each.*part - value * each.*whole, 2);
  return {value, n < 2 ? NAN : std::sqrt(squares * n / (n - 1)) / wholes};
}

}  // namespace fathom
