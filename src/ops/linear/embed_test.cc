#include "ops/linear/embed.h"

#include <gtest/gtest.h>

#include "ops/kernels/op_case.h"
#include "quant/formats.h"

namespace fathom {
namespace {

OpCase embed_case(DType dtype, int64_t rows, int64_t width, float scale) {
  return {.name = std::string("embed ") + name_of(dtype),
          .inputs = {{{rows}, DType::kI32, 1.0f, 19}, {{19, width}, dtype}},
          .run = [=](Context& ctx, std::span<const Tensor> in) { return embed(ctx, in[0], in[1], scale); },
          .reference =
              [=](std::span<const Tensor> in) {
                std::vector<double> out;
                std::vector<float> row(static_cast<size_t>(width));
                for (int64_t r = 0; r < rows; ++r) {
                  const int64_t at = in[0].data<int32_t>()[r] * row_bytes(dtype, width);
                  decode_row(dtype, in[1].data<std::byte>() + at, row.data(), width);
                  for (const float value : row) out.push_back(value * double{scale});
                }
                return out;
              },
          .tol = {.forward = 1e-7f, .grad = dtype == DType::kF32 ? 1e-5f : 0.0f}};
}

TEST(Embed, EveryType) {
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
        DType::kQ8_0, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    check(embed_case(dtype, 7, 256, 1.0f));
    check(embed_case(dtype, 40, 512, 22.627417f));
    check(embed_case(dtype, 0, 256, 1.0f));
  }
}

TEST(Embed, CountsTheRowsItRead) {
  Context ctx({.threads = 2});
  const Tensor table = Tensor::owned(Device::kCpu, DType::kQ8_0, {10, 64});
  embed(ctx, Tensor::from(ctx, std::vector<int32_t>{1, 1, 9}, {3}), table);
  EXPECT_EQ(ctx.counters().total().weight_bytes, 3u * 2 * 34);
}

TEST(Embed, NamesTheIdThatIsOutOfRange) {
  Context ctx({.threads = 2});
  const Tensor table = Tensor::owned(Device::kCpu, DType::kF32, {10, 8});
  for (const int32_t id : {-1, 10}) {
    try {
      embed(ctx, Tensor::from(ctx, std::vector<int32_t>{3, id}, {2}), table);
      FAIL();
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()),
                "embed: token id must be in [0, 10), got " + std::to_string(id) + " in row 1");
    }
  }
  EXPECT_THROW(embed(ctx, Tensor::from(ctx, std::vector<int32_t>{3}, {1}),
                     Tensor::owned(Device::kCpu, DType::kI32, {4, 4})),
               UserError);
}

}  // namespace
}  // namespace fathom
