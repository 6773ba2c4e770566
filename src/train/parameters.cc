#include "train/parameters.h"

#include <array>
#include <map>
#include <numeric>

#include "base/format.h"
#include "model/load.h"
#include "model/lora.h"
#include "model/weights.h"
#include "ops/linear/round_to_bf16.h"
#include "ops/rows/fill.h"
#include "tensor/memory.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

// Each parameter begins at a multiple of this many elements: a cache line of its own.
constexpr int64_t kAlign = 16;
constexpr int64_t kRow = 4096;  // elements of a row that is rounded at once, at most

int64_t room_of(int64_t size) {
  return (size + kAlign - 1) / kAlign * kAlign;
}

Tensor part(const Tensor& flat, int64_t begin, const Shape& shape) {
  return flat.rows(begin, shape.numel()).reshape(shape);
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

std::vector<ParameterSpec> lora_parameters(Model& model, bool merged) {
  std::vector<ParameterSpec> specs;
  for (const LoraSpec& spec : lora_specs(model)) {
    specs.push_back({spec.name + ".lora_A.weight", &spec.factors->a, {}, true, !merged, 1});
    specs.push_back({spec.name + ".lora_B.weight", &spec.factors->b, {}, true, !merged, 1});
  }
  return specs;
}

ParameterSet::ParameterSet(Context& ctx, std::vector<ParameterSpec> specs, Precision precision) {
  for (ParameterSpec& spec : specs) {
    if (!spec.tensor->defined()) fail("parameter '{}' has no values", spec.name);
    Parameter parameter{std::move(spec), {}, size_, 0, {}};
    parameter.shape = parameter.spec.tensor->shape();
    parameter.size = parameter.shape.numel();
    size_ += room_of(parameter.size);
    list_.push_back(std::move(parameter));
  }
  master_ = Tensor::owned(ctx.device(), DType::kF32, {size_});
  gradient_ = Tensor::owned(ctx.device(), DType::kF32, {size_});
  if (precision == Precision::kBf16) make_halves(ctx.device());
  for (Parameter& parameter : list_) {
    const Tensor values = convert_tensor(ctx, parameter.spec.tensor->to(ctx, Device::kCpu), DType::kF32);
    Tensor master = part(master_, parameter.begin, parameter.shape);
    copy_bytes(ctx, master.raw(), master.device(), values.raw(), Device::kCpu,
               static_cast<size_t>(values.nbytes()));
    const Tensor trained = parameter.half ? parameter.half : master;
    *parameter.spec.tensor = fathom::parameter(trained, gradient(parameter));
    for (Tensor* alias : parameter.spec.aliases) *alias = *parameter.spec.tensor;
  }
  refresh(ctx);
}

// Only matrices have a place there, so those that multiply the same rows (q, k and v; gate and up) are one
// block of memory whatever stands between them in the list.
void ParameterSet::make_halves(Device device) {
  int64_t size = 0;
  const Parameter* before = nullptr;  // the one before in the list, where it has a copy
  for (const Parameter& parameter : list_) {
    const int64_t room = room_of(parameter.size);
    if (parameter.spec.matrix) {
      if (!before) half_runs_.push_back({parameter.begin, 0, size});
      half_runs_.back().size += room;
      size += room;
    }
    before = parameter.spec.matrix ? &parameter : nullptr;
  }
  half_ = Tensor::owned(device, DType::kBF16, {size});
  int64_t begin = 0;
  for (Parameter& parameter : list_) {
    if (!parameter.spec.matrix) continue;
    parameter.half = part(half_, begin, parameter.shape);
    begin += room_of(parameter.size);
  }
}

Tensor ParameterSet::gradient(const Parameter& parameter) const {
  return part(gradient_, parameter.begin, parameter.shape);
}

std::vector<Tensor> ParameterSet::last_gradients(size_t count) const {
  std::vector<Tensor> all;
  for (size_t i = list_.size() - count; i < list_.size(); ++i) all.push_back(gradient(list_[i]));
  return all;
}

void ParameterSet::zero_gradients(Context& ctx) {
  fill(ctx, gradient_, 0.0f);
}

void ParameterSet::refresh(Context& ctx) {
  for (const HalfRun& run : half_runs_) {
    const int64_t width = std::gcd(run.size, kRow);
    const Shape shape{run.size / width, width};
    Tensor half = part(half_, run.half_begin, shape);
    round_to_bf16(ctx, part(master_, run.begin, shape), half);
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
    Tensor master = part(master_, parameter.begin, parameter.shape);
    copy_bytes(ctx, master.raw(), master.device(), stored.raw(), Device::kCpu,
               static_cast<size_t>(stored.nbytes()));
  }
  refresh(ctx);
}

}  // namespace fathom
