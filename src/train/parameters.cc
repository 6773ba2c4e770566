#include "train/parameters.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "base/format.h"
#include "model/load.h"
#include "model/weights.h"
#include "ops/kernels/row_access.h"
#include "quant/half.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

// Each parameter begins at a multiple of this many floats: a cache line of its own.
constexpr int64_t kAlign = 16;
constexpr int64_t kBlock = 1 << 14;  // elements that a thread takes at least

Tensor part(const Tensor& flat, int64_t begin, const Shape& shape) {
  return Tensor::view(Device::kCpu, flat.data<float>() + begin, DType::kF32, shape, flat.owner());
}

}  // namespace

std::span<const std::string_view> enum_names(Precision) {
  static constexpr std::array<std::string_view, 2> kNames{"f32", "bf16"};
  return kNames;
}

std::vector<ParameterSpec> model_parameters(Model& model) {
  std::vector<ParameterSpec> specs;
  for (const WeightSpec& weight : weight_specs(model.config, model.weights)) {
    ParameterSpec spec{weight.hf, weight.tensor, {}, weight.matrix, weight.matrix, 1};
    if (model.config.tied && weight.tensor == &model.weights.embedding)
      spec.aliases.push_back(&model.weights.output);
    specs.push_back(std::move(spec));
  }
  return specs;
}

ParameterSet::ParameterSet(Context& ctx, std::vector<ParameterSpec> specs, Precision precision) {
  for (ParameterSpec& spec : specs) {
    if (!spec.tensor->defined()) fail("parameter '{}' has no values", spec.name);
    Parameter parameter{std::move(spec), {}, size_, 0, {}};
    parameter.shape = parameter.spec.tensor->shape();
    parameter.size = parameter.shape.numel();
    size_ += (parameter.size + kAlign - 1) / kAlign * kAlign;
    list_.push_back(std::move(parameter));
  }
  master_ = Tensor::owned(Device::kCpu, DType::kF32, {size_});
  gradient_ = Tensor::owned(Device::kCpu, DType::kF32, {size_});
  for (Parameter& parameter : list_) {
    const Tensor values = convert_tensor(ctx, *parameter.spec.tensor, DType::kF32);
    Tensor master = part(master_, parameter.begin, parameter.shape);
    std::memcpy(master.raw(), values.raw(), static_cast<size_t>(values.nbytes()));
    if (precision == Precision::kBf16 && parameter.spec.matrix)
      parameter.half = Tensor::owned(Device::kCpu, DType::kBF16, parameter.shape);
    const Tensor trained = parameter.half ? parameter.half : master;
    *parameter.spec.tensor = fathom::parameter(trained, part(gradient_, parameter.begin, parameter.shape));
    for (Tensor* alias : parameter.spec.aliases) *alias = *parameter.spec.tensor;
  }
  refresh(ctx);
}

void ParameterSet::zero_gradients(Context& ctx) {
  float* gradient = gradient_.data<float>();
  ctx.pool().parallel_for(
      size_, kBlock, [&](int64_t begin, int64_t end) { std::fill(gradient + begin, gradient + end, 0.0f); });
}

void ParameterSet::refresh(Context& ctx) {
  const auto round = row_kernels(ctx.isa()).to_bf16;
  for (Parameter& parameter : list_) {
    if (!parameter.half) continue;
    const float* master = master_.data<float>() + parameter.begin;
    auto* half = parameter.half.data<uint16_t>();
    ctx.pool().parallel_for(parameter.size, kBlock, [&](int64_t begin, int64_t end) {
      round(master + begin, half + begin, end - begin);
    });
  }
}

std::vector<NamedTensor> ParameterSet::named_values() const {
  std::vector<NamedTensor> out;
  for (const Parameter& parameter : list_)
    out.push_back({parameter.spec.name, part(master_, parameter.begin, parameter.shape)});
  return out;
}

void ParameterSet::load(Context& ctx, std::span<const NamedTensor> tensors, const std::string& where) {
  std::map<std::string_view, const Tensor*> by_name;
  for (const NamedTensor& tensor : tensors) by_name[tensor.name] = &tensor.tensor;
  for (Parameter& parameter : list_) {
    const auto found = by_name.find(parameter.spec.name);
    if (found == by_name.end()) fail("{}: tensor '{}' is missing", where, parameter.spec.name);
    const Tensor& stored = *found->second;
    if (stored.dtype() != DType::kF32 || !(stored.shape() == parameter.shape)) {
      fail("{}: tensor '{}' must be f32 {}, got {} {}", where, parameter.spec.name,
           to_string(parameter.shape), name_of(stored.dtype()), to_string(stored.shape()));
    }
    std::memcpy(master_.data<float>() + parameter.begin, stored.raw(), static_cast<size_t>(stored.nbytes()));
  }
  refresh(ctx);
}

}  // namespace fathom
