// Against PyTorch and transformers: tools/make_optimizer_goldens.py.
#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "support/test_paths.h"
#include "train/flat_values_test.h"
#include "train/schedule.h"
#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

// The same numbers as the golden maker's.
void fill(float* values, int64_t count, int base, int step) {
  for (int64_t i = 0; i < count; ++i)
    values[i] =
        static_cast<float>(std::sin(0.7 * static_cast<double>(base + i) + 1.3 * step) * (1 + 0.1 * step));
}

struct Weights {
  Tensor matrix = Tensor::owned(Device::kCpu, DType::kF32, {7, 5}),
         vector = Tensor::owned(Device::kCpu, DType::kF32, {9});
  Weights() {
    fill(matrix.data<float>(), 35, 0, 0);
    fill(vector.data<float>(), 9, 100, 0);
  }
  std::vector<ParameterSpec> specs() {
    return {{"matrix", &matrix, {}, true, true, 1}, {"vector", &vector, {}, false, false, 1}};
  }
};

void set_gradients(Context& ctx, ParameterSet& set, int step) {
  std::vector<float> gradients(static_cast<size_t>(set.size()));
  fill(gradients.data() + set.list()[0].begin, 35, 0, step);
  fill(gradients.data() + set.list()[1].begin, 9, 100, step);
  set_values(ctx, set.gradients(), gradients);
}

class Optimizers : public testing::Test {
 protected:
  void check(const std::string& name, const OptimizerConfig& config) {
    static const Json goldens =
        Json::parse(read_text_file(std::string(FATHOM_TEST_DATA) + "/optimizers/goldens.json"));
    Weights weights;
    ParameterSet set(ctx_, weights.specs(), Precision::kF32);
    const auto optimizer = make_optimizer(config, set);
    for (int step = 1; step <= 6; ++step) {
      set_gradients(ctx_, set, step);
      optimizer->step(ctx_, set, {0.01 * step});
      const Json& want = goldens.at(name).at(static_cast<size_t>(step - 1));
      for (const NamedTensor& got : set.named_values()) {
        for (int64_t i = 0; i < got.tensor.numel(); ++i)
          ASSERT_NEAR(got.tensor.data<float>()[i], want.at(got.name).at(static_cast<size_t>(i)).get<float>(),
                      2e-6)
              << name << " step " << step << " " << got.name << " " << i;
      }
    }
  }
  Context ctx_{{.threads = 2}};
};

TEST_F(Optimizers, AdamWAsPyTorch) {
  check("adamw", {.beta1 = 0.8f, .beta2 = 0.95f, .eps = 1e-6f, .weight_decay = 0.1f});
}

TEST_F(Optimizers, AdafactorAsTransformers) {
  const auto kind = OptimizerKind::kAdafactor;
  const auto config = [&](float beta1, float decay, float power, float clip, bool scaled) {
    return OptimizerConfig{.kind = kind,
                           .beta1 = beta1,
                           .weight_decay = decay,
                           .beta2_power = power,
                           .update_clip = clip,
                           .scale_by_size = scaled};
  };
  check("adafactor", config(0, 0.1f, 0.8f, 1, false));
  check("adafactor_momentum", config(0.9f, 0, 0.8f, 0.5f, false));
  // Clipping by the root mean square hides a wrong scale.
  check("adafactor_unclipped", config(0, 0, 0.8f, 1000, false));
  check("adafactor_constant", config(0, 0, 0, 1, false));  // beta2 0.99, eps 1e-30: its own
  check("adafactor_scaled", config(0, 0.1f, 0.8f, 1, true));
}

// A tensor of zeros moves too: its step is relative to 1e-3.
TEST_F(Optimizers, AdafactorMovesWhatIsZero) {
  Tensor zeros = Tensor::owned(Device::kCpu, DType::kF32, {9});
  ParameterSet set(ctx_, {{"zeros", &zeros, {}, false, false, 1}}, Precision::kF32);
  const auto optimizer = make_optimizer({.kind = OptimizerKind::kAdafactor, .beta1 = 0}, set);
  std::vector<float> gradients(static_cast<size_t>(set.size()));
  fill(gradients.data(), 9, 0, 1);
  set_values(ctx_, set.gradients(), gradients);
  optimizer->step(ctx_, set, {0.1});
  double squares = 0;
  for (const float value : host_values(ctx_, set.values()))
    squares += static_cast<double>(value) * static_cast<double>(value);
  EXPECT_NEAR(std::sqrt(squares / 9), 1e-4, 1e-8);  // 0.1 · 1e-3, the update clipped to 1
}

