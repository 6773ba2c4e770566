#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "base/rng.h"
#include "ops/linear/linear.h"
#include "ops/rows/accumulate.h"
#include "quant/formats.h"
#include "quant/half.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int64_t kGradientRows = 7, kGradientIn = 64;

std::vector<float> random_values(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = rng.normal();
  return values;
}

Tensor owned(const std::vector<float>& values, const Shape& shape, DType dtype = DType::kF32) {
  Tensor t = Tensor::owned(Device::kCpu, dtype, shape);
  encode_row(dtype, values.data(), t.raw(), t.numel());
  return t;
}

std::vector<float> host_floats(const Tensor& t) {
  std::vector<float> values(static_cast<size_t>(t.numel()));
  decode_row(t.dtype(), t.raw(), values.data(), t.numel());
  return values;
}

// x with two weights and a bias on the first one; the loss is Σ of the outputs times fixed numbers.
struct LinearScene {
  std::vector<int64_t> outs = {5, 12};
  int64_t present = kGradientRows;  // rows of x that are there
  bool compacted = false;
  DType dtype = DType::kF32;
  bool train_weights = true, train_x = true;
  int threads = 1;
};

struct LinearResult {
  std::vector<std::vector<float>> outputs, dw;
  std::vector<float> dx, db;
  Work work;
};

std::vector<float> x_values() {
  return random_values(kGradientRows * kGradientIn, 1);
}
std::vector<float> w_values(int64_t out, size_t i) {
  return random_values(out * kGradientIn, 10 + i);
}
std::vector<float> b_values(int64_t out) {
  return random_values(out, 20);
}
std::vector<float> d_values(int64_t out, size_t i) {
  return random_values(kGradientRows * out, 30 + i);
}

// Gives the outputs the gradients d, as what comes after them would.
void start_backward(Context& ctx, const std::vector<Tensor>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].gradient()) continue;
    std::vector<float> d = d_values(outputs[i].dim(1), i);
    if (outputs[i].row_count()) {
      for (size_t j = static_cast<size_t>(*outputs[i].row_count() * outputs[i].dim(1)); j < d.size(); ++j)
        d[j] = NAN;
    }
    accumulate(ctx, outputs[i], Tensor::from(ctx, d, outputs[i].shape()).counted_like(outputs[i]));
  }
  const float zero = 0.0f;
  Tensor loss = Tensor::from(ctx, std::span(&zero, 1), {1}).with_gradient(std::make_shared<Gradient>());
  ctx.tape()->backward(ctx, loss);
}

LinearResult run(const LinearScene& scene) {
  Context ctx({.threads = scene.threads});
  Tape tape(Device::kCpu);
  const TapeScope recording(ctx, tape);
  std::vector<float> xs = x_values();
  for (size_t i = static_cast<size_t>(scene.present * kGradientIn); i < xs.size(); ++i) xs[i] = NAN;
  const Tensor dx = Tensor::owned(Device::kCpu, DType::kF32, {kGradientRows, kGradientIn});
  const auto count = static_cast<int32_t>(scene.present);
  Tensor x = owned(xs, {kGradientRows, kGradientIn});
  if (scene.compacted) x = x.counted_by(Tensor::from(ctx, std::span(&count, 1), {1}));
  if (scene.train_x) x = parameter(x, dx.counted_like(x));
  std::vector<Tensor> weights, biases, dws, outputs(scene.outs.size());
  const Tensor db = Tensor::owned(Device::kCpu, DType::kF32, {scene.outs[0]});
  for (size_t i = 0; i < scene.outs.size(); ++i) {
    weights.push_back(owned(w_values(scene.outs[i], i), {scene.outs[i], kGradientIn}, scene.dtype));
    dws.push_back(Tensor::owned(Device::kCpu, DType::kF32, weights[i].shape()));
    if (scene.train_weights) weights[i] = parameter(weights[i], dws[i]);
    biases.push_back(i == 0 ? owned(b_values(scene.outs[0]), {scene.outs[0]}) : Tensor());
  }
  if (scene.train_weights) biases[0] = parameter(biases[0], db);
  linear_group(ctx, x, weights, biases, outputs);
  const Work before = ctx.counters().total();
  start_backward(ctx, outputs);
  LinearResult result{{}, {}, host_floats(dx), host_floats(db), ctx.counters().total() - before};
  for (const Tensor& out : outputs) result.outputs.push_back(host_floats(out));
  for (const Tensor& dw : dws) result.dw.push_back(host_floats(dw));
  return result;
}

// The loss in doubles. The values of one of the inputs are given, the others are the scene's.
struct Inputs {
  std::vector<float> x = x_values(), w0, w1, bias;
};

