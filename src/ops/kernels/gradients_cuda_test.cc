// Losses and gradients whose operands an OpCase cannot make, on a GPU against the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "ops/attention/rope.h"
#include "ops/kernels/gpu_test.h"
#include "ops/kernels/kept_rows_test.h"
#include "ops/linear/embed.h"
#include "ops/loss/cross_entropy.h"
#include "ops/rows/accumulate.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

using Values = std::vector<float>;
using Ints = std::vector<int32_t>;

class CudaGradient : public Cuda {
 protected:
  using Run = std::function<Tensor(Context&, const Tensor&)>;
  struct Result {
    Values out, dx;
  };

  // run(x) and the gradient of Σ run(x) · r at x. held: x is still needed, and may not become its gradient.
  // there: x is a parameter whose gradient so far is this, if anything.
  static Result differentiated(Context& ctx, const Values& x, const Shape& shape, const Values& r,
                               const Run& run, bool held = false, const Values& there = {}) {
    const ArenaScope scope(ctx);
    Tape tape(ctx.device());
    const TapeScope taped(ctx, tape);
    auto gradient = std::make_shared<Gradient>();
    if (!there.empty()) *gradient = {floats(ctx, there, shape), true};
    Tensor kept, loss = Tensor::empty(ctx, DType::kF32, {1});
    Result result;
    {
      const Tensor input = floats(ctx, x, shape).with_gradient(gradient);
      if (held) kept = input;
      const Tensor out = run(ctx, input);
      result.out = host_values(ctx, out);
      differentiate(ctx, {&out}, loss, [out, d = floats(ctx, r, out.shape())](Context& c, const Tensor&) {
        accumulate(c, out, d);
      });
    }
    tape.backward(ctx, loss);
    result.dx = host_values(ctx, gradient->value);
    if (held) {
      EXPECT_TRUE(same_bits(host_values(ctx, kept), x));
    }
    return result;
  }

  static void expect_near(const Values& got, const Values& want, double tolerance, const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::abs(want[i]))) << what << ", element " << i;
  }

  // Both devices, with rows of weight 0 (nothing but NaN in them), twice on the GPU. width: of a row.
  void check_loss(const char* op, int64_t width, const Values& x, const Run& run, double tolerance) {
    const Shape shape{static_cast<int64_t>(kWeights.size()), width};
    const std::string what = std::string(op) + ", width " + std::to_string(width);
    const Result want = differentiated(cpu_, x, shape, {-1.5f}, run);
    for (const bool held : {false, true}) {
      const Result got = differentiated(*gpu_, x, shape, {-1.5f}, run, held);
      expect_near(got.out, want.out, tolerance, what);
      expect_near(got.dx, want.dx, tolerance, what + ", gradient");
      EXPECT_TRUE(same_bits(differentiated(*gpu_, x, shape, {-1.5f}, run, held).dx, got.dx)) << what;
    }
  }
  Values rows_with_nan(int64_t width, float scale) {
    const auto rows = static_cast<int64_t>(kWeights.size());
    Values x = normals(rows * width, scale);
    for (int64_t i = 0; i < rows * width; ++i)
      if (kWeights[static_cast<size_t>(i / width)] == 0) x[static_cast<size_t>(i)] = NAN;
    return x;
  }

  const Values kWeights{1.0f, 0.0f, 0.25f, -2.0f, 0.0f, 0.5f, 3.0f};
  const std::vector<int64_t> kWidths{1, 3, 7, 64, 130, 1003, 4096, 49157, 50000};
};

TEST_F(CudaGradient, CrossEntropyIsTheCpus) {
  for (const int64_t width : kWidths) {
    Values x = rows_with_nan(width, 4.0f);
    if (width > 3) x[0] = x[static_cast<size_t>(width - 1)] = -INFINITY;  // hidden tokens
    Ints targets;
    for (const float weight : kWeights)
      targets.push_back(weight == 0 ? -100 : static_cast<int32_t>(width / 2 + (width - 1) / 2 % 2));
    const auto run = [&](Context& ctx, const Tensor& logits) {
      const auto rows = static_cast<int64_t>(kWeights.size());
      return cross_entropy(ctx, logits, ints(ctx, targets, {rows}), floats(ctx, kWeights, {rows}));
    };
    check_loss("cross_entropy", width, x, run, 2e-6);
  }
}

