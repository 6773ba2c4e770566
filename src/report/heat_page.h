// The token × layer map inside a page: every cell under the pointer, scores or decisions.
#pragma once

#include <string>

#include "report/inspection.h"

namespace fathom {

inline constexpr size_t kTokensInPage = 1000;  // a browser's canvas has its limits

// Markup and script.
std::string heat_section(const Inspection& inspection, const InspectionStats& stats);

}  // namespace fathom
