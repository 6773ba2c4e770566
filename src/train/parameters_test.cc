#include "train/parameters.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/load.h"
#include "quant/half.h"
#include "tensor/tape.h"
#include "train/flat_values_test.h"
#include "train/initial_model.h"
#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

ModelConfig small(bool tied) {
  ModelConfig config;
  config.architecture = "llama";
  config.width = 64, config.layers = 2, config.heads = config.kv_heads = 4, config.head_dim = 16;
  config.ffn_width = 128, config.vocab = 300, config.context = 32, config.windows = {0, 0};
  config.attention_scale = 0.25f;
  config.tied = tied;
  return config;
}

double deviation(const Tensor& tensor) {
  double sum = 0;
  for (int64_t i = 0; i < tensor.numel(); ++i)
    sum += std::pow(static_cast<double>(tensor.data<float>()[i]), 2);
  return std::sqrt(sum / static_cast<double>(tensor.numel()));
}

TEST(InitialModel, FollowsTheSeedAndTheScales) {
  Context one({.threads = 1}), three({.threads = 3});
  const Model a = initial_model(one, small(false), {0.02f, true}, 5),
              b = initial_model(three, small(false), {0.02f, true}, 5),
              c = initial_model(one, small(false), {0.02f, false}, 6);
  EXPECT_NEAR(deviation(a.weights.embedding), 0.02, 0.001);
  EXPECT_NEAR(deviation(a.weights.blocks[1].down), 0.01, 0.001);  // 0.02 / sqrt(2 · 2)
  EXPECT_NEAR(deviation(c.weights.blocks[1].down), 0.02, 0.001);
  EXPECT_EQ(a.weights.final_norm.data<float>()[3], 1);
  bool same = true, differs = false;
  for (int64_t i = 0; i < a.weights.embedding.numel(); ++i) {
    same &= a.weights.embedding.data<float>()[i] == b.weights.embedding.data<float>()[i];
    differs |= a.weights.embedding.data<float>()[i] != c.weights.embedding.data<float>()[i];
  }
  EXPECT_TRUE(same);
  EXPECT_TRUE(differs);
  EXPECT_NE(a.weights.blocks[0].gate.data<float>()[0], a.weights.blocks[0].up.data<float>()[0]);
}

TEST(ParameterSet, PointsTheModelAtWhatTrains) {
  Context ctx({.threads = 2});
  Model model = initial_model(ctx, small(true), {}, 1);
  const float before = model.weights.embedding.data<float>()[7];
  ParameterSet set(ctx, model_parameters(model), Precision::kBf16);
  EXPECT_EQ(host_values(ctx, set.values())[7], before);
  EXPECT_EQ(model.weights.embedding.dtype(), DType::kBF16);
  EXPECT_EQ(model.weights.output.raw(), model.weights.embedding.raw());            // tied
  EXPECT_EQ(model.weights.output.gradient(), model.weights.embedding.gradient());  // and learns as one
  EXPECT_EQ(model.weights.final_norm.dtype(), DType::kF32);
  std::vector<float> values = host_values(ctx, set.values());
  values[7] = 1.5f;
  set_values(ctx, set.values(), values);
  EXPECT_EQ(model.weights.embedding.data<uint16_t>()[7], bf16_of_f32(before));
  set.refresh(ctx);
  EXPECT_EQ(model.weights.embedding.data<uint16_t>()[7], bf16_of_f32(1.5f));
  model.weights.embedding.gradient()->value.data<float>()[7] = 3;
  EXPECT_EQ(host_values(ctx, set.gradients())[7], 3);
  set.zero_gradients(ctx);
  EXPECT_EQ(host_values(ctx, set.gradients())[7], 0);
  for (const ParameterSet::Parameter& parameter : set.list())
    EXPECT_EQ(parameter.spec.decay, parameter.shape.rank() == 2);
  EXPECT_EQ(error_of([&] { set.load(ctx, {}, "here"); }),
            "here: tensor 'model.embed_tokens.weight' is missing");
}

// What multiplies the same rows is one block of memory, biases between or not.
TEST(ParameterSet, MatricesOfOneInputAreNeighbours) {
  Context ctx({.threads = 1});
  for (const bool biased : {false, true}) {
    ModelConfig config = small(false);
    config.qkv_bias = config.ffn_bias = biased;
    Model model = initial_model(ctx, config, {}, 1);
    const Tensor up = model.weights.blocks[1].up;
    const ParameterSet set(ctx, model_parameters(model), Precision::kBf16);
    const auto follows = [](const Tensor& first, const Tensor& second) {
      return first.data<uint16_t>() + first.numel() == second.data<uint16_t>();
    };
    for (const BlockWeights& block : model.weights.blocks) {
      EXPECT_TRUE(follows(block.q, block.k) && follows(block.k, block.v) && follows(block.gate, block.up));
      EXPECT_EQ(block.q_bias.defined(), biased);
    }
    for (int64_t i = 0; i < up.numel(); ++i)
      ASSERT_EQ(model.weights.blocks[1].up.data<uint16_t>()[i], bf16_of_f32(up.data<float>()[i])) << i;
  }
}

// On a device that the host cannot touch, from values here or there.
TEST(ParameterSet, LivesOnTheContextsDevice) {
  std::vector<std::vector<float>> all;
  for (const bool moved : {false, true}) {
    Context ctx({.device = Device::kGuarded, .threads = 2});
    Model model = initial_model(ctx, small(true), {}, 1);
    if (moved) move_model(ctx, model);
    ParameterSet set(ctx, model_parameters(model), Precision::kBf16);
    EXPECT_EQ(model.weights.embedding.device(), Device::kGuarded);
    EXPECT_EQ(model.weights.embedding.gradient()->value.device(), Device::kGuarded);
    const Tensor half = model.weights.embedding.to(ctx, Device::kCpu);
    all.push_back(host_values(ctx, set.values()));
    for (int64_t i = 0; i < half.numel(); ++i)
      ASSERT_EQ(half.data<uint16_t>()[i], bf16_of_f32(all.back()[static_cast<size_t>(i)]));
  }
  EXPECT_EQ(all[0], all[1]);
}

}  // namespace
}  // namespace fathom
