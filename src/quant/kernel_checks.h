// Every kernel of this machine's instruction sets against the scalar ones and against doubles, without a test
// framework: the same checks run natively under GoogleTest and cross-built under an emulator
// (tests/kernel_check_main.cc).
#pragma once

#include <string>
#include <vector>

namespace fathom {

struct KernelCheck {
  std::string name;
  std::string failure;  // empty: passed
};

std::vector<KernelCheck> run_kernel_checks();

}  // namespace fathom
