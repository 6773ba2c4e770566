#include "ops/rows/read_scalars.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/rows/fill.h"

namespace fathom {
namespace {

TEST(ReadScalars, BringsManyNumbersInOneCopy) {
  for (const Device device : {Device::kCpu, Device::kGuarded}) {
    Context ctx({.device = device, .threads = 1});
    std::vector<Tensor> tensors;
    for (int32_t i = 0; i < 200; ++i) {
      if (i % 2 == 0)
        tensors.push_back(scalar(ctx, static_cast<float>(i) / 4));
      else
        tensors.push_back(Tensor::from(ctx, std::span<const int32_t>(&i, 1), {1}));
    }
    const std::vector<Scalar> read = read_scalars(ctx, tensors);
    ASSERT_EQ(read.size(), 200u);
    for (int32_t i = 0; i < 200; ++i) {
      const Scalar one = read[static_cast<size_t>(i)];
      if (i % 2 == 0)
        EXPECT_EQ(one.as_float(), static_cast<float>(i) / 4);
      else
        EXPECT_EQ(one.as_int(), i);
    }
    EXPECT_EQ(ctx.transfers().to_host, device == Device::kCpu ? 0u : 1u);
    EXPECT_TRUE(read_scalars(ctx, {}).empty());
    EXPECT_THROW(read_scalars(ctx, std::array{Tensor::owned(device, DType::kF32, {2})}), UserError);
  }
}

}  // namespace
}  // namespace fathom
