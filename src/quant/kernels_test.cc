#include <gtest/gtest.h>

#include "quant/kernel_checks.h"

namespace fathom {
namespace {

TEST(Kernels, EveryInstructionSetAgreesWithScalarAndEveryRowWithItselfAlone) {
  const std::vector<KernelCheck> checks = run_kernel_checks();
  EXPECT_GE(checks.size(), 26u);
  for (const KernelCheck& check : checks) EXPECT_EQ(check.failure, "") << check.name;
}

}  // namespace
}  // namespace fathom
