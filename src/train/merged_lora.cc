#include "train/merged_lora.h"

#include "base/format.h"
#include "model/lora.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/fill.h"
#include "tensor/arena.h"

namespace fathom {

// Matrices that multiply the same rows (q, k and v; gate and up) are neighbours, and so are their gradients.
MergedLora::MergedLora(Context& ctx, Model& model, MergeRounding rounding)
    : scale_(model.lora.scale()), rounding_(rounding) {
  int64_t size = 0, begin = 0;
  const DType type = model.weights.blocks.front().q.dtype();
  for (const LoraSpec& spec : lora_specs(model)) size += spec.in * spec.out;
  const Tensor all = Tensor::owned(ctx.device(), type, {size});
  gradients_ = Tensor::owned(ctx.device(), DType::kF32, {size});
  for (const LoraSpec& spec : lora_specs(model)) {
    Tensor& weight = weight_of(model.weights.blocks[static_cast<size_t>(spec.layer)], spec.projection);
    expect(weight, type, {spec.out, spec.in}, "merged LoRA", spec.name.c_str());
    const auto part = [&](const Tensor& flat) {
      return flat.rows(begin, spec.in * spec.out).reshape({spec.out, spec.in});
    };
    matrices_.push_back({weight, part(all), part(gradients_), spec.factors});
    weight = parameter(matrices_.back().merged, matrices_.back().gradient);
    begin += spec.in * spec.out;
  }
  model.lora.merged = true;
  merge(ctx);
}

void MergedLora::merge(Context& ctx) {
  for (Matrix& matrix : matrices_) {
    const ArenaScope scope(ctx);
    merge_low_rank(ctx, matrix.base, matrix.factors->a, matrix.factors->b, scale_, rounding_, matrix.merged);
  }
}

void MergedLora::zero_gradients(Context& ctx) {
  fill(ctx, gradients_, 0.0f);
}

void MergedLora::split_gradients(Context& ctx) {
  for (const Matrix& matrix : matrices_) {
    const LoraFactors& factors = *matrix.factors;
    Tensor da = gradient_to_add_to(factors.a), db = gradient_to_add_to(factors.b);
    split_low_rank(ctx, matrix.gradient, factors.a, factors.b, scale_, da, db);
  }
}

}  // namespace fathom
