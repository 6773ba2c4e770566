// A norm and a router's product in one pass on a GPU, in bf16, against the ops on the CPU that they are made
// of, in f32: values, every gradient, and the work that is counted.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/gpu_test.h"
#include "ops/linear/linear.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/fill.h"
#include "ops/rows/mask_rows.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/rms_norm.h"
#include "quant/half.h"

namespace fathom {
namespace {

using Values = std::vector<float>;

struct RoutedCase {
  int64_t rows, width, outputs;
  bool factor = true;                // x comes from scale_through()
  bool normed = true, logit = true;  // what gets a gradient
  bool there = true;                 // x has one already
};

class CudaRoutedNorm : public Cuda {
 protected:
  CudaRoutedNorm() : Cuda(53) {}
  // Numbers of bf16: they are the same in f32.
  Values rounded_normals(int64_t count, float scale = 1.0f) {
    Values values = normals(count, scale);
    for (float& value : values) value = f32_of_bf16(bf16_of_f32(value));
    return values;
  }

  struct Inputs {
    Values x, weight, router, factor, ran, d, d_logit, arrived;
  };
  struct Result {
    std::vector<Values> values;
    uint64_t madds = 0;
  };

  static Tensor rounded(Context& ctx, const Values& values, const Shape& shape) {
    Tensor here = Tensor::owned(Device::kCpu, DType::kBF16, shape);
    for (size_t i = 0; i < values.size(); ++i) here.data<uint16_t>()[i] = bf16_of_f32(values[i]);
    return here.to(ctx, ctx.device());
  }
  static Values host(Context& ctx, const Tensor& t) {
    if (!t) return {};
    Values values(static_cast<size_t>(t.numel()));
    if (t.dtype() == DType::kF32) {
      copy_to_host(ctx, t, values);
      return values;
    }
    const Tensor here = t.to(ctx, Device::kCpu);
    for (size_t i = 0; i < values.size(); ++i) values[i] = f32_of_bf16(here.data<uint16_t>()[i]);
    return values;
  }

  static RoutedRows composed(Context& ctx, const Tensor& x, const Tensor& weight, RmsNormParams params,
                             const Tensor& router, const ScaledThrough& through) {
    Tensor scaled = x;
    if (through.p) {
      const Tensor side = multiply(ctx, through.p, affine(ctx, through.ran, 2.0f, -1.0f));
      scaled = scale_through(ctx, x, add(ctx, side, affine(ctx, through.ran, -1.0f, 1.0f)));
    }
    Tensor logits = linear(ctx, scaled, router);
    if (router.dim(0) == 2) {
      Tensor less = Tensor::empty(ctx, DType::kF32, {2}), first = less.rows(0, 1);
      fill(ctx, less, 1.0f);
      fill(ctx, first, -1.0f);
      logits = linear(ctx, logits, less.reshape({1, 2}));
    }
    return {rms_norm(ctx, scaled, weight, params), logits.reshape({logits.dim(0)})};
  }

  static Result run(Context& ctx, const RoutedCase& c, const Inputs& in) {
    const bool gpu = ctx.device() == Device::kCuda;
    Tape tape(ctx.device());
    const TapeScope recording(ctx, tape);
    const auto learns = [](const Tensor& t) { return t.with_gradient(std::make_shared<Gradient>()); };
    const Tensor x = learns(Tensor::from(ctx, in.x, {c.rows, c.width})),
                 weight = learns(Tensor::from(ctx, in.weight, {c.width})),
                 router = learns(Tensor::from(ctx, in.router, {c.outputs, c.width})),
                 factor = c.factor ? learns(Tensor::from(ctx, in.factor, {c.rows})) : Tensor();
    const ScaledThrough through{factor, Tensor::from(ctx, in.ran, {c.rows})};
    const RmsNormParams params{.weight_offset = 0.5f};
    const uint64_t before = ctx.counters().total().madds;
    const RoutedRows out = gpu ? rms_norm_routed(ctx, x, weight, params, router, through)
                               : composed(ctx, x, weight, params, router, through);
    if (c.there) accumulate(ctx, x, Tensor::from(ctx, in.arrived, {c.rows, c.width}));
    if (c.normed)
      accumulate(ctx, out.normed,
                 gpu ? rounded(ctx, in.d, {c.rows, c.width}) : Tensor::from(ctx, in.d, {c.rows, c.width}));
    if (c.logit) accumulate(ctx, out.logit, Tensor::from(ctx, in.d_logit, {c.rows}));
    tape.backward(ctx, learns(Tensor::from(ctx, Values{0.0f}, {1})));
    Result result;
    result.values = {host(ctx, out.normed), host(ctx, out.logit)};
    for (const Tensor& t : {x, weight, router, factor})
      result.values.push_back(t.gradient() ? host(ctx, t.gradient()->value) : Values());
    result.madds = ctx.counters().total().madds - before;
    return result;
  }