TEST_F(Optimizers, StateGoesOnWhereItWasSaved) {
  for (OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kAdafactor}) {
    const OptimizerConfig config{.kind = kind, .weight_decay = 0.1f};
    Weights weights, other;
    ParameterSet set(ctx_, weights.specs(), Precision::kBf16);
    const auto optimizer = make_optimizer(config, set);
    Context one({.threads = 1});
    ParameterSet resumed(one, other.specs(), Precision::kBf16);
    const auto again = make_optimizer(config, resumed);
    for (int step = 1; step <= 6; ++step) {
      if (step == 4) {
        resumed.load(one, set.named_values(), "test");
        again->load(one, optimizer->state(), optimizer->steps(), "test");
      }
      set_gradients(ctx_, set, step);
      set_gradients(one, resumed, step);
      optimizer->step(ctx_, set, {0.01});
      if (step >= 4) again->step(one, resumed, {0.01});
    }
    EXPECT_EQ(host_values(ctx_, set.values()), host_values(one, resumed.values()));
    for (int64_t i = 0; i < 35; ++i)
      ASSERT_EQ(weights.matrix.data<uint16_t>()[i], other.matrix.data<uint16_t>()[i]);
    EXPECT_NE(error_of([&] { again->load(one, {}, 1, "here"); }).find("is missing"), std::string::npos);
  }
}