TEST_F(CudaGradient, DivergenceIsTheCpus) {
  for (const int64_t width : kWidths) {
    const Values x = rows_with_nan(width, 2.0f);
    Values teacher = rows_with_nan(width, 3.0f);
    if (width > 3) teacher[1] = teacher[static_cast<size_t>(2 * width + 2)] = -INFINITY;
    const auto run = [&](Context& ctx, const Tensor& student) {
      const auto rows = static_cast<int64_t>(kWeights.size());
      return kl_divergence(ctx, floats(ctx, teacher, {rows, width}), student, floats(ctx, kWeights, {rows}));
    };
    check_loss("kl_divergence", width, x, run, 4e-6);
  }
}

TEST_F(CudaGradient, SquaresAreTheCpus) {
  for (const int64_t width : kWidths) {
    const Values x = rows_with_nan(width, 2.0f), other = rows_with_nan(width, 1.0f);
    for (const bool first : {true, false}) {
      const auto run = [&](Context& ctx, const Tensor& a) {
        const auto rows = static_cast<int64_t>(kWeights.size());
        const Tensor b = floats(ctx, other, {rows, width}), weights = floats(ctx, kWeights, {rows});
        return first ? mean_squared(ctx, a, b, weights) : mean_squared(ctx, b, a, weights);
      };
      check_loss("mean_squared", width, x, run, 1e-6);
    }
  }
}

// Of counted rows only those that are there are read, and get a gradient.
TEST_F(CudaGradient, LossesOfTheRowsThatAreThere) {
  constexpr int64_t kRows = 2500, kWidth = 12;
  constexpr int32_t kThere = 2100;
  const Values x = normals(kRows * kWidth), other = normals(kRows * kWidth), weights = normals(kRows);
  Ints targets;
  for (int32_t r = 0; r < kRows; ++r) targets.push_back(r < kThere ? r % kWidth : -1);
  for (int loss = 0; loss < 3; ++loss) {
    const auto run = [&](Context& ctx, const Tensor& all) {
      const Tensor rows = all.counted_by(ints(ctx, {kThere}, {1})), w = floats(ctx, weights, {kRows});
      const Tensor b = floats(ctx, other, {kRows, kWidth});
      if (loss == 0) return cross_entropy(ctx, rows, ints(ctx, targets, {kRows}), w);
      return loss == 1 ? kl_divergence(ctx, b, rows, w) : mean_squared(ctx, rows, b, w);
    };
    Result got = differentiated(*gpu_, x, {kRows, kWidth}, {0.5f}, run);
    Result want = differentiated(cpu_, x, {kRows, kWidth}, {0.5f}, run);
    for (Result* result : {&got, &want}) result->dx.resize(kThere * kWidth);
    expect_near(got.out, want.out, 2e-6, std::to_string(loss));
    expect_near(got.dx, want.dx, 2e-6, std::to_string(loss));
  }
}

TEST_F(CudaGradient, EmbedAddsEqualIdsInRowOrder) {
  constexpr int64_t kRows = 700, kVocab = 50;
  Ints ids(kRows);
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t kind = rng_.below(4);  // one id in a quarter of the rows, the first and the last too
    ids[i] = kind == 0   ? 7
             : kind == 1 ? (rng_.below(2) ? 0 : kVocab - 1)
                         : static_cast<int32_t>(rng_.below(kVocab));
  }
  for (const int64_t width : {1, 33, 128, 300}) {
    const Values table = normals(kVocab * width), d = normals(kRows * width), there = normals(kVocab * width);
    const auto run = [&](Context& ctx, const Tensor& weight) {
      return embed(ctx, ints(ctx, ids, {kRows}), weight, 1.7f);
    };
    for (const Values& before : {Values(), there}) {
      const Result got = differentiated(*gpu_, table, {kVocab, width}, d, run, true, before);
      const Result want = differentiated(cpu_, table, {kVocab, width}, d, run, true, before);
      EXPECT_TRUE(same_bits(got.dx, want.dx)) << width;
    }
  }
}

TEST_F(CudaGradient, RopeTurnsBack) {
  constexpr int64_t kRows = 9, kHeads = 3, kDim = 24;
  const Values x = normals(kRows * kHeads * kDim), d = normals(kRows * kHeads * kDim);
  const Values frequency = normals(kDim / 2);
  Ints positions;
  for (int32_t r = 0; r < kRows; ++r) positions.push_back(r * r);
  for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kPairs}) {
    const auto run = [&](Context& ctx, const Tensor& heads) {
      return rope(ctx, heads, ints(ctx, positions, {kRows}), floats(ctx, frequency, {kDim / 2}),
                  {.style = style, .magnitude = 1.3f});
    };
    const Result got = differentiated(*gpu_, x, {kRows, kHeads, kDim}, d, run);
    const Result want = differentiated(cpu_, x, {kRows, kHeads, kDim}, d, run);
    expect_near(got.dx, want.dx, 2e-6, "rope");
  }
}

}  // namespace
}  // namespace fathom
