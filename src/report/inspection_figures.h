// The figures of an inspection, each from its numbers.
#pragma once

#include <cstdint>

#include "report/chart.h"
#include "report/heat_map.h"
#include "report/inspection.h"

namespace fathom {

enum class Shown : uint8_t { kValues, kRan };

HeatMap token_map(const InspectionStats& stats, const Trace& trace, Shown shown);  // the first tokens
HeatMap class_map(const InspectionStats& stats);
Chart skip_chart(const InspectionStats& stats);
Chart token_chart(const InspectionStats& stats);
Chart bubble_chart(const InspectionStats& stats);
// Of all attention units, or all FFNs; the thresholds (empty: none) as lines across their unit's. Without
// series where the method rates none of them.
Chart density_chart(const InspectionStats& stats, Unit unit, const std::vector<float>& thresholds);

// The 2nd and the 98th percentile of all values: what colours span.
struct ValueRange {
  double low = 0, high = 1;
};
ValueRange value_range(const InspectionStats& stats);

inline constexpr size_t kTokensInPicture = 96, kTokensNamed = 10;  // named: at each end

}  // namespace fathom