TEST_F(Optimizers, ThreadsDoNotMatter) {
  for (OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kAdafactor}) {
    std::vector<std::vector<float>> results;
    for (int threads : {1, 2, 5}) {
      Context ctx({.threads = threads});
      Tensor wide = Tensor::owned(Device::kCpu, DType::kF32, {70, 900});
      fill(wide.data<float>(), wide.numel(), 0, 0);
      ParameterSet set(ctx, {{"wide", &wide, {}, true, true, 0.5f}}, Precision::kF32);
      const auto optimizer = make_optimizer({.kind = kind, .weight_decay = 0.1f}, set);
      for (int step = 1; step <= 3; ++step) {
        std::vector<float> gradients(static_cast<size_t>(set.size()));
        fill(gradients.data(), wide.numel(), 0, step);
        set_values(ctx, set.gradients(), gradients);
        optimizer->step(ctx, set, {0.01, 0.37f});
      }
      results.push_back(host_values(ctx, set.values()));
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

// The factor is what scaled gradients would give, bit for bit: clipping.
TEST_F(Optimizers, TheFactorScalesTheGradients) {
  for (OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kAdafactor}) {
    std::vector<std::vector<float>> results;
    for (const bool inside : {true, false}) {
      Weights weights;
      ParameterSet set(ctx_, weights.specs(), Precision::kF32);
      const auto optimizer = make_optimizer({.kind = kind, .weight_decay = 0.1f}, set);
      for (int step = 1; step <= 3; ++step) {
        set_gradients(ctx_, set, step);
        if (!inside) {
          std::vector<float> gradients = host_values(ctx_, set.gradients());
          for (float& g : gradients) g *= 0.3f;
          set_values(ctx_, set.gradients(), gradients);
        }
        optimizer->step(ctx_, set, {0.01, inside ? 0.3f : 1.0f});
      }
      results.push_back(host_values(ctx_, set.values()));
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

TEST_F(Optimizers, RefuseWrongValues) {
  Weights weights;
  ParameterSet set(ctx_, weights.specs(), Precision::kF32);
  EXPECT_EQ(error_of([&] { make_optimizer({.beta1 = 1.5f}, set); }),
            "optimizer.beta1 must be in [0, 1), got 1.5");
  EXPECT_EQ(error_of([&] { make_optimizer({.eps = -1}, set); }),
            "optimizer.eps must be above 0, or 0 for the optimiser's own, got -1");
  // What another value silences.
  const auto refused = [&](const OptimizerConfig& config) {
    return error_of([&] { make_optimizer(config, set); });
  };
  const auto adafactor = OptimizerKind::kAdafactor;
  EXPECT_EQ(refused({.kind = adafactor, .beta2 = 0.99f, .beta2_power = 0.8f}),
            "optimizer.beta2_power (0.8) makes beta2 a function of the step, so beta2 (0.99) does nothing: "
            "give one");
  EXPECT_NE(refused({.beta2_power = 0.8f}).find("beta2_power is adafactor's"), std::string::npos);
  EXPECT_NE(refused({.update_clip = 2}).find("update_clip is adafactor's"), std::string::npos);
  EXPECT_NE(refused({.scale_by_size = false}).find("scale_by_size is adafactor's"), std::string::npos);
}

// Each of its own values moves a number.
TEST_F(Optimizers, ConfigValuesCount) {
  const auto adafactor = OptimizerKind::kAdafactor;
  const auto after = [&](const OptimizerConfig& config) {
    Weights weights;
    ParameterSet set(ctx_, weights.specs(), Precision::kF32);
    const auto optimizer = make_optimizer(config, set);
    for (int step = 1; step <= 3; ++step) {
      set_gradients(ctx_, set, step);
      optimizer->step(ctx_, set, {0.01});
    }
    return host_values(ctx_, set.values());
  };
  const std::vector<float> plain = after({.kind = adafactor, .beta1 = 0});
  EXPECT_EQ(after({.kind = adafactor, .beta1 = 0, .beta2 = 0.99f, .eps = 1e-30f}), plain);
  EXPECT_NE(after({.kind = adafactor, .beta1 = 0, .beta2 = 0.5f}), plain);
  EXPECT_NE(after({.kind = adafactor, .beta1 = 0, .eps = 1e-2f}), plain);
  EXPECT_NE(after({.kind = adafactor, .beta1 = 0, .beta2_power = 0.8f}), plain);
  EXPECT_NE(after({.kind = adafactor, .beta1 = 0, .update_clip = 0.5f}), plain);
  EXPECT_NE(after({.kind = adafactor, .beta1 = 0, .scale_by_size = false}), plain);
  EXPECT_NE(after({.beta2 = 0.9f}), after({}));
  EXPECT_NE(after({.eps = 1e-2f}), after({}));
}

TEST(Schedules, Shapes) {
  ScheduleConfig config{.kind = ScheduleKind::kCosine,
                        .rate = 1,
                        .warmup_steps = 10,
                        .start_factor = 0.1f,
                        .final_factor = 0.2f};
  const Schedule cosine(config, 111);
  EXPECT_NEAR(cosine.rate(0), 0.1, 1e-6);
  EXPECT_NEAR(cosine.rate(5), 0.55, 1e-6);
  EXPECT_NEAR(cosine.rate(10), 1, 1e-6);
  EXPECT_NEAR(cosine.rate(60), 0.6, 1e-6);
  EXPECT_NEAR(cosine.rate(110), 0.2, 1e-6);
  EXPECT_NEAR(cosine.rate(1000), 0.2, 1e-6);
  config.kind = ScheduleKind::kLinear;
  EXPECT_NEAR(Schedule(config, 111).rate(35), 0.8, 1e-6);
  config.final_factor = ScheduleConfig().final_factor;
  config.kind = ScheduleKind::kConstant;
  EXPECT_NEAR(Schedule(config, 111).rate(110), 1, 1e-6);
  config.kind = ScheduleKind::kInverseSquareRoot;
  EXPECT_NEAR(Schedule(config, 111).rate(40), 0.5, 1e-6);
  config.warmup_share = 0.2f;
  EXPECT_EQ(
      error_of([&] { Schedule(config, 100); }),
      "schedule.warmup_steps (10) and schedule.warmup_share (0.2) are two ways to say the same: give one");
  config.warmup_steps = 0;
  EXPECT_EQ(Schedule(config, 100).warmup(), 20);
  config.start_factor = 2;
  EXPECT_EQ(error_of([&] { Schedule(config, 100); }), "schedule.start_factor must be in [0, 1], got 2");
}

}  // namespace
}  // namespace fathom
