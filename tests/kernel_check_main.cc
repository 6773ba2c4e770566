// The kernel checks as a program without a test framework, for cross-building: see src/quant/README.md.
#include <cstdio>

#include "quant/kernel_checks.h"

int main() {
  int passed = 0, failed = 0;
  for (const fathom::KernelCheck& check : fathom::run_kernel_checks()) {
    if (check.failure.empty()) {
      ++passed;
    } else {
      ++failed;
      std::printf("FAILED %s: %s\n", check.name.c_str(), check.failure.c_str());
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
