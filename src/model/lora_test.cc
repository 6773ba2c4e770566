#include "model/lora.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "ops/kernels/kept_rows_test.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/reduce.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

ModelConfig shape() {
  ModelConfig c;
  c.width = 24;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 8;
  c.ffn_width = 40;
  return c;
}

// (x Wᵀ + scale · (x Aᵀ) Bᵀ), the definition. in: x, W, A, B
std::vector<double> adapted(std::span<const Tensor> in, double scale) {
  const int64_t rows = in[0].dim(0), width = in[0].dim(1), out = in[1].dim(0), rank = in[2].dim(0);
  std::vector<double> y;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<double> low(static_cast<size_t>(rank), 0.0);
    for (int64_t k = 0; k < rank; ++k) {
      for (int64_t i = 0; i < width; ++i)
        low[static_cast<size_t>(k)] += number(in[0], r * width + i) * number(in[2], k * width + i);
    }
    for (int64_t o = 0; o < out; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) sum += number(in[0], r * width + i) * number(in[1], o * width + i);
      for (int64_t k = 0; k < rank; ++k)
        sum += scale * low[static_cast<size_t>(k)] * number(in[3], o * rank + k);
      y.push_back(sum);
    }
  }
  return y;
}

// A model whose v of layer 1 is W, with the factors A and B.
Model model_of(const Tensor& weight, const Tensor& a, const Tensor& b) {
  Model model;
  model.config = shape();
  model.weights.blocks.resize(2);
  model.weights.blocks[1].v = weight;
  model.lora.rank = 4;
  model.lora.alpha = 6;
  model.lora.blocks.resize(2);
  model.lora.blocks[1][static_cast<size_t>(Projection::kV)] = {a, b};
  return model;
}

Tensor random_matrix(const Shape& shape, uint64_t seed) {
  Tensor out = Tensor::owned(Device::kCpu, DType::kF32, shape);
  Rng rng(seed);
  std::generate_n(out.data<float>(), out.numel(), [&] { return rng.normal(); });
  return out;
}

double total(const std::vector<double>& values) {
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += values[i] * (1 + static_cast<double>(i % 5));
  return sum;
}

// The product itself, and the tape's gradients of a weighted sum of it, to x, A and B.
TEST(Lora, AddsItsProduct) {
  Context ctx({.threads = 2});
  std::vector<Tensor> in{random_matrix({7, 24}, 1), random_matrix({16, 24}, 2), random_matrix({4, 24}, 3),
                         random_matrix({16, 4}, 4)};
  const Batch batch;
  const RowSet rows = RowSet::all(7);
  Tape tape(ctx.device());
  const TapeScope recording(ctx, tape);
  std::vector<Tensor> taped = in, gradients;
  for (const size_t i : {0, 2, 3}) {
    gradients.push_back(Tensor::owned(Device::kCpu, DType::kF32, in[i].shape()));
    taped[i] = parameter(in[i], gradients.back());
  }
  const Model model = model_of(taped[1], taped[2], taped[3]);
  const Tensor y = project_one(ctx, {model, 1, batch, rows}, taped[0], Projection::kV);
  const std::vector<double> expected = adapted(in, 1.5);
  std::vector<float> weights;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(number(y, static_cast<int64_t>(i)), expected[i], 1e-4) << i;
    weights.push_back(1 + static_cast<float>(i % 5));
  }
  const Tensor mean =
      mean_rows(ctx, multiply(ctx, y, Tensor::from(ctx, weights, y.shape())).reshape({7 * 16}));
  tape.backward(ctx, affine(ctx, mean, 7 * 16, 0.0f));
  size_t next = 0;
  for (const size_t i : {0, 2, 3}) {
    for (int64_t j = 0; j < in[i].numel(); j += 5) {
      float& value = in[i].data<float>()[j];
      const float before = value;
      value = before + 0.5f;
      const double above = total(adapted(in, 1.5));
      value = before - 0.5f;
      const double below = total(adapted(in, 1.5));
      value = before;
      ASSERT_NEAR(number(gradients[next], j), above - below, 2e-3) << i << " " << j;
    }
    ++next;
  }
}

// As the branches have them: a few of the rows, compacted.
TEST(Lora, AddsItsProductInKeptRows) {
  Context ctx({.threads = 1});
  const std::vector<Tensor> in{random_matrix({10, 24}, 1), random_matrix({16, 24}, 2),
                               random_matrix({4, 24}, 3), random_matrix({16, 4}, 4)};
  const Model model = model_of(in[1], in[2], in[3]);
  const Batch batch;
  const RowSet kept = every_third(ctx, 10);
  const Tensor y = project_one(ctx, {model, 1, batch, kept}, gather_rows(ctx, in[0], kept), Projection::kV);
  EXPECT_TRUE(y.row_count());
  const std::vector<double> expected = adapted(in, 1.5);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t o = 0; o < 16; ++o)
      ASSERT_NEAR(number(y, i * 16 + o), expected[static_cast<size_t>((1 + 3 * i) * 16 + o)], 1e-4);
  }
}

TEST(Lora, LeavesMatricesWithoutFactorsAlone) {
  Context ctx({.threads = 1});
  Lora lora = initial_lora(shape(), 4, 8, std::vector<std::string>{"o_proj", "up_proj"}, 3);
  EXPECT_EQ(lora.scale(), 2.0f);
  Model model;
  model.config = shape();
  model.lora = lora;
  std::vector<std::string> names;
  for (const LoraSpec& spec : lora_specs(model)) names.push_back(spec.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"model.layers.0.self_attn.o_proj", "model.layers.0.mlp.up_proj",
                                      "model.layers.1.self_attn.o_proj", "model.layers.1.mlp.up_proj"}));
}

TEST(Lora, BeginsAsNothing) {
  const Lora lora = initial_lora(shape(), 8, 8, {}, 3);
  ASSERT_EQ(lora.blocks.size(), 2u);
  for (const auto& block : lora.blocks) {
    for (const LoraFactors& factors : block) {
      double squares = 0;
      for (const float value : values_of(factors.a)) squares += double{value} * value;
      const auto in = static_cast<double>(factors.a.dim(1)), count = static_cast<double>(factors.a.numel());
      EXPECT_NEAR(squares / count * in, 1.0, 5 * std::sqrt(2 / count));
      for (const float value : values_of(factors.b)) ASSERT_EQ(value, 0.0f);
    }
  }
  EXPECT_NE(values_of(lora.blocks[0][0].a), values_of(lora.blocks[1][0].a));
  EXPECT_NE(values_of(initial_lora(shape(), 8, 8, {}, 4).blocks[0][0].a), values_of(lora.blocks[0][0].a));
}

TEST(Lora, NamesATargetThatIsNone) {
  EXPECT_EQ(
      refusal([] {
        initial_lora(shape(), 4, 4, std::vector<std::string>{"q_proj", "fc1"}, 0);
      }),
      "lora: a target must be one of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, got "
      "'fc1'");
}

}  // namespace
}  // namespace fathom
