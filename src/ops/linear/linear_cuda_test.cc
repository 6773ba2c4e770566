// Products on a GPU: every weight format against the definition, cuda_gemm() and the gradients against the
// CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/kernels/gpu_test.h"
#include "ops/kernels/kept_rows_test.h"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/linear.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/select_rows.h"
#include "quant/formats.h"
#include "quant/half.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

using Values = std::vector<float>;

// Any bytes are a block of the formats that nobody encodes, but for its f16 scales, which must be tame.
Tensor random_blocks(Rng& rng, DType dtype, const Shape& shape, const std::vector<int64_t>& scales) {
  Tensor out = Tensor::owned(Device::kCpu, dtype, shape);
  const int64_t size = traits(dtype).block_bytes;
  for (int64_t i = 0; i < out.nbytes(); ++i) out.data<uint8_t>()[i] = static_cast<uint8_t>(rng.below(256));
  for (int64_t block = 0; block < out.nbytes() / size; ++block) {
    for (const int64_t at : scales) {
      const uint16_t scale = f16_of_f32(0.002f * (1.0f + rng.uniform()));
      std::memcpy(out.data<std::byte>() + block * size + at, &scale, sizeof scale);
    }
  }
  return out;
}

class CudaLinear : public Cuda {
 protected:
  Tensor weight_of(DType dtype, int64_t out, int64_t in) {
    switch (dtype) {
      case DType::kQ2_K:
        return random_blocks(rng_, dtype, {out, in}, {80, 82});
      case DType::kQ3_K:
        return random_blocks(rng_, dtype, {out, in}, {108});
      case DType::kQ4_K:
      case DType::kQ5_K:
        return random_blocks(rng_, dtype, {out, in}, {0, 2});
      case DType::kQ6_K:
        return random_blocks(rng_, dtype, {out, in}, {208});
      default:
        break;
    }
    Tensor weight = Tensor::owned(Device::kCpu, dtype, {out, in});
    const Values values = normals(out * in, 0.1f);
    for (int64_t r = 0; r < out; ++r) {
      encode_row(dtype, values.data() + r * in, weight.data<std::byte>() + r * row_bytes(dtype, in), in);
    }
    return weight;
  }

  // Products of the decoded weights in f64; every number of rows gives a row the same bits. `apart`: rows
  // begin after two other elements and are followed by one, so that nothing is aligned.
  void check(DType dtype, int64_t in, int64_t out, bool apart = true) {
    constexpr int64_t kRows = 101;
    const int64_t before = apart ? 2 : 0, step = apart ? in + 3 : in;
    const Tensor weight = weight_of(dtype, out, in), there = weight.to(*gpu_, Device::kCuda);
    const Values x = normals(kRows * step), bias = normals(out);
    const ArenaScope scope(*gpu_);
    const Tensor rows = floats(*gpu_, x, {kRows, step}).columns(before, in);
    const Values all = host_values(*gpu_, linear(*gpu_, rows, there, floats(*gpu_, bias, {out})));
    Values decoded(static_cast<size_t>(in));
    const double rounding = dtype == DType::kBF16 ? 4e-6 : 1e-6;  // tensor cores cut their sums off
    for (int64_t c = 0; c < out; ++c) {
      decode_row(dtype, weight.data<std::byte>() + c * row_bytes(dtype, in), decoded.data(), in);
      for (int64_t r = 0; r < kRows; ++r) {
        double want = bias[static_cast<size_t>(c)], size = 1.0;
        for (int64_t i = 0; i < in; ++i) {
          const double term =
              double{x[static_cast<size_t>(r * step + before + i)]} * decoded[static_cast<size_t>(i)];
          want += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(all[static_cast<size_t>(r * out + c)], want, rounding * size)
            << name_of(dtype) << " " << r << ", " << c;
      }
    }
    for (const int64_t count : {1, 2, 8, 9, 16, 17, 64, 65}) {
      const Values few = host_values(
          *gpu_, linear(*gpu_, rows.rows(kRows - count, count), there, floats(*gpu_, bias, {out})));
      ASSERT_TRUE(same_bits(few, std::span(all).subspan(static_cast<size_t>((kRows - count) * out))))
          << name_of(dtype) << ", " << count << " rows";
    }
  }
};

TEST_F(CudaLinear, EveryFormatAndRowCount) {
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype == DType::kI32 || dtype == DType::kU8) continue;
    check(dtype, traits(dtype).block == 256 ? 768 : 576, 101);
  }
  check(DType::kF32, 7, 3);
  check(DType::kBF16, 45, 1);
  check(DType::kBF16, 576, 64, false);
  check(DType::kBF16, 1544, 130, false);  // the last piece of a row is a part of one
  check(DType::kBF16, 8, 5, false);
  check(DType::kBF16, 64, 16384, false);  // few rows, some rows and many rows are three kernels here
}

