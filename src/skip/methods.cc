#include "skip/methods.h"

#include <array>

#include "base/format.h"

namespace fathom {

#define METHOD(name) std::unique_ptr<Method> make_##name();
#include "skip/method_list.inc"
#undef METHOD

std::span<const MethodEntry> methods() {
#define METHOD(name) MethodEntry{#name, make_##name},
  static constexpr std::array kMethods{
#include "skip/method_list.inc"
  };
#undef METHOD
  return kMethods;
}

std::unique_ptr<Method> make_method(std::string_view name) {
  std::string known;
  for (const MethodEntry& entry : methods()) {
    if (entry.name == name) return entry.make();
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  fail("there is no method '{}': the methods are {}", printable(name), known);
}

}  // namespace fathom
