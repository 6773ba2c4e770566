// Products of many rows on a GPU, whose algorithm is chosen for a range of them: any number of rows in it
// gives the CPU's products, and the same bits whatever was multiplied before.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/gpu_test.h"
#include "ops/linear/gemm_cuda.h"
#include "quant/half.h"
#include "tensor/tensor.h"

namespace fathom {
namespace {

using Values = std::vector<float>;

void multiply_range_on_gpu(Context& ctx, const CudaGemmArgs& args) {
  if constexpr (kHasCuda) cuda_gemm(ctx.cuda(), args);
}

class CudaGemmRanges : public Cuda {
 protected:
  CudaGemmRanges() : Cuda(61) {}

  Tensor matrix(int64_t rows, int64_t columns, bool bf16) {
    Tensor out = Tensor::owned(Device::kCpu, bf16 ? DType::kBF16 : DType::kF32, {rows, columns});
    for (int64_t i = 0; i < out.numel(); ++i) {
      const float value = rng_.normal();
      if (bf16) {
        out.data<uint16_t>()[i] = bf16_of_f32(value);
      } else {
        out.data<float>()[i] = value;
      }
    }
    return out;
  }

  struct Case {
    GemmLayout layout;
    int64_t rows, n, inner;  // inner: the sum's length, of kTN the result's rows
    bool bf16;
    float beta;
  };

  CudaGemmArgs args_of(const Case& c, const Tensor& a, const Tensor& b, Tensor& out) const {
    const bool turned = c.layout == GemmLayout::kTN;
    return {.layout = c.layout,
            .m = turned ? c.inner : c.rows,
            .n = c.n,
            .k = turned ? c.rows : c.inner,
            .a = {a.raw(), a.stride(0), c.bf16},
            .b = {b.raw(), b.stride(0), c.bf16},
            .c = out.raw(),
            .c_stride = c.n,
            .beta = c.beta};
  }

  Values on_gpu(Context& ctx, const Case& c, const Tensor& a, const Tensor& b, const Tensor& sum) {
    const Tensor a_there = a.to(ctx, Device::kCuda), b_there = b.to(ctx, Device::kCuda);
    Tensor out = sum.to(ctx, Device::kCuda);
    multiply_range_on_gpu(ctx, args_of(c, a_there, b_there, out));
    Values values(static_cast<size_t>(out.numel()));
    copy_to_host(ctx, out, values);
    return values;
  }

  void check(const Case& c) {
    const bool turned = c.layout == GemmLayout::kTN, b_turned = c.layout == GemmLayout::kNT;
    const Tensor a = matrix(c.rows, c.inner, c.bf16), b = matrix(turned     ? c.rows
                                                                 : b_turned ? c.n
                                                                            : c.inner,
                                                                 b_turned ? c.inner : c.n, c.bf16);
    Tensor sum = matrix(turned ? c.inner : c.rows, c.n, false);
    const Values got = on_gpu(*gpu_, c, a, b, sum);
    Context fresh({.device = Device::kCuda, .threads = 1});
    EXPECT_EQ(on_gpu(fresh, c, a, b, sum), got) << c.rows;
    const CudaGemmArgs args = args_of(c, a, b, sum);
    gemm(cpu_.cpu(), cpu_,
         {.layout = c.layout,
          .precision = c.bf16 ? Precision::kBf16 : Precision::kF32,
          .m = args.m,
          .n = args.n,
          .k = args.k,
          .a = args.a,
          .b = args.b,
          .c = sum.data<float>(),
          .c_stride = args.c_stride,
          .beta = c.beta});
    const double near = 2e-5 * std::sqrt(static_cast<double>(args.k) + 1.0);
    for (int64_t i = 0; i < sum.numel(); ++i)
      ASSERT_NEAR(got[static_cast<size_t>(i)], sum.data<float>()[i], near) << c.rows << ", element " << i;
  }
};

TEST_F(CudaGemmRanges, EveryNumberOfRowsIsTheCpus) {
  for (const GemmLayout layout : {GemmLayout::kNN, GemmLayout::kNT, GemmLayout::kTN}) {
    for (const float beta : {0.0f, 1.0f}) {
      for (const int64_t rows : {2047, 2048, 2049, 2176, 4095, 4224, 5000, 9088, 9089})
        check({layout, rows, 72, 64, true, beta});
      check({layout, 4224, 72, 64, false, beta});
      check({layout, 2049, 7, 9, true, beta});  // nothing is aligned
    }
  }
}

}  // namespace
}  // namespace fathom