TEST_F(CudaLinear, AGroupIsItsMembers) {
  const Tensor x = floats(*gpu_, normals(5 * 64), {5, 64});
  const std::vector<Tensor> weights{weight_of(DType::kQ4_1, 33, 64).to(*gpu_, Device::kCuda),
                                    weight_of(DType::kF16, 8, 64).to(*gpu_, Device::kCuda),
                                    weight_of(DType::kBF16, 70, 64).to(*gpu_, Device::kCuda),
                                    weight_of(DType::kBF16, 8, 64).to(*gpu_, Device::kCuda)};
  const std::vector<Tensor> biases{floats(*gpu_, normals(33), {33}), {}, {}, floats(*gpu_, normals(8), {8})};
  std::vector<Tensor> outputs(weights.size());
  linear_group(*gpu_, x, weights, biases, outputs);
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(same_bits(host_values(*gpu_, outputs[i]),
                          host_values(*gpu_, linear(*gpu_, x, weights[i], biases[i]))));
  }
  EXPECT_EQ(gpu_->counters().total().madds, 2u * 5 * 64 * (33 + 8 + 70 + 8));
}

// What only a build with CUDA has.
void multiply_on_gpu(Context& ctx, const CudaGemmArgs& args) {
  if constexpr (kHasCuda) cuda_gemm(ctx.cuda(), args);
}

struct GemmCase {
  GemmLayout layout;
  int64_t m, n, k;
  bool bf16;
  float alpha = 1.0f, beta = 0.0f;
  int64_t gap = 0;  // elements between rows
};

class CudaGemm : public Cuda {
 protected:
  // (rows, columns + gap) on the CPU, NaN in the gaps.
  Tensor matrix(int64_t rows, int64_t columns, int64_t gap, DType dtype) {
    Tensor out = Tensor::owned(Device::kCpu, dtype, {rows, columns + gap});
    for (int64_t r = 0; r < rows; ++r) {
      Values values = normals(columns);
      values.resize(static_cast<size_t>(columns + gap), NAN);
      encode_row(dtype, values.data(), out.data<std::byte>() + r * row_bytes(dtype, columns + gap),
                 columns + gap);
    }
    return out;
  }

  void check(const GemmCase& p) {
    const DType dtype = p.bf16 ? DType::kBF16 : DType::kF32;
    const bool a_turned = p.layout == GemmLayout::kTN, b_turned = p.layout == GemmLayout::kNT;
    const Tensor a = matrix(a_turned ? p.k : p.m, a_turned ? p.m : p.k, p.gap, dtype),
                 b = matrix(b_turned ? p.n : p.k, b_turned ? p.k : p.n, p.gap, dtype);
    Tensor c = matrix(p.m, p.n, p.gap, DType::kF32);
    if (p.beta == 0.0f) std::fill_n(c.data<float>(), c.numel(), NAN);
    const auto there = [&](const Tensor& t) { return t.to(*gpu_, Device::kCuda); };
    const Tensor a_there = there(a), b_there = there(b);
    Tensor c_there = there(c), again = there(c);
    for (Tensor* out : {&c_there, &again})
      multiply_on_gpu(*gpu_, {.layout = p.layout,
                              .m = p.m,
                              .n = p.n,
                              .k = p.k,
                              .a = {a_there.raw(), a.stride(0), p.bf16},
                              .b = {b_there.raw(), b.stride(0), p.bf16},
                              .c = out->raw(),
                              .c_stride = c.stride(0),
                              .alpha = p.alpha,
                              .beta = p.beta});
    gemm(cpu_.cpu(), cpu_,
         {.layout = p.layout,
          .precision = p.bf16 ? Precision::kBf16 : Precision::kF32,
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .a = {a.raw(), a.stride(0), p.bf16},
          .b = {b.raw(), b.stride(0), p.bf16},
          .c = c.data<float>(),
          .c_stride = c.stride(0),
          .alpha = p.alpha,
          .beta = p.beta});
    const Values got = host_values(*gpu_, c_there);
    EXPECT_TRUE(same_bits(got, host_values(*gpu_, again)));
    const double size = 1e-5 * std::sqrt(static_cast<double>(p.k) + 1.0);  // of a sum of normal numbers
    for (int64_t i = 0; i < c.numel(); ++i) {
      const float want = c.data<float>()[i], is = got[static_cast<size_t>(i)];
      if (std::isnan(want)) {  // between the rows
        ASSERT_TRUE(std::isnan(is)) << i;
      } else {
        ASSERT_NEAR(is, want, size) << "layout " << static_cast<int>(p.layout) << " bf16 " << p.bf16 << " m "
                                    << p.m << " n " << p.n << " k " << p.k << " gap " << p.gap << ", element "
                                    << i;
      }
    }
  }
};