  void check(const RoutedCase& c) {
    Inputs in{rounded_normals(c.rows * c.width),
              rounded_normals(c.width),
              rounded_normals(c.outputs * c.width, 0.3f),
              rounded_normals(c.rows),
              rounded_normals(c.rows),
              rounded_normals(c.rows * c.width),
              rounded_normals(c.rows),
              rounded_normals(c.rows * c.width)};
    for (float& ran : in.ran) ran = ran > 0 ? 1.0f : 0.0f;
    in.weight[0] = -0.5f;  // with the offset 0: what it multiplied is found all the same
    // The factor's gradient is of what is already there, too, which on the CPU comes before scale_through().
    const bool apart = c.factor && c.there;
    const Result got = run(*gpu_, c, in), again = run(*gpu_, c, in), want = run(cpu_, c, in);
    const char* const names[] = {"norm", "logit", "dx", "d weight", "d router", "d factor"};
    for (size_t i = 0; i < want.values.size(); ++i) {
      const std::string what = std::string(names[i]) + " of " + std::to_string(c.rows) + " x " +
                               std::to_string(c.width) + ", outputs " + std::to_string(c.outputs);
      EXPECT_EQ(got.values[i], again.values[i]) << what;
      Values wanted = want.values[i];
      if (i == 3 && !c.normed) wanted.clear();
      if (i == 4 && !c.logit) wanted.clear();
      if (i == 5 && apart) {  // ⟨dx, x⟩ of the whole gradient
        for (int64_t r = 0; r < c.rows; ++r) {
          double sum = 0;
          for (int64_t j = r * c.width; j < (r + 1) * c.width; ++j)
            sum += static_cast<double>(in.x[static_cast<size_t>(j)]) *
                   static_cast<double>(want.values[2][static_cast<size_t>(j)]);
          wanted[static_cast<size_t>(r)] =
              static_cast<float>(in.ran[static_cast<size_t>(r)] > 0 ? sum : -sum);
        }
      }
      ASSERT_EQ(got.values[i].size(), wanted.size()) << what;
      double away = 0, size = 0;
      for (size_t j = 0; j < wanted.size(); ++j) {
        away += std::pow(static_cast<double>(got.values[i][j]) - static_cast<double>(wanted[j]), 2);
        size += std::pow(static_cast<double>(wanted[j]), 2);
      }
      EXPECT_LE(std::sqrt(away), (i == 1 ? 1e-5 : i == 5 ? 1e-2 : 4e-3) * std::sqrt(size)) << what;
    }
    if (c.logit) {
      EXPECT_EQ(got.madds, want.madds) << c.rows << " x " << c.width << ", outputs " << c.outputs;
    }
  }
};

TEST_F(CudaRoutedNorm, IsItsParts) {
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{{12, 4},
                                                                            {300, 40},
                                                                            {5000, 64},
                                                                            {333, 576},
                                                                            {9, 640},
                                                                            {40, 644},
                                                                            {17, 1152},
                                                                            {20, 2048},
                                                                            {3, 4096}}) {
    for (const int64_t outputs : {1, 2}) check({rows, width, outputs});
  }
}

TEST_F(CudaRoutedNorm, GradientsThatAreMissing) {
  check({70, 576, 2, false});
  check({70, 576, 2, true, false, true, true});
  check({70, 576, 2, true, true, false, true});
  check({70, 576, 1, true, true, true, false});
  check({70, 1032, 1, false, false, true, false});
  check({70, 1032, 2, false, true, false, false});
}

TEST_F(CudaRoutedNorm, RefusesWhatHasNoGradient) {
  const Tensor x = Tensor::from(*gpu_, normals(3 * 8), {3, 8}), weight = Tensor::from(*gpu_, normals(8), {8}),
               router = Tensor::from(*gpu_, normals(8), {1, 8});
  EXPECT_THROW(rms_norm_routed(*gpu_, x, weight, {}, router), UserError);
  Tape tape(Device::kCuda);
  const TapeScope recording(*gpu_, tape);
  EXPECT_THROW(rms_norm_routed(*gpu_, x, weight, {}, router), UserError);
  const Tensor learns = x.with_gradient(std::make_shared<Gradient>());
  EXPECT_THROW(rms_norm_routed(*gpu_, learns, weight, {}, Tensor::from(*gpu_, normals(24), {3, 8})),
               UserError);
}

}  // namespace
}  // namespace fathom
