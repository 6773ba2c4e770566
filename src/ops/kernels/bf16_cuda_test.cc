// What training in bf16 on a GPU has of its own, against the CPU's ops in f32: SwiGLU whose product is made
// again, the product that joins the residual stream, and norms that round the stream's gradient.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/gpu_test.h"
#include "ops/linear/linear.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/add_rows.h"
#include "ops/rows/gated_activation.h"
#include "ops/rows/rms_norm.h"
#include "quant/half.h"

namespace fathom {
namespace {

using Values = std::vector<float>;

class CudaBf16 : public Cuda {
 protected:
  CudaBf16() : Cuda(47) {}
  // Numbers of bf16: they are the same in f32.
  Values normals(int64_t count, float scale = 1.0f) {
    Values values(static_cast<size_t>(count));
    for (float& value : values) value = f32_of_bf16(bf16_of_f32(rng_.normal() * scale));
    return values;
  }
};

Tensor tensor(Context& ctx, const Values& values, const Shape& shape, DType type = DType::kF32) {
  if (type == DType::kF32) return Tensor::from(ctx, values, shape);
  Tensor here = Tensor::owned(Device::kCpu, type, shape);
  for (size_t i = 0; i < values.size(); ++i) here.data<uint16_t>()[i] = bf16_of_f32(values[i]);
  return here.to(ctx, ctx.device());
}

Values host(Context& ctx, const Tensor& t) {
  Values values(static_cast<size_t>(t.numel()));
  if (t.dtype() == DType::kF32) {
    copy_to_host(ctx, t, values);
    return values;
  }
  const Tensor here = t.to(ctx, Device::kCpu);
  for (size_t i = 0; i < values.size(); ++i) values[i] = f32_of_bf16(here.data<uint16_t>()[i]);
  return values;
}

Tensor learns(const Tensor& t) {
  return t.with_gradient(std::make_shared<Gradient>());
}

void go_back(Context& ctx, Tape& tape) {
  tape.backward(ctx, learns(Tensor::from(ctx, Values{0.0f}, {1})));
}

// ‖a − b‖ ≤ tolerance · ‖b‖
void expect_near(const Values& a, const Values& b, double tolerance, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  double apart = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    apart += std::pow(double{a[i]} - double{b[i]}, 2);
    size += std::pow(double{b[i]}, 2);
  }
  EXPECT_LE(std::sqrt(apart), tolerance * std::sqrt(size)) << what;
}

TEST_F(CudaBf16, NormsAndTheirGradients) {
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{{1, 4},
                                                                            {300, 40},
                                                                            {5000, 64},
                                                                            {333, 576},
                                                                            {9, 640},
                                                                            {40, 644},
                                                                            {17, 1152},
                                                                            {20, 2048},
                                                                            {3, 4096}}) {
    const std::string what = std::to_string(rows) + " rows of " + std::to_string(width) + ": ";
    const Values x = normals(rows * width), weight = normals(width), d = normals(rows * width),
                 arrived = normals(rows * width);
    struct Result {
      Values y, dx, rounded, dw;
    };
    const auto run = [&](Context& ctx, DType type) {
      Tape tape(ctx.device());
      const TapeScope taped(ctx, tape);
      const Tensor stream = learns(tensor(ctx, x, {rows, width})), w = learns(tensor(ctx, weight, {width}));
      stream.gradient()->rounds = true;
      accumulate(ctx, stream, tensor(ctx, arrived, {rows, width}));
      const Tensor y = rms_norm(ctx, stream, w, {.weight_offset = 0.5f}, type);
      accumulate(ctx, y, tensor(ctx, d, {rows, width}, type));
      go_back(ctx, tape);
      const Tensor rounded = stream.gradient()->rounded;
      return Result{host(ctx, y), host(ctx, stream.gradient()->value),
                    rounded ? host(ctx, rounded) : Values(), host(ctx, w.gradient()->value)};
    };
    const Result want = run(cpu_, DType::kF32), got = run(*gpu_, DType::kBF16);
    expect_near(got.y, want.y, 4e-3, what + "result");
    // The gradient takes the normed row from the result.
    expect_near(got.dx, want.dx, 4e-3, what + "dx");
    expect_near(got.rounded, got.dx, 4e-3, what + "dx, rounded");
    expect_near(got.dw, want.dw, 4e-3, what + "dW");
    const Result again = run(*gpu_, DType::kBF16);
    EXPECT_TRUE(again.dx == got.dx && again.dw == got.dw) << what;
  }
}

// h + down(act(gate) ⊙ up), and the norm of it, whose gradient is the one that down multiplies.
TEST_F(CudaBf16, ABranchJoinsTheStream) {
  constexpr int64_t kRows = 300, kWidth = 72, kInner = 136;
  const Values gate = normals(kRows * kInner, 2.0f), up = normals(kRows * kInner),
               h = normals(kRows * kWidth), down = normals(kWidth * kInner, 0.1f), weight = normals(kWidth),
               d = normals(kRows * kWidth), d_sum = normals(kRows * kWidth);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    const auto run = [&](Context& ctx, DType type) {
      const bool on_gpu = type == DType::kBF16;
      Tape tape(ctx.device());
      const TapeScope taped(ctx, tape);
      const Tensor g = learns(tensor(ctx, gate, {kRows, kInner}, type)),
                   u = learns(tensor(ctx, up, {kRows, kInner}, type)),
                   stream = learns(tensor(ctx, h, {kRows, kWidth})),
                   matrix = learns(tensor(ctx, down, {kWidth, kInner}, type)),
                   w = learns(tensor(ctx, weight, {kWidth}));
      const uint64_t units = ctx.counters().total().unit_rows, madds = ctx.counters().total().madds;
      const Tensor inner = gated_activation(ctx, g, u, activation);
      const Tensor sum = on_gpu ? add_linear(ctx, stream, inner, matrix)
                                : add_rows(ctx, stream, RowSet::all(kRows), linear(ctx, inner, matrix));
      EXPECT_EQ(ctx.counters().total().unit_rows - units, uint64_t{kRows});
      EXPECT_EQ(ctx.counters().total().madds - madds, uint64_t{kRows * kWidth * kInner});
      accumulate(ctx, sum, tensor(ctx, d_sum, {kRows, kWidth}));
      const Tensor y = rms_norm(ctx, sum, w, {}, type);
      accumulate(ctx, y, tensor(ctx, d, {kRows, kWidth}, type));
      go_back(ctx, tape);
      EXPECT_EQ(ctx.counters().total().madds - madds, uint64_t{3 * kRows * kWidth * kInner});
      std::vector<Values> all{host(ctx, sum), host(ctx, y)};
      for (const Tensor& t : {stream, g, u, matrix, w}) all.push_back(host(ctx, t.gradient()->value));
      return all;
    };
    const std::vector<Values> want = run(cpu_, DType::kF32), got = run(*gpu_, DType::kBF16);
    const char* const names[] = {"sum", "norm", "dh", "d gate", "d up", "dW", "d weight"};
    for (size_t i = 0; i < want.size(); ++i) expect_near(got[i], want[i], 8e-3, names[i]);
    EXPECT_EQ(run(*gpu_, DType::kBF16), got);
  }
}

}  // namespace
}  // namespace fathom
