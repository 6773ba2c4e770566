// The loops beneath the element-wise ops: the same bits on every instruction set, and how exact they are.
#include "ops/kernels/row_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "ops/kernels/row_access.h"
#include "quant/half.h"

namespace fathom {
namespace {

// Floats of every size, with the ones that converting to f16 and bf16 gets wrong first.
std::vector<float> awkward_floats() {
  std::vector<float> values{0.0f,
                            -0.0f,
                            1.0f,
                            -1.0f,
                            INFINITY,
                            -INFINITY,
                            NAN,
                            65504.0f,
                            65519.99f,
                            65520.0f,
                            65536.0f,
                            3e38f,
                            1.0f + 0x1p-11f,
                            1.0f + 0x3p-11f,
                            1.0f + 0x1p-11f + 0x1p-20f,  // halfway, halfway, just above
                            1.0f + 0x1p-8f,
                            1.0f + 0x3p-8f,  // halfway in bf16
                            0x1p-14f,
                            0x1.ffcp-15f,
                            0x1p-24f,
                            0x1p-25f,
                            0x1.8p-25f,
                            0x1p-26f,
                            0x1p-149f};
  Rng rng(11);
  while (values.size() < 4001) values.push_back(std::bit_cast<float>(rng.next_u32()));
  while (values.size() < 8003)
    values.push_back(rng.normal() * std::exp2(static_cast<float>(rng.below(40)) - 28.0f));
  return values;
}

TEST(RowKernels, ConversionsRoundAsTheFormatsDo) {
  const std::vector<float> values = awkward_floats();
  const auto n = static_cast<int64_t>(values.size());
  for (const Isa isa : supported_isas()) {
    std::vector<uint16_t> half(values.size()), bfloat(values.size());
    row_kernels(isa).to_f16(values.data(), half.data(), n);
    row_kernels(isa).to_bf16(values.data(), bfloat.data(), n);
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        EXPECT_TRUE(std::isnan(f32_of_f16(half[i])) && std::isnan(f32_of_bf16(bfloat[i])));
        continue;
      }
      ASSERT_EQ(half[i], f16_of_f32(values[i])) << name_of(isa) << " " << values[i];
      ASSERT_EQ(bfloat[i], bf16_of_f32(values[i])) << name_of(isa) << " " << values[i];
    }
  }
}

TEST(RowKernels, TheSameBitsOnEveryInstructionSet) {
  const RowKernels& oracle = kRowKernelsScalar;
  Rng rng(5);
  for (const Isa isa : supported_isas()) {
    const RowKernels& kernels = row_kernels(isa);
    for (const int64_t n : {1, 7, 8, 9, 31, 32, 64, 577}) {
      const auto size = static_cast<size_t>(n);
      std::vector<float> a(size), b(size), c(size), d(size);
      for (auto* values : {&a, &b, &c, &d}) {
        for (float& value : *values) value = rng.normal() * 8;
      }
      const auto same = [&](const char* what, auto call) {
        std::vector<float> want(2 * size), got(2 * size);
        call(oracle, want.data());
        call(kernels, got.data());
        EXPECT_EQ(std::memcmp(want.data(), got.data(), 2 * size * sizeof(float)), 0)
            << what << " " << name_of(isa) << " " << n;
      };
      same("rms_norm",
           [&](const RowKernels& k, float* out) { k.rms_norm(a.data(), b.data(), out, n, 1e-5f, 1.0f); });
      same("silu", [&](const RowKernels& k, float* out) { k.silu_product(a.data(), b.data(), out, n); });
      same("gelu", [&](const RowKernels& k, float* out) { k.gelu_product(a.data(), b.data(), out, n); });
      same("rms_norm_gradient", [&](const RowKernels& k, float* out) {
        k.rms_norm_gradient(a.data(), b.data(), c.data(), out, n, 1e-5f, 1.0f);
      });
      same("silu_product_gradient", [&](const RowKernels& k, float* out) {
        k.silu_product_gradient(a.data(), b.data(), c.data(), out, out + n, n);
      });
      same("gelu_product_gradient", [&](const RowKernels& k, float* out) {
        k.gelu_product_gradient(a.data(), b.data(), c.data(), out, out + n, n);
      });
      same("sigmoid", [&](const RowKernels& k, float* out) { k.sigmoid(a.data(), out, n); });
      same("sum", [&](const RowKernels& k, float* out) { out[0] = k.sum(a.data(), n); });
      same("dot", [&](const RowKernels& k, float* out) { out[0] = k.dot(a.data(), b.data(), n); });
      same("soft_cap", [&](const RowKernels& k, float* out) { k.soft_cap(a.data(), out, n, 5.0f); });
      same("add", [&](const RowKernels& k, float* out) { k.add(a.data(), b.data(), out, n); });
      same("rotate", [&](const RowKernels& k, float* out) {
        k.rotate(a.data(), b.data(), c.data(), d.data(), out, out + n, n);
      });
      same("turn", [&](const RowKernels& k, float* out) { k.turn(777.0f, a.data(), 1.5f, out, out + n, n); });
      same("max", [&](const RowKernels& k, float* out) { out[0] = k.max(a.data(), n); });
      same("exp", [&](const RowKernels& k, float* out) { k.exp_less(a.data(), 30.0f, out, n); });
      if (n % 32 == 0) same("q8_0", [&](const RowKernels& k, float* out) { k.to_q8_0(a.data(), out, n); });
    }
  }
}

