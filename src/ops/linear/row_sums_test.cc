#include "ops/linear/row_sums.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/kernels/op_case.h"

namespace fathom {
namespace {

TEST(RowSums, TransposedProduct) {
  check(
      {.name = "transposed_product",
       .inputs = {{{37, 3}}, {{37, 50}}},
       .run = [](Context& ctx, std::span<const Tensor> in) { return transposed_product(ctx, in[0], in[1]); },
       .reference =
           [](std::span<const Tensor> in) {
             std::vector<double> out(3 * 50);
             for (size_t r = 0; r < 37; ++r) {
               for (size_t i = 0; i < 3; ++i) {
                 for (size_t j = 0; j < 50; ++j)
                   out[i * 50 + j] += static_cast<double>(in[0].data<float>()[r * 3 + i]) *
                                      static_cast<double>(in[1].data<float>()[r * 50 + j]);
               }
             }
             return out;
           },
       .row_invariant = false});
}

TEST(RowSums, SumRows) {
  check({.name = "sum_rows",
         .inputs = {{{29, 5}}},
         .run = [](Context& ctx, std::span<const Tensor> in) { return sum_rows(ctx, in[0]); },
         .reference =
             [](std::span<const Tensor> in) {
               std::vector<double> out(5);
               for (size_t i = 0; i < 29 * 5; ++i) out[i % 5] += static_cast<double>(in[0].data<float>()[i]);
               return out;
             },
         .row_invariant = false});
}

TEST(RowSums, RefuseOperandsThatDoNotFit) {
  Context ctx({.threads = 1});
  const Tensor a = Tensor::empty(ctx, DType::kF32, {4, 2}), b = Tensor::empty(ctx, DType::kF32, {5, 2});
  EXPECT_THROW(transposed_product(ctx, a, b), UserError);
  EXPECT_THROW(sum_rows(ctx, a.reshape({8})), UserError);
}

}  // namespace
}  // namespace fathom