TEST_F(CudaGemm, EveryLayoutAndType) {
  for (const GemmLayout layout : {GemmLayout::kNN, GemmLayout::kNT, GemmLayout::kTN}) {
    for (const bool bf16 : {false, true}) {
      check({layout, 128, 192, 256, bf16});
      check({layout, 128, 192, 256, bf16, 1.0f, 1.0f});
      check({layout, 5, 576, 1536, bf16, 0.5f, 2.0f});
      check({layout, 7, 3, 45, bf16});                   // nothing is aligned
      check({layout, 33, 17, 65, bf16, 1.0f, 1.0f, 3});  // and the strides are odd
      check({layout, 64, 64, 8192, bf16, 1.0f, 1.0f});   // a sum worth splitting
      check({layout, 1, 1, 1, bf16});
    }
  }
}

TEST_F(CudaGemm, NothingToMultiply) {
  for (const GemmLayout layout : {GemmLayout::kNN, GemmLayout::kNT, GemmLayout::kTN}) {
    for (const float beta : {0.0f, 1.0f, 0.5f}) check({layout, 5, 300, 0, false, 1.0f, beta, 3});
    check({layout, 0, 5, 7, true});
    check({layout, 5, 0, 7, false});
  }
}

// A product of training and its gradient: two weights, a bias on the first one.
struct TapedProduct {
  DType type = DType::kF32;
  bool frozen = false;
  int32_t present = 300;
  bool compacted = false, selected = false;  // selected: by a score instead of a given count
  int64_t rows = 300, in = 96;
  std::vector<int64_t> outs = {40, 65};
};

struct Taped {
  std::vector<Values> outputs, dw;
  Values dx, db;
  Work work;
};

class CudaTaped : public CudaLinear {
 protected:
  // The same operands for both devices.
  void make_operands(const TapedProduct& p) {
    x_ = normals(p.rows * p.in);
    if (p.compacted) std::fill(x_.begin() + p.present * p.in, x_.end(), NAN);
    weights_.clear();
    d_.clear();
    for (const int64_t out : p.outs) {
      weights_.push_back(weight_of(p.type, out, p.in));
      d_.push_back(normals(p.rows * out));
      if (p.compacted) std::fill(d_.back().begin() + p.present * out, d_.back().end(), NAN);
    }
    bias_ = normals(p.outs[0]);
  }

  Tensor count_of(Context& ctx, const TapedProduct& p) const {
    if (!p.selected) return ints(ctx, {p.present}, {1});
    Values score(static_cast<size_t>(p.rows));
    std::fill_n(score.begin(), p.present, 1.0f);
    const RowSet kept =
        select_rows(ctx, floats(ctx, score, {p.rows}), Compare::kAbove, floats(ctx, {0.0f}, {1}));
    return kept.count();
  }

  static void backward(Context& ctx) {
    const Tensor loss = floats(ctx, {0.0f}, {1}).with_gradient(std::make_shared<Gradient>());
    ctx.tape()->backward(ctx, loss);
  }

