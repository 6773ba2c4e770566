// The contexts that an op which changes its operands in place is tested in.
#pragma once

#include <memory>
#include <vector>

#include "base/error.h"
#include "tensor/context.h"

namespace fathom {

// The CPU with one thread and with three, the guarded device, and a GPU where there is one.
inline std::vector<std::unique_ptr<Context>> every_device() {
  std::vector<std::unique_ptr<Context>> all;
  for (const ContextOptions& options : {ContextOptions{.threads = 1}, ContextOptions{.threads = 3},
                                        ContextOptions{.device = Device::kGuarded, .threads = 2}})
    all.push_back(std::make_unique<Context>(options));
  try {
    all.push_back(std::make_unique<Context>(ContextOptions{.device = Device::kCuda, .threads = 1}));
  } catch (const UserError&) {  // no GPU, or a build without one
  }
  return all;
}

}  // namespace fathom
