#include "serve/random_id.h"

#include <random>

#include "base/format.h"

namespace fathom {

std::string random_id(const char* prefix) {
  std::random_device device;
  return fmt::format("{}-{:08x}{:08x}{:08x}", prefix, device(), device(), device());
}

}  // namespace fathom