double loss(const LinearScene& scene, const Inputs& in) {
  double sum = 0;
  for (size_t i = 0; i < scene.outs.size(); ++i) {
    const std::vector<float> d = d_values(scene.outs[i], i), &w = i == 0 ? in.w0 : in.w1;
    for (int64_t r = 0; r < scene.present; ++r) {
      for (int64_t o = 0; o < scene.outs[i]; ++o) {
        double y = i == 0 ? in.bias[static_cast<size_t>(o)] : 0.0;
        for (int64_t k = 0; k < kGradientIn; ++k)
          y += double{in.x[static_cast<size_t>(r * kGradientIn + k)]} *
               w[static_cast<size_t>(o * kGradientIn + k)];
        sum += y * d[static_cast<size_t>(r * scene.outs[i] + o)];
      }
    }
  }
  return sum;
}

// Central differences of the loss at every `step`-th element.
void check_differences(const LinearScene& scene, std::vector<float> Inputs::*member,
                       const std::vector<float>& got, double tolerance, const char* name) {
  Inputs inputs{x_values(), w_values(scene.outs[0], 0), w_values(scene.outs[1], 1), b_values(scene.outs[0])};
  std::vector<float>& values = inputs.*member;
  ASSERT_EQ(values.size(), got.size());
  for (size_t i = 0; i < values.size(); i += 1 + values.size() / 40) {
    const float old = values[i], up = old + 0.25f, down = old - 0.25f;
    values[i] = up;
    const double above = loss(scene, inputs);
    values[i] = down;
    const double below = loss(scene, inputs);
    values[i] = old;
    const double want = (above - below) / (double{up} - double{down});
    ASSERT_NEAR(got[i], want, tolerance * (1 + std::abs(want))) << name << " " << i;
  }
}

void check_gradients(const LinearScene& scene, double tolerance) {
  const LinearResult got = run(scene);
  if (scene.train_x) check_differences(scene, &Inputs::x, got.dx, tolerance, "dx");
  if (!scene.train_weights) return;
  check_differences(scene, &Inputs::w0, got.dw[0], tolerance, "dw0");
  check_differences(scene, &Inputs::w1, got.dw[1], tolerance, "dw1");
  check_differences(scene, &Inputs::bias, got.db, 1e-4, "db");
}

TEST(LinearGradient, MatchesFiniteDifferences) {
  check_gradients({}, 1e-4);
  check_gradients({.present = 4, .compacted = true}, 1e-4);
  check_gradients({.train_x = false}, 1e-4);
  check_gradients({.train_weights = false}, 1e-4);
}

TEST(LinearGradient, Bf16IsWithinRounding) {
  for (const Isa isa : supported_isas()) {
    setenv("FATHOM_ISA", name_of(isa), 1);
    check_gradients({.dtype = DType::kBF16}, 0.06);
    check_gradients({.present = 3, .compacted = true, .dtype = DType::kBF16}, 0.06);
    unsetenv("FATHOM_ISA");
  }
}

// Frozen weights of formats that only decode.
TEST(LinearGradient, ThroughFrozenWeightsOfAnyFormat) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_1}) {
    const LinearScene scene{.dtype = dtype, .train_weights = false};
    const LinearResult got = run(scene);
    Inputs inputs{x_values(), {}, {}, b_values(5)};
    std::vector<double> want(static_cast<size_t>(kGradientRows * kGradientIn));
    for (size_t i = 0; i < 2; ++i) {
      const int64_t out = scene.outs[i];
      const std::vector<float> w = host_floats(owned(w_values(out, i), {out, kGradientIn}, dtype)),
                               d = d_values(out, i);
      for (int64_t r = 0; r < kGradientRows; ++r) {
        for (int64_t o = 0; o < out; ++o) {
          for (int64_t k = 0; k < kGradientIn; ++k)
            want[static_cast<size_t>(r * kGradientIn + k)] +=
                double{d[static_cast<size_t>(r * out + o)]} * w[static_cast<size_t>(o * kGradientIn + k)];
        }
      }
    }
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got.dx[i], want[i], 0.1) << name_of(dtype) << " " << i;
    EXPECT_EQ(got.dw[0], std::vector<float>(5 * kGradientIn)) << "frozen weights get no gradient";
    EXPECT_EQ(got.work.madds, static_cast<uint64_t>(kGradientRows * kGradientIn * 17));
  }
}

