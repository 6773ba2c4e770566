// The curves of a sweep.
#pragma once

#include "report/chart.h"
#include "report/sweep_stats.h"

namespace fathom {

// Of one task: quality against the multiply-adds saved, with standard errors; without series where the task
// is not judged.
Chart quality_chart(const std::vector<SweepPoint>& points);

// The same against the time of a decoded token, as measured; without series where no time was.
Chart quality_by_time_chart(const std::vector<SweepPoint>& points);

// Of one task: how far each method is from its random and its shallower baseline at the same savings, on the
// same items, with paired standard errors and the verdict beside each point; without series where it has
// none.
Chart difference_chart(const std::vector<SweepPoint>& points);

// Of one task, or of the mean: how much faster tokens are decoded, against the bytes that are not read.
Chart speed_chart(const std::vector<SweepPoint>& points);

}  // namespace fathom
