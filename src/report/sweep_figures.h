// The curves of a sweep.
#pragma once

#include "report/chart.h"
#include "report/sweep_stats.h"

namespace fathom {

// Of one task: quality against the multiply-adds saved, with standard errors; without series where the task
// is not judged.
Chart quality_chart(const std::vector<SweepPoint>& points);

// Of one task, or of the mean: how much faster tokens are decoded, against the bytes that are not read.
Chart speed_chart(const std::vector<SweepPoint>& points);

}  // namespace fathom
