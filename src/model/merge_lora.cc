#include "model/merge_lora.h"

#include "model/load.h"
#include "model/lora.h"
#include "ops/linear/matrix_rows.h"
#include "quant/formats.h"

namespace fathom {
namespace {

DType merged_type(DType held, const Lora& lora) {
  return is_block_format(held) ? lora.round.value_or(DType::kQ8_0) : held;
}

DType side_type(DType beside, int64_t width) {
  if (!is_block_format(beside)) return beside;
  return width % traits(DType::kQ8_0).block == 0 ? DType::kQ8_0 : DType::kF16;
}

// row += by · other
void add_scaled(float* row, const float* other, float by, int64_t n) {
  for (int64_t i = 0; i < n; ++i) row[i] += by * other[i];
}

// weight: of any type and layout. a, b: f32. All on the CPU.
Tensor merged(Context& ctx, const Tensor& weight, const LoraFactors& factors, float scale, DType type) {
  Tensor out = Tensor::owned(Device::kCpu, type, weight.shape());
  const int64_t width = weight.dim(1), rank = factors.a.dim(0), bytes = row_bytes(type, width);
  const auto *a = factors.a.data<float>(), *b = factors.b.data<float>();
  ctx.pool().parallel_for(weight.dim(0), 8, [&](int64_t begin, int64_t end) {
    std::vector<float> values(static_cast<size_t>(width));
    for (int64_t row = begin; row < end; ++row) {
      decode_matrix_row(weight, row, values.data());
      for (int64_t k = 0; k < rank; ++k)
        add_scaled(values.data(), a + k * width, scale * b[row * rank + k], width);
      encode_row(type, values.data(), out.data<std::byte>() + row * bytes, width);
    }
  });
  return out;
}

}  // namespace

void merge_lora(Context& ctx, Model& model, const Lora& lora, const std::string& name,
                std::optional<DType> type) {
  Model source;
  source.config = model.config;
  source.lora = lora;
  bool arranged = false;
  for (const LoraSpec& spec : lora_specs(source)) {
    Tensor& weight = weight_of(model.weights.blocks[static_cast<size_t>(spec.layer)], spec.projection);
    arranged = arranged || weight.layout() != Layout::kRows;
    const Tensor here = weight.to(ctx, Device::kCpu);
    weight = merged(ctx, here, *spec.factors, lora.scale(), type.value_or(merged_type(here.dtype(), lora)))
                 .to(ctx, model.device);
  }
  model.adapted = name;
  if (arranged) arrange_weights(ctx, model);
}

void attach_lora(Context& ctx, Model& model, const Lora& lora) {
  Lora side = lora;
  side.dropout = 0;
  for (const LoraSpec& spec : lora_specs(model.config, side)) {
    LoraFactors& factors = *spec.factors;
    if (!factors.a) continue;
    const DType beside =
        weight_of(model.weights.blocks[static_cast<size_t>(spec.layer)], spec.projection).dtype();
    factors.a = convert_tensor(ctx, factors.a, side_type(beside, spec.in)).to(ctx, model.device);
    factors.b = convert_tensor(ctx, factors.b, side_type(beside, lora.rank)).to(ctx, model.device);
  }
  model.lora = std::move(side);
}

}  // namespace fathom
