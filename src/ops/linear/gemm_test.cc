#include "ops/linear/gemm.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "quant/half.h"

namespace fathom {
namespace {

constexpr GemmLayout kLayouts[] = {GemmLayout::kNN, GemmLayout::kNT, GemmLayout::kTN};

std::unique_ptr<Context> gemm_context(int threads, Isa isa = supported_isas().front()) {
  setenv("FATHOM_ISA", name_of(isa), 1);
  auto ctx = std::make_unique<Context>(ContextOptions{.threads = threads});
  unsetenv("FATHOM_ISA");
  return ctx;
}

// A matrix with some NaN between its rows: what must not be read.
struct Matrix {
  Matrix(int64_t row_count, int64_t column_count, bool as_bf16, uint64_t seed)
      : rows(row_count), columns(column_count), stride(columns + 3), bf16(as_bf16) {
    Rng rng(seed);
    values.assign(static_cast<size_t>(rows * stride), NAN);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        float& value = values[static_cast<size_t>(r * stride + c)];
        value = rng.normal();
        if (bf16) value = f32_of_bf16(bf16_of_f32(value));
      }
    }
    for (const float value : values) halves.push_back(bf16_of_f32(value));
  }
  double at(int64_t r, int64_t c, bool rounded) const {
    const float value = values[static_cast<size_t>(r * stride + c)];
    return rounded ? f32_of_bf16(bf16_of_f32(value)) : value;
  }
  GemmMatrix view() const {
    return {bf16 ? static_cast<const void*>(halves.data()) : values.data(), stride, bf16};
  }
  int64_t rows, columns, stride;
  bool bf16;
  std::vector<float> values;
  std::vector<uint16_t> halves;
};

struct Product {
  GemmLayout layout;
  Precision precision;
  int64_t m, n, k;
  bool a_bf16 = false, b_bf16 = false;
  float alpha = 1.0f, beta = 0.0f;
};

struct Operands {
  explicit Operands(const Product& p)
      : a(p.layout == GemmLayout::kTN ? p.k : p.m, p.layout == GemmLayout::kTN ? p.m : p.k, p.a_bf16, 1),
        b(p.layout == GemmLayout::kNT ? p.n : p.k, p.layout == GemmLayout::kNT ? p.k : p.n, p.b_bf16, 2),
        c(p.m, p.n, false, 3) {
    if (p.beta == 0.0f) std::fill(c.values.begin(), c.values.end(), NAN);
  }
  Matrix a, b, c;
};

std::vector<float> run(Context& ctx, const Product& p, Operands operands) {
  Matrix& c = operands.c;
  gemm(ctx.cpu(), ctx,
       {p.layout, p.precision, p.m, p.n, p.k, operands.a.view(), operands.b.view(), c.values.data(), c.stride,
        p.alpha, p.beta});
  return c.values;
}

// Against plain sums of doubles; what lies between the rows of C stays.
void compare(const Product& p, const Operands& operands, const std::vector<float>& got,
             const std::string& what) {
  const bool rounded = p.precision == Precision::kBf16;
  const int64_t stride = operands.c.stride;
  for (int64_t r = 0; r < p.m; ++r) {
    for (int64_t c = 0; c < p.n; ++c) {
      double sum = 0, size = 1;
      for (int64_t i = 0; i < p.k; ++i) {
        const double x =
            (p.layout == GemmLayout::kTN ? operands.a.at(i, r, rounded) : operands.a.at(r, i, rounded)) *
            (p.layout == GemmLayout::kNT ? operands.b.at(c, i, rounded) : operands.b.at(i, c, rounded));
        sum += x;
        size += std::abs(x);
      }
      double want = p.alpha * sum;
      if (p.beta != 0.0f) want += p.beta * operands.c.at(r, c, false);
      ASSERT_NEAR(got[static_cast<size_t>(r * stride + c)], want, 1e-6 * size)
          << what << ", element " << r << " " << c;
    }
    for (int64_t c = p.n; c < stride; ++c)
      ASSERT_TRUE(std::isnan(got[static_cast<size_t>(r * stride + c)])) << what << ": wrote past row " << r;
  }
}