  Taped run(Context& ctx, const TapedProduct& p) const {
    Tape tape(ctx.device());
    const TapeScope recording(ctx, tape);
    const Work before = ctx.counters().total();
    Tensor x = floats(ctx, x_, {p.rows, p.in});
    if (p.compacted) x = x.counted_by(count_of(ctx, p));
    x = x.with_gradient(std::make_shared<Gradient>());
    std::vector<Tensor> weights, dw, biases(p.outs.size()), outputs(p.outs.size());
    Tensor db = Tensor::owned(ctx.device(), DType::kF32, {p.outs[0]});
    for (const Tensor& weight : weights_) {
      dw.push_back(Tensor::owned(ctx.device(), DType::kF32, weight.shape()));
      const Tensor there = weight.to(ctx, ctx.device());
      weights.push_back(p.frozen ? there : parameter(there, dw.back()));
    }
    biases[0] = parameter(floats(ctx, bias_, {p.outs[0]}), db);
    linear_group(ctx, x, weights, biases, outputs);
    Taped result;
    for (size_t i = 0; i < outputs.size(); ++i) {
      result.outputs.push_back(host_values(ctx, outputs[i].rows(0, p.present)));
      accumulate(ctx, outputs[i], floats(ctx, d_[i], outputs[i].shape()).counted_like(outputs[i]));
    }
    backward(ctx);
    result.dx = host_values(ctx, x.gradient()->value.rows(0, p.present));
    result.db = host_values(ctx, db);
    for (const Tensor& sum : dw) result.dw.push_back(host_values(ctx, sum));
    result.work = ctx.counters().total() - before;
    return result;
  }

  static void expect_close(const Values& got, const Values& want, double tolerance, const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], tolerance * (1.0 + std::abs(want[i]))) << what << ", element " << i;
  }

  void check(const TapedProduct& p) {
    make_operands(p);
    const Taped got = run(*gpu_, p), again = run(*gpu_, p), want = run(cpu_, p);
    const std::string what = std::string(name_of(p.type)) + ", " + std::to_string(p.present) + " rows, ";
    // The CPU's quantised products round x, the GPU's do not.
    const double forward = is_block_format(p.type) ? 0.1 : 1e-4;
    for (size_t i = 0; i < p.outs.size(); ++i) {
      expect_close(got.outputs[i], want.outputs[i], forward, what + "y");
      expect_close(got.dw[i], want.dw[i], 1e-4, what + "dW");
      EXPECT_TRUE(same_bits(got.dw[i], again.dw[i])) << what;
    }
    expect_close(got.dx, want.dx, 1e-4, what + "dx");
    expect_close(got.db, want.db, 1e-4, what + "db");
    EXPECT_TRUE(same_bits(got.dx, again.dx) && same_bits(got.db, again.db)) << what;
    EXPECT_EQ(got.work.madds, want.work.madds) << what;
    EXPECT_EQ(got.work.weight_bytes, want.work.weight_bytes) << what;
  }

  Values x_, bias_;
  std::vector<Tensor> weights_;
  std::vector<Values> d_;
};

TEST_F(CudaTaped, GradientsAreTheCpus) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    check({.type = type});
    check({.type = type, .frozen = true});
    check({.type = type, .present = 1, .rows = 1});
  }
}

TEST_F(CudaTaped, OfCompactedRowsOnlyThoseThatAreThereCount) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int32_t present : {0, 1, 127, 128, 129, 299, 300}) {
      check({.type = type, .present = present, .compacted = true});
      check({.type = type, .present = present, .compacted = true, .selected = true});
    }
    check({.type = type, .present = 77, .compacted = true, .rows = 1000, .in = 45});
  }
}

TEST_F(CudaTaped, ProductsOfAFewOutputs) {
  for (const int64_t width : {2, 45, 96, 576}) {
    check({.present = 1000, .rows = 1000, .in = width, .outs = {1}});
    check({.present = 1000, .rows = 1000, .in = width, .outs = {2, 1}});
    check({.present = 129, .compacted = true, .selected = true, .in = width, .outs = {2}});
    check({.present = 0, .compacted = true, .in = width, .outs = {1, 40}});
  }
}

TEST_F(CudaTaped, FrozenQuantisedWeights) {
  for (const DType type : {DType::kQ4_0, DType::kQ8_0, DType::kF16}) {
    check({.type = type, .frozen = true});
    check({.type = type, .frozen = true, .present = 130, .compacted = true, .selected = true});
  }
}

TEST_F(CudaTaped, AFrozenQuantisedProductIsThatOfInference) {
  make_operands({.type = DType::kQ4_0});
  const Tensor x = floats(*gpu_, x_, {300, 96}), weight = weights_[0].to(*gpu_, Device::kCuda);
  const Values plain = host_values(*gpu_, linear(*gpu_, x, weight));
  Tape tape(Device::kCuda);
  const TapeScope recording(*gpu_, tape);
  EXPECT_TRUE(same_bits(host_values(*gpu_, linear(*gpu_, x, weight)), plain));
}

}  // namespace
}  // namespace fathom
