#include "train/estimate.h"

#include <algorithm>
#include <chrono>

#include "model/flops.h"
#include "model/lora.h"
#include "model/weights.h"
#include "ops/linear/linear.h"
#include "ops/loss/output_loss.h"
#include "ops/rows/read_scalars.h"
#include "tensor/arena.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

// Multiply-adds a second of a product as training has them: large enough that a GPU is busy with it.
double measured_speed(Context& ctx, Precision precision) {
  using Clock = std::chrono::steady_clock;
  const bool gpu = ctx.device() == Device::kCuda;
  const int64_t rows = gpu ? 4096 : 512, width = gpu ? 4096 : 768;
  const Tensor weight =
      Tensor::owned(ctx.device(), precision == Precision::kBf16 ? DType::kBF16 : DType::kF32, {width, width});
  const Tensor x = Tensor::owned(ctx.device(), DType::kF32, {rows, width});
  Tape tape(ctx.device());
  const TapeScope taped(ctx, tape);
  const RecordingScope quiet(ctx, false);
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    const ArenaScope scope(ctx);
    const Clock::time_point start = Clock::now();
    const Tensor done = linear(ctx, x, weight).reshape({rows * width}).rows(0, 1);
    read_scalars(ctx, std::span(&done, 1));  // waits for it
    best = std::max(best, static_cast<double>(rows * width * width) /
                              std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

// Floats that the tape keeps for one row: each op's input, roughly. Without the logits.
int64_t activations_per_row(const ModelConfig& c, bool recompute) {
  const int64_t heads = (2 * c.heads + 2 * c.kv_heads) * c.head_dim;
  const int64_t block = recompute ? 2 * c.width : 6 * c.width + 2 * heads + 4 * c.ffn_width;
  return c.layers * block + 4 * c.width;
}

// Logits and their gradient, of as many rows as a loss has in memory at once.
int64_t logits_at_once(const Context& ctx, const ModelConfig& c, int64_t rows) {
  const int64_t all = rows * c.vocab;
  return 2 * (ctx.device() == Device::kCuda ? std::min(all, std::max(kLogitsAtOnce, 128 * c.vocab)) : all);
}

int64_t lora_size(const LoraConfig& lora, const ModelConfig& model) {
  Lora none;
  int64_t size = 0;
  for (const LoraSpec& spec : lora_specs(model, none)) {
    const auto& targets = lora.targets;
    if (targets.empty() ||
        std::find(targets.begin(), targets.end(), name_of(spec.projection)) != targets.end())
      size += lora.rank * (spec.in + spec.out);
  }
  return size;
}

}  // namespace

TrainEstimate estimate_run(Context& ctx, const Recipe& recipe, const ModelConfig& model) {
  const TrainConfig& config = recipe.train;
  TrainEstimate out;
  ModelWeights weights;
  for (const WeightSpec& spec : weight_specs(model, weights)) out.parameters += spec.shape.numel();
  for (const MethodParameter& own : recipe.method->describe(model))
    out.method_parameters += own.shape.numel();
  const bool frozen = recipe.frozen();
  out.trained = out.method_parameters + (frozen ? 0 : out.parameters) + lora_size(config.lora, model);
  out.tokens_per_step = config.batch * config.context * config.accumulate;
  out.tokens = out.tokens_per_step * config.last_step();
  const DenseWork work = dense_work(model, config.context, 0, config.context);
  const double forward =
      2 * static_cast<double>(work.block_madds + work.output_madds) / static_cast<double>(config.context);
  const bool distils = recipe.method->options().objective == Objective::kDistill;
  // Backward: activations' gradients, and weights' where they train.
  const double passes =
      1 + (frozen ? 1 : 2) + (config.recompute ? 1 : 0) + (distils ? 1 - double{config.text_share} : 0);
  out.flops_per_token = forward * passes;
  out.flops = out.flops_per_token * static_cast<double>(out.tokens);
  const bool adamw = config.optimizer.kind == OptimizerKind::kAdamW;
  const int64_t per_value = 8 +
                            (adamw                        ? 8
                             : config.optimizer.beta1 > 0 ? 4
                                                          : 0) +
                            (config.precision == Precision::kBf16 ? 2 : 0);
  const int64_t held = frozen ? out.parameters * (config.precision == Precision::kBf16 ? 2 : 4) : 0;
  const int64_t rows = config.batch * config.context;
  out.memory_bytes =
      out.trained * per_value + held +
      4 * (rows * activations_per_row(model, config.recompute) + logits_at_once(ctx, model, rows));
  out.seconds = out.flops / 2 / measured_speed(ctx, config.precision);
  return out;
}

}  // namespace fathom