bool same_product(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check_product(const Product& p) {
  const Operands operands(p);
  for (const Isa isa : supported_isas()) {
    const std::string what = std::string(name_of(isa)) + " " + std::to_string(p.m) + " " +
                             std::to_string(p.n) + " " + std::to_string(p.k) + " layout " +
                             std::to_string(static_cast<int>(p.layout)) + " precision " +
                             std::to_string(static_cast<int>(p.precision));
    const std::vector<float> got = run(*gemm_context(1, isa), p, operands);
    compare(p, operands, got, what);
    if (testing::Test::HasFatalFailure()) return;
    for (const int threads : {2, 3})
      ASSERT_TRUE(same_product(run(*gemm_context(threads, isa), p, operands), got))
          << what << ", " << threads;
  }
}

TEST(Gemm, MatchesTheDefinition) {
  constexpr int64_t kSizes[][3] = {{1, 1, 1},   {3, 5, 7},    {8, 12, 4},   {9, 13, 5},
                                   {1, 70, 33}, {65, 2, 100}, {40, 97, 64}, {131, 150, 70}};
  for (const GemmLayout layout : kLayouts) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      for (const auto& [m, n, k] : kSizes) check_product({layout, precision, m, n, k});
    }
  }
}

// More than one pass along k, more than one tile of f32, more panels than fit a cache together.
TEST(Gemm, LargeProducts) {
  for (const GemmLayout layout : kLayouts) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      check_product({layout, precision, 30, 25, 1601});
      check_product({layout, precision, 290, 300, 40});
      check_product({layout, precision, 270, 30, 20});
    }
  }
}

TEST(Gemm, AlphaAndBeta) {
  for (const GemmLayout layout : kLayouts) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      check_product({layout, precision, 20, 31, 1601, false, false, 0.5f, 1.0f});
      check_product({layout, precision, 16, 24, 32, false, false, -2.0f, 0.25f});
      check_product({layout, precision, 13, 11, 9, false, false, -2.0f, 0.25f});
    }
  }
}

TEST(Gemm, Bf16InMemory) {
  for (const GemmLayout layout : kLayouts) {
    for (const auto& [a, b] : {std::pair{true, true}, {true, false}, {false, true}})
      check_product({layout, Precision::kBf16, 25, 38, 53, a, b});
  }
}

TEST(Gemm, NothingToSum) {
  const auto ctx = gemm_context(2);
  std::vector<float> c(6, NAN);
  GemmArgs args{GemmLayout::kTN, Precision::kBf16, 2, 3, 0, {}, {}, c.data(), 3};
  gemm(ctx->cpu(), *ctx, args);
  EXPECT_EQ(c, std::vector<float>(6, 0.0f));
  c.assign(6, 3.0f);
  args.beta = 1.0f;
  gemm(ctx->cpu(), *ctx, args);
  EXPECT_EQ(c, std::vector<float>(6, 3.0f));
}

TEST(Gemm, CountsMultiplyAdds) {
  const auto ctx = gemm_context(2);
  const Product p{GemmLayout::kNN, Precision::kF32, 300, 20, 30};
  run(*ctx, p, Operands(p));
  EXPECT_EQ(ctx->counters().total().madds, 300u * 20 * 30);
}

// f32 sums are chains of fused multiply-adds: the same everywhere.
TEST(Gemm, F32HasTheSameBitsOnEveryInstructionSet) {
  const Product p{GemmLayout::kNN, Precision::kF32, 33, 45, 900};
  const Operands operands(p);
  const std::vector<float> want = run(*gemm_context(2, Isa::kScalar), p, operands);
  for (const Isa isa : supported_isas())
    EXPECT_TRUE(same_product(run(*gemm_context(2, isa), p, operands), want)) << name_of(isa);
}

// In the calling thread alone, with its own scratch: the same product.
TEST(Gemm, InTheCallingThread) {
  for (const Isa isa : supported_isas()) {
    for (const auto& [m, n, k] :
         {std::array<int64_t, 3>{64, 200, 32}, {200, 32, 64}, {64, 32, 1601}, {1, 1, 1}}) {
      for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
        const Product p{GemmLayout::kTN, precision, m, n, k};
        Operands operands(p);
        const std::vector<float> want = run(*gemm_context(2, isa), p, operands);
        std::vector<float> scratch(static_cast<size_t>(gemm_scratch_bytes(isa, precision, m, n, k)) /
                                   sizeof(float));
        gemm_in_thread(isa,
                       {p.layout, p.precision, m, n, k, operands.a.view(), operands.b.view(),
                        operands.c.values.data(), operands.c.stride},
                       scratch.data());
        EXPECT_TRUE(same_product(operands.c.values, want))
            << name_of(isa) << " " << m << " " << n << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace fathom
