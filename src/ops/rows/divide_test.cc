#include "ops/rows/divide.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/kernels/op_case.h"
#include "ops/rows/concatenate.h"

namespace fathom {
namespace {

TEST(Divide, MatchesTheDefinition) {
  for (const Shape& shape : {Shape{5, 7}, Shape{1}, Shape{40000}}) {
    check({.name = "divide " + to_string(shape),
           .inputs = {{shape}, {shape}},
           .run = [](Context& ctx, std::span<const Tensor> in) { return divide(ctx, in[0], in[1]); },
           .reference =
               [](std::span<const Tensor> in) {
                 std::vector<double> out;
                 for (int64_t i = 0; i < in[0].numel(); ++i)
                   out.push_back(static_cast<double>(in[0].data<float>()[i]) /
                                 static_cast<double>(in[1].data<float>()[i]));
                 return out;
               },
           .row_invariant = false});
  }
}

TEST(Divide, ByZeroIsZero) {
  Context ctx({.threads = 1});
  const std::vector<float> a{1, 0, -3, 6}, b{0, 0, -0.0f, 2};
  const Tensor out = divide(ctx, Tensor::from(ctx, a, {4}), Tensor::from(ctx, b, {4}));
  const std::vector<float> want{0, 0, 0, 3};
  EXPECT_EQ(std::vector<float>(out.data<float>(), out.data<float>() + 4), want);
  EXPECT_THROW(divide(ctx, out, Tensor::from(ctx, std::vector<float>(3), {3})), UserError);
}

TEST(Concatenate, PutsPartsOneAfterAnother) {
  for (const Device device : {Device::kCpu, Device::kGuarded}) {
    Context ctx({.device = device, .threads = 1});
    const std::vector<float> a{1, 2}, b{3}, all{1, 2, 3};
    const Tensor out = concatenate(ctx, std::array{Tensor::from(ctx, a, {2}), Tensor::from(ctx, b, {1}),
                                                   Tensor::from(ctx, std::vector<float>(), {0})});
    std::vector<float> values(3);
    copy_to_host(ctx, out, values);
    EXPECT_EQ(values, all);
    EXPECT_EQ(concatenate(ctx, {}).numel(), 0);
    EXPECT_THROW(concatenate(ctx, std::array{Tensor::from(ctx, a, {1, 2})}), UserError);
  }
}

}  // namespace
}  // namespace fathom
