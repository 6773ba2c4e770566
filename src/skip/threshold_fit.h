// Thresholds found on the way through the network, and what steers them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/batch.h"

namespace fathom {

// A sequence as short as these, or the beginning of a longer one: rows that steering has not much to go by.
inline constexpr int32_t kFirstRows = 64;

// Calibration sets the first part; one pass of all its rows fills the second. The units follow in the order
// of the network: each is judged by the scores that rows have when the units before it have already skipped.
struct ThresholdFit {
  float share = 0;                 // of each unit's rows that is to skip
  std::vector<float> shares = {};  // (2L): of each unit, instead of the one for all
  std::vector<float> given = {};   // (2L): these thresholds, and no quantiles
  bool steers = false;             // the rows run at steered thresholds
  float first = 0;  // where they are: the first kFirstRows of a sequence run this share more than all rows do

  std::vector<float> thresholds = {};  // (2L), −∞ where a unit was not asked
  // (4 · 2L): the parts of Steering after the thresholds. A share of -1: the unit is not steered.
  std::vector<float> steering = {};

  void begin(int64_t units);
  // The rows are those that have the scores, each sequence's in order. No threshold falls below `least`.
  void find(int64_t unit, const std::vector<float>& scores, std::span<const BatchRow> rows, float least);
  std::vector<float> settings() const;  // as a sequence is given them
};

}  // namespace fathom
