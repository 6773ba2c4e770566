#include "model/load.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/format.h"
#include "io/file_kind.h"
#include "model/check_weights.h"
#include "model/load_sources.h"
#include "ops/linear/matrix_rows.h"
#include "quant/formats.h"
#include "quant/matmul.h"
#include "tensor/memory.h"

namespace fathom {
namespace {

size_t alignment_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kU8:
      return 1;
    default:
      return 2;  // halves, and the halves that block formats begin with
  }
}

// Files may place tensors anywhere; kernels want at least the element's own alignment.
Tensor aligned(const Tensor& tensor) {
  if (reinterpret_cast<uintptr_t>(tensor.raw()) % alignment_of(tensor.dtype()) == 0) return tensor;
  Tensor copy = Tensor::owned(Device::kCpu, tensor.dtype(), tensor.shape());
  std::memcpy(copy.raw(), tensor.raw(), static_cast<size_t>(tensor.nbytes()));
  return copy;
}

void take_weight(Context& ctx, const WeightSpec& spec, const std::string& name, const Tensor& stored,
                 const std::string& where) {
  const bool float_type = stored.dtype() != DType::kI32 && stored.dtype() != DType::kU8;
  if (!float_type)
    fail("{}: tensor '{}' must hold floating-point numbers, got {}", where, name, name_of(stored.dtype()));
  if (!(stored.shape() == spec.shape)) {
    fail("{}: tensor '{}' must be {}, got {}", where, name, to_string(spec.shape), to_string(stored.shape()));
  }
  *spec.tensor = spec.matrix ? aligned(stored) : convert_tensor(ctx, aligned(stored), DType::kF32);
}

void derive_frequencies(Model& model) {
  const auto table = [&](const RopeConfig& rope, const Tensor& factors) {
    std::vector<float> values = inverse_frequencies(rope, model.config.head_dim);
    for (size_t i = 0; i < values.size() && factors; ++i) values[i] /= factors.data<float>()[i];
    Tensor out = Tensor::owned(Device::kCpu, DType::kF32, {static_cast<int64_t>(values.size())});
    std::memcpy(out.raw(), values.data(), values.size() * sizeof(float));
    return out;
  };
  model.weights.frequencies = table(model.config.rope, model.weights.rope_factors);
  model.weights.local_frequencies = table(model.config.local_rope, {});
}

void check_token_ids(const Model& model) {
  const auto inside = [&](const char* what, int32_t id) {
    if (id >= model.config.vocab)
      fail("{}: the {} token {} is outside the vocabulary of {}", model.path, what, id, model.config.vocab);
  };
  inside("BOS", model.config.bos);
  for (int32_t id : model.config.eos) inside("EOS", id);
  if (model.tokenizer && model.tokenizer->vocab_size() > model.config.vocab) {
    fail(
        "{}: the tokenizer has {} tokens, more than the model's vocabulary of {}: they do not belong "
        "together",
        model.path, model.tokenizer->vocab_size(), model.config.vocab);
  }
}

ModelSource open_source(const std::string& path, const LoadOptions& options) {
  const FileKind kind = file_kind(path);
  switch (kind) {
    case FileKind::kMissing:
      fail("no such file or folder: {}", printable(path));
    case FileKind::kGguf:
      return open_gguf_source(path, options);
    case FileKind::kLlama2c:
      return open_llama2c_source(path, options);
    case FileKind::kHfDirectory:
    case FileKind::kAdapterDirectory:
    case FileKind::kDirectory:
      return open_hf_source(path, options);
    case FileKind::kSafetensors:
      fail("{}: a safetensors file has no config: give the folder that also holds config.json",
           printable(path));
    default:
      fail("{}: expected a Hugging Face folder, a .gguf or a llama2.c .bin, got {}", printable(path),
           describe(kind));
  }
}

}  // namespace

Tensor convert_tensor(Context& ctx, const Tensor& tensor, DType dtype) {
  if (tensor.layout() != Layout::kRows) return convert_tensor(ctx, in_rows(ctx, tensor), dtype);
  if (tensor.dtype() == dtype) return tensor;
  Tensor out = Tensor::owned(Device::kCpu, dtype, tensor.shape());
  const int64_t n = tensor.shape().last(), rows = tensor.numel() / n;
  const int64_t from_bytes = row_bytes(tensor.dtype(), n), to_bytes = row_bytes(dtype, n);
  ctx.pool().parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> values(static_cast<size_t>(n));
    for (int64_t row = begin; row < end; ++row) {
      decode_row(tensor.dtype(), tensor.data<std::byte>() + row * from_bytes, values.data(), n);
      // Blocks have no way to hold it, and what they round it to looks like any other number.
      if (is_block_format(dtype) &&
          !std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }))
        fail("row {} holds a number that is not finite, which {} cannot hold", row, name_of(dtype));
      encode_row(dtype, values.data(), out.data<std::byte>() + row * to_bytes, n);
    }
  });
  return out;
}

