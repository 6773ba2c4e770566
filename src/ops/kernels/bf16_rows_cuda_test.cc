// Two units of a block as training on a GPU computes them, in bf16 and in place, against the same ops on the
// CPU in f32: norms of kept rows, the branch that joins the residual stream, and its score's gradient.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/gpu_test.h"
#include "ops/kernels/kept_rows_test.h"
#include "ops/linear/linear.h"
#include "ops/linear/round_to_bf16.h"
#include "ops/linear/row_sums.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/add_rows.h"
#include "ops/rows/fill.h"
#include "ops/rows/rms_norm.h"
#include "ops/rows/select_rows.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

using Values = std::vector<float>;

double distance(const Values& a, const Values& b) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    apart += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(apart / size);
}

struct UnitValues {
  Values norm, weight, score, noise;
};

class CudaBf16Rows : public Cuda {
 protected:
  CudaBf16Rows() : Cuda(7) {}

  // A score of 0.5 keeps none (all: every row); a row's own score learns.
  struct Case {
    int64_t rows, width;
    bool all;
    float threshold;
  };

  std::vector<Values> run(Context& ctx, const Case& c, const Values& h_values, const Values& d_values,
                          const std::vector<UnitValues>& units) {
    const ArenaScope arena(ctx);
    Tape tape(ctx.device());
    const TapeScope recording(ctx, tape);
    const bool bf16 = ctx.device() == Device::kCuda;
    const DType type = bf16 ? DType::kBF16 : DType::kF32;
    std::vector<Tensor> leaves;
    const auto leaf = [&](const Tensor& value, const Shape& shape) {
      Tensor sum = Tensor::owned(ctx.device(), DType::kF32, shape);
      leaves.push_back(sum);
      return parameter(value, sum);
    };
    const Tensor from = leaf(Tensor::from(ctx, h_values, {c.rows, c.width}), {c.rows, c.width});
    Tensor h = add_rows(ctx, from, RowSet::all(c.rows), Tensor::from(ctx, h_values, {c.rows, c.width}));
    const void* memory = h.raw();
    for (const UnitValues& unit : units) {
      const Tensor norm = leaf(Tensor::from(ctx, unit.norm, {c.width}), {c.width});
      Tensor rounded = Tensor::empty(ctx, DType::kBF16, {c.width, c.width});
      round_to_bf16(ctx, Tensor::from(ctx, unit.weight, {c.width, c.width}), rounded);
      const Tensor weight = leaf(rounded, {c.width, c.width});
      const Tensor score = leaf(Tensor::from(ctx, unit.score, {c.rows}), {c.rows});
      const RowSet kept = c.all ? RowSet::all(c.rows)
                                : select_rows(ctx, Tensor::from(ctx, unit.noise, {c.rows}), Compare::kAbove,
                                              scalar(ctx, c.threshold));
      Tensor branch;
      linear_group(ctx, rms_norm_rows(ctx, h, kept, norm, {}, type), {&weight, 1}, {}, {&branch, 1}, type);
      add_rows_to(ctx, h, kept, branch, score);
    }
    EXPECT_TRUE(!bf16 || h.raw() == memory);  // nothing holds the stream: it changes in place
    std::vector<Values> out{host_values(ctx, h)};
    const Tensor d = Tensor::from(ctx, d_values, {c.rows, c.width});
    Tensor loss = Tensor::owned(ctx.device(), DType::kF32, {1});
    differentiate(ctx, {&h}, loss,
                  [h = detach(h).with_gradient(h.gradient()), d](Context& each, const Tensor&) {
                    accumulate(each, h, d);
                  });
    tape.backward(ctx, loss);
    for (const Tensor& sum : leaves) out.push_back(host_values(ctx, sum));
    return out;
  }

  void check(const Case& c) {
    std::vector<UnitValues> units;
    for (int i = 0; i < 2; ++i) {
      units.push_back({normals(c.width, 0.3f, 1.0f),
                       normals(c.width * c.width, 1.0f / std::sqrt(static_cast<float>(c.width))),
                       normals(c.rows), normals(c.rows)});
      units.back().norm[1] = 0.0f;  // what it multiplied is found all the same
    }
    const Values h = normals(c.rows * c.width), d = normals(c.rows * c.width);
    const std::vector<Values> got = run(*gpu_, c, h, d, units), again = run(*gpu_, c, h, d, units),
                              want = run(cpu_, c, h, d, units);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i], again[i]) << i;
      EXPECT_LE(distance(got[i], want[i]), 0.01) << c.rows << " x " << c.width << ", tensor " << i;
    }
    for (size_t unit = 0; unit < 2; ++unit) {
      const float at = got[2 + 3 * unit][1], wanted = want[2 + 3 * unit][1];
      EXPECT_NEAR(at, wanted, 0.05f * (1 + std::abs(wanted))) << "the weight that is 0";
    }
  }
};

TEST_F(CudaBf16Rows, UnitsAreTheCpus) {
  check({300, 64, true, 0});
  check({300, 64, false, 0});
  check({1000, 576, false, -0.7f});
  check({130, 1032, false, 0.7f});
  check({70, 4096, true, 0});
}

TEST_F(CudaBf16Rows, SumsOverRows) {
  const Values a = normals(5000 * 2), b = normals(5000 * 576);
  Tensor there = Tensor::owned(Device::kCuda, DType::kBF16, {5000, 576});
  const Tensor b_gpu = Tensor::from(*gpu_, b, {5000, 576});
  Tape tape(Device::kCuda);
  const TapeScope recording(*gpu_, tape);
  round_to_bf16(*gpu_, b_gpu, there);
  const Values got = host_values(*gpu_, transposed_product(*gpu_, Tensor::from(*gpu_, a, {5000, 2}), there));
  const Values want = host_values(
      cpu_, transposed_product(cpu_, Tensor::from(cpu_, a, {5000, 2}), Tensor::from(cpu_, b, {5000, 576})));
  EXPECT_LE(distance(got, want), 0.004);
}

}  // namespace
}  // namespace fathom