TEST(RowKernels, ExpIsExactToTwoUnitsInTheLastPlace) {
  std::vector<float> x, y(100000);
  for (int i = 0; i < 100000; ++i) x.push_back(-static_cast<float>(i) * 0.000871f);  // down to −87.1
  row_kernels(supported_isas().front()).exp_less(x.data(), 0.0f, y.data(), 100000);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(y[i] / std::exp(double{x[i]}) - 1));
  EXPECT_LT(worst, 1.2e-7);
  const float far[] = {0.0f, -88.0f, -1000.0f, -INFINITY};
  row_kernels(supported_isas().front()).exp_less(far, 0.0f, y.data(), 4);
  EXPECT_EQ(y[0], 1.0f);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(y[static_cast<size_t>(i)], 0.0f);
}

TEST(RowKernels, SineAndCosineAreExactToAFloat) {
  double worst = 0;
  Rng rng(8);
  for (int i = 0; i < 20000; ++i) {
    float frequency[5], cos[5], sin[5];
    const auto position = static_cast<float>(rng.below(i % 2 ? 200000 : 3000));
    for (float& f : frequency) f = i < 10 ? 0.0f : rng.uniform();
    row_kernels(supported_isas().front()).turn(position, frequency, 1.0f, cos, sin, 5);
    for (int j = 0; j < 5; ++j) {
      const double angle = position * frequency[j];
      worst = std::max({worst, std::abs(cos[j] - std::cos(angle)), std::abs(sin[j] - std::sin(angle))});
    }
  }
  EXPECT_LT(worst, 1.2e-7);
}

// NaNs with every kind of payload, and what becomes of them: never a number.
TEST(RowKernels, ANanStaysOne) {
  for (const Isa isa : supported_isas()) {
    const RowKernels& kernels = row_kernels(isa);
    for (const uint32_t bits : {0x7fc00000u, 0x7fc00001u, 0x7fffffffu, 0xffc00155u}) {
      for (int64_t at = 0; at < 32; ++at) {
        std::vector<float> x(32, 0.5f), y(32);
        x[static_cast<size_t>(at)] = std::bit_cast<float>(bits);
        kernels.exp_less(x.data(), 0.0f, y.data(), 32);
        EXPECT_TRUE(std::isnan(y[static_cast<size_t>(at)])) << name_of(isa) << " exp";
        kernels.sigmoid(x.data(), y.data(), 32);
        EXPECT_TRUE(std::isnan(y[static_cast<size_t>(at)])) << name_of(isa) << " sigmoid";
        uint16_t block[17];
        kernels.to_q8_0(x.data(), block, 32);
        EXPECT_TRUE(std::isnan(f32_of_f16(block[0]))) << name_of(isa) << " q8_0 at " << at;
      }
    }
  }
}

TEST(RowKernels, MaxSeesEveryElement) {
  for (int64_t n = 1; n < 40; ++n) {
    for (int64_t at = 0; at < n; ++at) {
      std::vector<float> x(static_cast<size_t>(n), -5.0f);
      x[static_cast<size_t>(at)] = -2.0f;
      for (const Isa isa : supported_isas())
        ASSERT_EQ(row_kernels(isa).max(x.data(), n), -2.0f) << n << " " << at;
    }
  }
}

}  // namespace
}  // namespace fathom
