// Names the unit after which a pass was first not finite.
#pragma once

#include <string>

#include "infer/feeder.h"

namespace fathom {

// Throws a UserError: `what`, and where the rows that a sequence was fed (`fed`: all its tokens) first were
// not finite. They are fed once more for it, looking at the residual stream after every unit; the sequence is
// of no use afterwards.
[[noreturn]] void fail_where_it_broke(const std::string& what, Feeder& feeder, int32_t sequence,
                                      std::span<const int32_t> fed);

}  // namespace fathom