Model load_model(Context& ctx, const std::string& path, const LoadOptions& options) {
  ModelSource source = open_source(path, options);
  Model model = std::move(source.model);
  for (const WeightSpec& spec : weight_specs(model.config, model.weights)) {
    const std::string& name = source.gguf_names ? spec.gguf : spec.hf;
    const Tensor* stored = source.take(name);
    const auto unsupported = source.unsupported.find(name);
    if (unsupported != source.unsupported.end()) {
      fail("{}: tensor '{}' has {}, which is not supported", model.path, name, unsupported->second);
    }
    if (!stored) fail("{}: tensor '{}' is missing", model.path, name);
    take_weight(ctx, spec, name, *stored, model.path);
    check_finite(ctx, *spec.tensor, name, model.path);
  }
  source.refuse_rest(model);
  derive_frequencies(model);
  if (options.dtype) convert_weights(ctx, model, *options.dtype, true);
  if (model.config.tied) model.weights.output = model.weights.embedding;
  check_token_ids(model);
  move_model(ctx, model);
  return model;
}

void move_model(Context& ctx, Model& model) {
  const auto move = [&](Tensor& tensor) { tensor = tensor.to(ctx, ctx.device()); };
  for (const WeightSpec& spec : weight_specs(model.config, model.weights)) move(*spec.tensor);
  if (model.config.tied) model.weights.output = model.weights.embedding;
  move(model.weights.frequencies);
  move(model.weights.local_frequencies);
  for (auto& block : model.lora.blocks) {
    for (LoraFactors& factors : block) {
      if (factors.a) move(factors.a);
      if (factors.b) move(factors.b);
    }
  }
  model.device = ctx.device();
}

void convert_weights(Context& ctx, Model& model, DType dtype, bool keep_unfit) {
  for (const WeightSpec& spec : weight_specs(model.config, model.weights)) {
    if (!spec.matrix) continue;
    if (spec.shape.last() % traits(dtype).block != 0) {
      if (keep_unfit) continue;
      fail("'{}' has rows of {}, which is not whole blocks of {} ({})", spec.hf, spec.shape.last(),
           name_of(dtype), traits(dtype).block);
    }
    try {
      *spec.tensor = convert_tensor(ctx, *spec.tensor, dtype);
    } catch (const UserError& error) {
      fail("'{}': {}", spec.hf, error.what());
    }
  }
  if (model.config.tied) model.weights.output = model.weights.embedding;
}

void hold_in_bf16(Context& ctx, Model& model) {
  const auto room_of = [](const WeightSpec& spec) { return (spec.shape.numel() + 127) / 128 * 128; };
  int64_t size = 0, begin = 0;
  for (const WeightSpec& spec : weight_specs(model.config, model.weights))
    size += spec.matrix ? room_of(spec) : 0;
  const Tensor all = Tensor::owned(ctx.device(), DType::kBF16, {size});
  for (const WeightSpec& spec : weight_specs(model.config, model.weights)) {
    if (!spec.matrix) continue;
    const Tensor values = convert_tensor(ctx, spec.tensor->to(ctx, Device::kCpu), DType::kBF16);
    Tensor place = all.rows(begin, spec.shape.numel()).reshape(spec.shape);
    copy_bytes(ctx, place.raw(), place.device(), values.raw(), Device::kCpu,
               static_cast<size_t>(values.nbytes()));
    *spec.tensor = place;
    begin += room_of(spec);
  }
  if (model.config.tied) model.weights.output = model.weights.embedding;
}

void arrange_weights(Context& ctx, Model& model) {
  if (ctx.device() != Device::kCpu) return;
  const MatmulKernels& kernels = matmul_kernels(ctx.isa());
  for (const WeightSpec& spec : weight_specs(model.config, model.weights)) {
    Tensor& weight = *spec.tensor;
    const bool multiplied = spec.matrix && (model.config.tied || &weight != &model.weights.embedding);
    if (multiplied && weight.dim(0) % 4 == 0 && takes_fours(kernels, weight.dtype()))
      weight = in_fours(ctx, weight);
  }
  if (model.config.tied) model.weights.output = model.weights.embedding;
}

}  // namespace fathom
