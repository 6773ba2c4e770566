// fail("linear: weight must be {}, got {}", want, got): throws UserError. Included in .cc files only.
#pragma once

#include <fmt/core.h>

#include "base/error.h"

namespace fathom {

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> pattern, Args&&... args) {
  throw UserError(fmt::format(pattern, std::forward<Args>(args)...));
}

template <class... Args>
void require(bool condition, fmt::format_string<Args...> pattern, Args&&... args) {
  if (!condition) throw UserError(fmt::format(pattern, std::forward<Args>(args)...));
}

}  // namespace fathom
