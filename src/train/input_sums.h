// Checksums of what a run learns from: a run that goes on must meet the same data and the same base.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "train/dataset.h"

namespace fathom {

using NamedSums = std::vector<std::pair<std::string, uint32_t>>;  // CRC-32C

// The tokens of each source, as training sees them.
NamedSums data_sums(const Dataset& data);
// Every weight's bytes, as the model holds them.
NamedSums weight_sums(Context& ctx, const Model& model);

// The names whose sums differ, or that are in one list alone: a few and how many more. "": none.
std::string differing_names(const NamedSums& saved, const NamedSums& now);

}  // namespace fathom
