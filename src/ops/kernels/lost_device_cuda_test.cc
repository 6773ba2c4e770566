// A device that is lost while it computes ends as one clear line, and the process ends by itself.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "ops/kernels/gpu_test.h"
#include "ops/rows/pointwise.h"

namespace fathom {
namespace {

// A kernel reads an address that is not the device's: from then on every call of this process fails.
void lose_the_device() {
  Context ctx({.device = Device::kCuda, .threads = 1});
  const auto* nowhere = reinterpret_cast<const void*>(uintptr_t{64});
  const Tensor x = Tensor::view(Device::kCuda, nowhere, DType::kF32, {4, 8}, nullptr);
  for (int call = 0; call < 2; ++call) {
    try {
      const Tensor sum = add(ctx, x, x);
      std::vector<float> values(32);
      copy_to_host(ctx, sum, values);
    } catch (const UserError& error) {
      std::fprintf(stderr, "line %d: %s\n", call + 1, error.what());
    }
  }
}

TEST(CudaDeviceDeathTest, ALostDeviceIsNamedEveryTime) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        lose_the_device();
        std::exit(7);
      },
      testing::ExitedWithCode(7), "line 1: cuda: the device is lost .*line 2: cuda: the device is lost ");
}

}  // namespace
}  // namespace fathom
