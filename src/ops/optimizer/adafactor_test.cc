#include "ops/optimizer/adafactor.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "ops/kernels/every_device_test.h"

namespace fathom {
namespace {

using Floats = std::vector<float>;

struct State {
  Floats value, moments, mean;
};

Floats normal_steps(int64_t size, uint64_t seed, float scale = 1) {
  Rng rng(seed);
  Floats values(static_cast<size_t>(size));
  for (float& value : values) value = scale * rng.normal();
  return values;
}

struct FactorCase {
  Shape shape;
  AdafactorParams params;
  State start;
  Floats gradient;

  FactorCase(const Shape& of, const AdafactorParams& with) : shape(of), params(with) {
    start = {normal_steps(of.numel(), 1), normal_steps(adafactor_moments(of), 2),
             normal_steps(of.numel(), 3, 0.1f)};
    for (float& moment : start.moments) moment = 0.1f + std::abs(moment);
    gradient = normal_steps(of.numel(), 4, 3);
  }

  State run(Context& ctx) const {
    Tensor value = Tensor::from(ctx, start.value, shape),
           moments = Tensor::from(ctx, start.moments, {adafactor_moments(shape)}),
           mean = Tensor::from(ctx, start.mean, {shape.numel()});
    Tensor none;
    adafactor(ctx, value, Tensor::from(ctx, gradient, shape), moments, params.beta1 > 0 ? mean : none,
              params);
    State out = start;
    copy_to_host(ctx, value, out.value);
    copy_to_host(ctx, moments, out.moments);
    copy_to_host(ctx, mean, out.mean);
    return out;
  }

  // The paper's formulas, in f64.
  State expected() const {
    State out = start;
    const bool factored = shape.rank() > 1;
    const auto columns = static_cast<size_t>(shape.last()), size = start.value.size(), rows = size / columns;
    const auto g = [&](size_t i) { return double{gradient[i]} * double{params.gradient_factor}; };
    const auto follow = [&](float& moment, double now) {
      moment = static_cast<float>(double{params.beta2} * double{moment} + (1 - double{params.beta2}) * now);
    };
    const auto square = [&](size_t i) { return g(i) * g(i) + double{params.eps}; };
    for (size_t row = 0; factored && row < rows; ++row) {
      double sum = 0;
      for (size_t k = 0; k < columns; ++k) sum += square(row * columns + k);
      follow(out.moments[row], sum / static_cast<double>(columns));
    }
    for (size_t k = 0; factored && k < columns; ++k) {
      double sum = 0;
      for (size_t row = 0; row < rows; ++row) sum += square(row * columns + k);
      follow(out.moments[rows + k], sum / static_cast<double>(rows));
    }
    for (size_t i = 0; !factored && i < size; ++i) follow(out.moments[i], square(i));
    double mean_of_rows = 0, values = 0, updates = 0;
    for (size_t row = 0; row < rows; ++row)
      mean_of_rows += double{out.moments[row]} / static_cast<double>(rows);
    const auto u = [&](size_t i) {
      const double v =
          factored ? double{out.moments[i / columns]} * double{out.moments[rows + i % columns]} / mean_of_rows
                   : double{out.moments[i]};
      return g(i) / std::sqrt(v);
    };
    for (size_t i = 0; i < size; ++i) {
      values += double{start.value[i]} * double{start.value[i]} / static_cast<double>(size);
      updates += u(i) * u(i) / static_cast<double>(size);
    }
    const double rate = params.rate * (params.scale_by_size ? std::max(1e-3, std::sqrt(values)) : 1);
    const double scale = rate / std::max(1.0, std::sqrt(updates) / double{params.update_clip});
    for (size_t i = 0; i < size; ++i) {
      double step = scale * u(i);
      if (params.beta1 > 0) {
        step = double{params.beta1} * double{start.mean[i]} + (1 - double{params.beta1}) * step;
        out.mean[i] = static_cast<float>(step);
      }
      out.value[i] = static_cast<float>(double{start.value[i]} * (1 - rate * params.decay) - step);
    }
    return out;
  }
};

void expect_near(const Floats& got, const Floats& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 2e-6 * (1 + std::abs(want[i]))) << what << " " << i;
}

TEST(Adafactor, AsThePaperHasIt) {
  const AdafactorParams plain{.rate = 0.01, .decay = 0.1, .gradient_factor = 0.4f};
  AdafactorParams with_mean = plain, unscaled = plain;
  with_mean.beta1 = 0.9f;
  unscaled.scale_by_size = false;
  unscaled.update_clip = 100;
  for (const AdafactorParams& params : {plain, with_mean, unscaled}) {
    for (const Shape& shape :
         {Shape{70, 900}, Shape{1000, 3}, Shape{1, 40}, Shape{3, 7, 11}, Shape{513}, Shape{1}}) {
      const FactorCase c(shape, params);
      const State want = c.expected();
      State on_cpu_alone;
      for (const auto& ctx : every_device()) {
        const std::string what = std::string(name_of(ctx->device())) + " " + to_string(shape);
        const State got = c.run(*ctx);
        expect_near(got.value, want.value, what + " value");
        expect_near(got.moments, want.moments, what + " moments");
        expect_near(got.mean, want.mean, what + " mean");
        const bool gpu = ctx->device() == Device::kCuda;
        const State again = gpu || on_cpu_alone.value.empty() ? c.run(*ctx) : on_cpu_alone;
        EXPECT_EQ(got.value, again.value) << what;  // the CPU: whatever the threads
        EXPECT_EQ(got.moments, again.moments) << what;
        if (!gpu) on_cpu_alone = got;
      }
    }
  }
}

TEST(Adafactor, RefusesWhatDoesNotFit) {
  Context ctx({.threads = 1});
  FactorCase c({4, 6}, {.rate = 0.1, .beta1 = 0.5f});
  EXPECT_EQ(adafactor_moments({4, 6}), 10);
  EXPECT_EQ(adafactor_moments({2, 3, 5}), 11);
  EXPECT_EQ(adafactor_moments({7}), 7);
  Tensor value = Tensor::from(ctx, c.start.value, {4, 6}), mean = Tensor::from(ctx, c.start.mean, {24});
  const Tensor gradient = Tensor::from(ctx, c.gradient, {4, 6});
  Tensor moments = Tensor::from(ctx, c.start.moments, {10}), few = moments.rows(0, 9), none;
  EXPECT_THROW(adafactor(ctx, value, gradient, few, mean, c.params), UserError);
  EXPECT_THROW(adafactor(ctx, value, gradient, moments, none, c.params), UserError);
  EXPECT_THROW(adafactor(ctx, value, gradient.reshape({6, 4}), moments, mean, c.params), UserError);
}

}  // namespace
}  // namespace fathom
