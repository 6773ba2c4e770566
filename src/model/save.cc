#include "model/save.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/format.h"
#include "io/atomic_file.h"
#include "io/atomic_folder.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "model/config_gguf.h"
#include "model/load.h"
#include "model/weights.h"
#include "text/export_vocab.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

// Norm weights as the target stores them: less `to` where the source stores them less `from`.
Tensor shifted(const Tensor& weight, float from, float to) {
  if (from == to) return weight;
  Tensor out = Tensor::owned(Device::kCpu, DType::kF32, weight.shape());
  for (int64_t i = 0; i < weight.numel(); ++i) out.data<float>()[i] = weight.data<float>()[i] + (from - to);
  return out;
}

// The weights as a file with that RoPE style and norm offset holds them.
std::vector<NamedTensor> named_weights(const Model& model, bool gguf_names, RopeStyle style, float norm_offset) {
  std::vector<NamedTensor> out;
  for (const WeightSpec& spec : weight_specs(model)) {
    Tensor tensor = *spec.tensor;
    if (spec.norm) tensor = shifted(tensor, model.config.norm_weight_offset, norm_offset);
    if (spec.rotated_heads > 0) tensor = reorder_rotary_rows(tensor, spec.rotated_heads, model.config.rope_style, style);
    out.push_back({gguf_names ? spec.gguf : spec.hf, tensor});
  }
  return out;
}

int64_t total_bytes(const std::vector<NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& named : tensors) bytes += named.tensor.nbytes();
  return bytes;
}

// Llama 3.1's scaling has no metadata in GGUF: it is a tensor of divisors.
Tensor llama3_divisors(const ModelConfig& config) {
  RopeConfig plain = config.rope;
  plain.scaling = RopeScaling::kNone;
  const std::vector<float> from = inverse_frequencies(plain, config.head_dim), to = inverse_frequencies(config.rope, config.head_dim);
  Tensor out = Tensor::owned(Device::kCpu, DType::kF32, {static_cast<int64_t>(from.size())});
  for (size_t i = 0; i < from.size(); ++i) out.data<float>()[i] = from[i] / to[i];
  return out;
}

// And back: the published parameters, if they give just these divisors.
RopeConfig llama3_from_divisors(const Model& model) {
  const Tensor& divisors = model.weights.rope_factors;
  RopeConfig rope = model.config.rope;
  rope.scaling = RopeScaling::kLlama3;
  rope.original_context = 8192;
  rope.factor = 1;
  for (int64_t i = 0; i < divisors.numel(); ++i) rope.factor = std::max(rope.factor, divisors.data<float>()[i]);
  ModelConfig config = model.config;
  config.rope = rope;
  const Tensor derived = llama3_divisors(config);
  for (int64_t i = 0; i < divisors.numel(); ++i) {
    const float want = divisors.data<float>()[i], got = derived.data<float>()[i];
    if (std::abs(want - got) > 1e-3f * want) {
      fail("{}: rope_freqs.weight is not Llama 3's scaling with its published parameters, and config.json has no other way to say it",
           model.path);
    }
  }
  return rope;
}

// ggml's file type: what most of the matrices are.
int64_t gguf_file_type(const Model& model) {
  int64_t most[kDTypes] = {};
  for (const WeightSpec& spec : weight_specs(model)) {
    if (spec.matrix) most[static_cast<size_t>(spec.tensor->dtype())] += spec.tensor->numel();
  }
  const auto dtype = static_cast<DType>(std::max_element(most, most + kDTypes) - most);
  switch (dtype) {
    case DType::kF16: return 1;
    case DType::kQ4_0: return 2;
    case DType::kQ4_1: return 3;
    case DType::kQ8_0: return 7;
    case DType::kQ5_0: return 8;
    case DType::kQ5_1: return 9;
    case DType::kQ2_K: return 10;
    case DType::kQ3_K: return 12;
    case DType::kQ4_K: return 15;
    case DType::kQ5_K: return 17;
    case DType::kQ6_K: return 18;
    case DType::kBF16: return 32;
    default: return 0;
  }
}

bool replaces(const std::vector<GgufKeyValue>& metadata, const std::string& key) {
  return std::any_of(metadata.begin(), metadata.end(), [&](const GgufKeyValue& pair) { return pair.key == key; });
}

void check_windows_fit_gguf(const ModelConfig& config) {
  const bool some = std::any_of(config.windows.begin(), config.windows.end(), [](int32_t w) { return w > 0; });
  const bool patterned = config.architecture == "gemma2" || config.architecture == "gemma3_text";
  if (some && !patterned) {
    fail("GGUF cannot say that the architecture '{}' has attention windows: the file would compute something else",
         config.architecture);
  }
}

}  // namespace

SaveSummary save_gguf(Context& ctx, const Model& model, const std::string& path) {
  static_cast<void>(ctx);
  const bool llama3 = model.config.rope.scaling == RopeScaling::kLlama3;
  if (!model.gguf) check_windows_fit_gguf(model.config);
  std::vector<NamedTensor> tensors = named_weights(model, true, gguf_rope_style(model.config), 0.0f);
  if (llama3) tensors.push_back({"rope_freqs.weight", llama3_divisors(model.config)});
  if (model.weights.rope_factors) tensors.push_back({"rope_freqs.weight", model.weights.rope_factors});

  std::vector<GgufKeyValue> metadata;
  if (!model.gguf) {
    metadata = config_to_gguf(model.config);
    const std::string name = fs::path(model.path).lexically_normal().filename().string();
    metadata.push_back({"general.name", {GgufType::kString, name}});
  }
  metadata.push_back({"general.file_type", {GgufType::kU32, gguf_file_type(model)}});
  metadata.push_back({"general.quantization_version", {GgufType::kU32, int64_t{2}}});
  if (model.gguf) {
    for (const GgufKeyValue& pair : model.gguf->metadata()) {
      if (pair.key != "general.alignment" && !replaces(metadata, pair.key)) metadata.push_back(pair);
    }
  } else if (model.tokenizer) {
    for (GgufKeyValue& pair : vocab_to_gguf(model.tokenizer_path, model.config.vocab)) metadata.push_back(std::move(pair));
  }
  write_gguf(path, metadata, tensors);
  return {static_cast<int64_t>(tensors.size()), total_bytes(tensors)};
}

SaveSummary save_hf(Context& ctx, const Model& model, const std::string& dir, std::optional<DType> dtype) {
  if (dtype && is_block_format(*dtype)) fail("a Hugging Face folder holds f32, f16 or bf16, not {}", name_of(*dtype));
  Model out = model;
  for (const WeightSpec& spec : weight_specs(out.config, out.weights)) {
    const DType held = spec.tensor->dtype();
    const DType wanted = dtype.value_or(is_block_format(held) ? DType::kF32 : held);
    if (spec.matrix) *spec.tensor = convert_tensor(ctx, *spec.tensor, wanted);
  }
  if (out.weights.rope_factors) out.config.rope = llama3_from_divisors(model);
  const float offset = model.config.architecture.starts_with("gemma") ? 1.0f : 0.0f;
  const std::vector<NamedTensor> tensors = named_weights(out, false, RopeStyle::kHalves, offset);

  AtomicFolder folder(dir);
  write_safetensors(folder.file("model.safetensors"), tensors);
  write_file_atomically(folder.file("config.json"), config_to_hf(out.config));
  if (model.tokenizer) vocab_to_hf(model.tokenizer_path, model.config.vocab, folder.path());
  folder.commit();
  return {static_cast<int64_t>(tensors.size()), total_bytes(tensors)};
}

}  // namespace fathom
