#include "ops/rows/soft_cap.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/op_case.h"

namespace fathom {
namespace {

OpCase soft_cap_case(Shape shape, float cap, float scale) {
  return {.name = "soft_cap " + to_string(shape),
          .inputs = {{shape, DType::kF32, scale}},
          .run = [=](Context& ctx, std::span<const Tensor> in) { return soft_cap(ctx, in[0], cap); },
          .reference =
              [=](std::span<const Tensor> in) {
                std::vector<double> out;
                for (int64_t i = 0; i < in[0].numel(); ++i)
                  out.push_back(cap * std::tanh(in[0].data<float>()[i] / double{cap}));
                return out;
              },
          .tol = {.forward = 3e-7f, .grad = 1e-5f}};
}

TEST(SoftCap, MatchesTheDefinition) {
  check(soft_cap_case({5, 64}, 30.0f, 10.0f));
  check(soft_cap_case({2, 20003}, 30.0f, 40.0f));  // rows longer than one piece
  check(soft_cap_case({1, 11}, 50.0f, 0.01f));
  check(soft_cap_case({3, 9}, 1.0f, 1e4f));
  check(soft_cap_case({0, 9}, 1.0f, 1.0f));
}

TEST(SoftCap, RefusesACapOfZero) {
  Context ctx({.threads = 1});
  EXPECT_THROW(soft_cap(ctx, Tensor::empty(ctx, DType::kF32, {1, 8}), 0.0f), UserError);
}

}  // namespace
}  // namespace fathom
