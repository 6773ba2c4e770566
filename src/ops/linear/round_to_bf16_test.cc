#include "ops/linear/round_to_bf16.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "ops/kernels/every_device_test.h"
#include "quant/half.h"

namespace fathom {
namespace {

TEST(RoundToBf16, RoundsEveryElement) {
  Rng rng(3);
  std::vector<float> values(37 * 80);
  for (float& value : values) value = rng.normal();
  values[5] = 1.00390625f;  // between two: the even one
  for (const auto& ctx : every_device()) {
    const Tensor x = Tensor::from(*ctx, values, {37, 80});
    for (const int64_t width : {80, 48}) {
      Tensor out = Tensor::empty(*ctx, DType::kBF16, {37, width});
      round_to_bf16(*ctx, width == 80 ? x : x.columns(0, width), out);
      const Tensor host = out.to(*ctx, Device::kCpu);
      for (int64_t i = 0; i < 37 * width; ++i)
        ASSERT_EQ(host.data<uint16_t>()[i],
                  bf16_of_f32(values[static_cast<size_t>(i / width * 80 + i % width)]))
            << name_of(ctx->device()) << " " << i;
    }
    Tensor small = Tensor::empty(*ctx, DType::kBF16, {37, 79});
    EXPECT_THROW(round_to_bf16(*ctx, x, small), UserError);
  }
}

}  // namespace
}  // namespace fathom
