#include "train/initial_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "model/weights.h"

namespace fathom {
namespace {

constexpr uint32_t kStream = 0x1417;  // keeps these numbers apart from the training's noise
constexpr int64_t kRun = 4096;        // numbers from one generator, whoever computes them

void fill_normal(Context& ctx, Tensor& tensor, float std, uint64_t seed, uint32_t index) {
  auto* values = tensor.data<float>();
  const int64_t size = tensor.numel(), runs = (size + kRun - 1) / kRun;
  ctx.pool().parallel_for(runs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t run = begin; run < end; ++run) {
      Rng rng(seed, {kStream, index, static_cast<uint32_t>(run)});
      for (int64_t i = run * kRun; i < std::min(size, (run + 1) * kRun); ++i) values[i] = std * rng.normal();
    }
  });
}

// The two matrices of a block whose output joins the residual.
bool joins_residual(const ModelWeights& weights, const Tensor* tensor) {
  return std::any_of(weights.blocks.begin(), weights.blocks.end(),
                     [&](const BlockWeights& block) { return tensor == &block.o || tensor == &block.down; });
}

Tensor frequencies(const RopeConfig& rope, int64_t head_dim) {
  const std::vector<float> values = inverse_frequencies(rope, head_dim);
  Tensor out = Tensor::owned(Device::kCpu, DType::kF32, {static_cast<int64_t>(values.size())});
  std::memcpy(out.raw(), values.data(), values.size() * sizeof(float));
  return out;
}

}  // namespace

Model initial_model(Context& ctx, const ModelConfig& config, const InitialWeights& init, uint64_t seed) {
  check_config(config, "model");
  Model model;
  model.config = config;
  model.format = "new";
  uint32_t index = 0;
  for (const WeightSpec& spec : weight_specs(model.config, model.weights)) {
    *spec.tensor = Tensor::owned(Device::kCpu, DType::kF32, spec.shape);
    const bool scaled = init.scale_output && joins_residual(model.weights, spec.tensor);
    const float std = scaled ? init.std / std::sqrt(2.0f * static_cast<float>(config.layers)) : init.std;
    if (spec.matrix) fill_normal(ctx, *spec.tensor, std, seed, index);
    if (spec.norm) {
      auto* values = spec.tensor->data<float>();
      std::fill(values, values + spec.tensor->numel(), 1.0f - config.norm_weight_offset);
    }
    ++index;
  }
  if (config.tied) model.weights.output = model.weights.embedding;
  model.weights.frequencies = frequencies(config.rope, config.head_dim);
  model.weights.local_frequencies = frequencies(config.local_rope, config.head_dim);
  return model;
}

}  // namespace fathom
