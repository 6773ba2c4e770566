// The list of methods. CONTRIBUTING.md lists what a new one touches.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "skip/method.h"

namespace fathom {

struct MethodEntry {
  std::string_view name;
  std::unique_ptr<Method> (*make)();
};

std::span<const MethodEntry> methods();
// An unknown name is a UserError that lists the known ones.
std::unique_ptr<Method> make_method(std::string_view name);

}  // namespace fathom