TEST(LinearGradient, RowsThatAreNotThereAreNeverRead) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t present : {int64_t{0}, int64_t{1}, kGradientRows - 1}) {
      const LinearResult got = run({.present = present, .compacted = true, .dtype = dtype});
      for (size_t i = 0; i < static_cast<size_t>(present * kGradientIn); ++i)
        ASSERT_TRUE(std::isfinite(got.dx[i]));
      for (size_t i = static_cast<size_t>(present * kGradientIn); i < got.dx.size(); ++i)
        ASSERT_EQ(got.dx[i], 0.0f);
      for (const auto& dw : got.dw) {
        for (const float value : dw) ASSERT_TRUE(std::isfinite(value));
      }
      for (const float value : got.db) ASSERT_TRUE(std::isfinite(value));
      EXPECT_EQ(got.work.madds, static_cast<uint64_t>(present * kGradientIn * 17 * 2));
    }
  }
}

TEST(LinearGradient, TheSameAtAnyThreadCount) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const LinearScene scene{.outs = {300, 170}, .dtype = dtype};
    LinearScene other = scene;
    const LinearResult one = run(scene);
    for (other.threads = 2; other.threads < 4; ++other.threads) {
      const LinearResult got = run(other);
      EXPECT_EQ(got.dx, one.dx);
      EXPECT_EQ(got.dw, one.dw);
      EXPECT_EQ(got.db, one.db);
      EXPECT_EQ(got.outputs, one.outputs);
    }
  }
}

// Gradients add up over calls: in a parameter's own place, and where a gradient has no place yet.
TEST(LinearGradient, AddsUp) {
  for (const bool own : {true, false}) {
    Context ctx({.threads = 2});
    Tape tape(Device::kCpu);
    const TapeScope recording(ctx, tape);
    const Tensor x = owned(x_values(), {kGradientRows, kGradientIn}),
                 place = Tensor::owned(Device::kCpu, DType::kF32, {5, kGradientIn}),
                 bias_place = Tensor::owned(Device::kCpu, DType::kF32, {5});
    Tensor weight = owned(w_values(5, 0), {5, kGradientIn}), bias = owned(b_values(5), {5});
    weight = own ? parameter(weight, place) : weight.with_gradient(std::make_shared<Gradient>());
    bias = own ? parameter(bias, bias_place) : bias.with_gradient(std::make_shared<Gradient>());
    start_backward(ctx, {linear(ctx, x, weight, bias)});
    const std::vector<float> once = host_floats(weight.gradient()->value),
                             b = host_floats(bias.gradient()->value);
    start_backward(ctx, {linear(ctx, x, weight, bias)});
    const std::vector<float> twice = host_floats(weight.gradient()->value);
    for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(twice[i], 2 * once[i], 1e-4);
    for (size_t i = 0; i < b.size(); ++i) EXPECT_NEAR(host_floats(bias.gradient()->value)[i], 2 * b[i], 1e-4);
  }
}

TEST(LinearGradient, NothingChangesWithoutATape) {
  Context ctx({.threads = 2});
  const Tensor x = owned(x_values(), {kGradientRows, kGradientIn}),
               weight = owned(w_values(5, 0), {5, kGradientIn});
  const std::vector<float> want = host_floats(linear(ctx, x, weight));
  Tape tape(Device::kCpu);
  {
    const TapeScope recording(ctx, tape);
    const Tensor out = linear(ctx, x, weight);
    EXPECT_EQ(out.gradient(), nullptr);
  }
  EXPECT_EQ(host_floats(linear(ctx, x, weight)), want);
}

// Activations in bf16 are what a bf16 weight's gradient keeps: x itself can go.
TEST(LinearGradient, KeepsHalfOfTheActivations) {
  Context ctx({.threads = 1});
  Tape tape(Device::kCpu);
  const TapeScope recording(ctx, tape);
  const Tensor dw = Tensor::owned(Device::kCpu, DType::kF32, {5, kGradientIn});
  const Tensor weight = parameter(owned(w_values(5, 0), {5, kGradientIn}, DType::kBF16), dw);
  std::weak_ptr<const void> memory;
  Tensor out;
  {
    const Tensor x = Tensor::from(ctx, x_values(), {kGradientRows, kGradientIn});
    memory = x.owner();
    out = linear(ctx, x, weight);
  }
  EXPECT_TRUE(memory.expired());
  start_backward(ctx, {out});
  EXPECT_NE(host_floats(dw), std::vector<float>(5 * kGradientIn));
}

TEST(LinearGradient, RefusesToTrainBlockFormats) {
  Context ctx({.threads = 1});
  Tape tape(Device::kCpu);
  const TapeScope recording(ctx, tape);
  const Tensor weight = owned(w_values(5, 0), {5, kGradientIn}, DType::kQ8_0);
  const Tensor dw = Tensor::owned(Device::kCpu, DType::kF32, {5, kGradientIn});
  try {
    linear(ctx, owned(x_values(), {kGradientRows, kGradientIn}), parameter(weight, dw));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "linear: a weight with a gradient must be f32 or bf16, got q8_0");
  }
}

}  // namespace
}  // namespace fathom
