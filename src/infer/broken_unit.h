// Where numbers stopped being numbers.
#pragma once

#include <string>

#include "infer/feeder.h"

namespace fathom {

// For an error about the last row that a sequence was fed: feeds that row once more, looking at the residual
// stream after every unit. -> "; first not finite after the attention of layer 3", or "" when all of it is.
// The sequence is of no use afterwards.
std::string where_it_broke(Feeder& feeder, int32_t sequence, std::span<const int32_t> fed);

}  // namespace fathom
