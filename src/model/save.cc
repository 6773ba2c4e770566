#include "model/save.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "io/atomic_folder.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "model/architecture.h"
#include "model/config_gguf.h"
#include "model/load.h"
#include "model/weights.h"
#include "ops/linear/matrix_rows.h"
#include "text/export_vocab.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPaddingKey = "tokenizer.ggml.padding_token_id";

// (n) f32. Norm weights as the target stores them: less `to` where the source stores them less `from`. Adding
// 1 to a small weight rounds it: Gemma's weights in GGUF (1 + w) have 2⁻²³ as their finest step, so w comes
// back to within 2⁻²⁴, and 1 + w exactly.
Tensor shifted(const Tensor& weight, float from, float to) {
  if (from == to) return weight;
  Tensor out = Tensor::owned(Device::kCpu, DType::kF32, weight.shape());
  for (int64_t i = 0; i < weight.numel(); ++i) out.data<float>()[i] = weight.data<float>()[i] + (from - to);
  return out;
}

// A vector in the matrices' type where that loses nothing (`offset` given back, for norms), else as it is: a
// folder that was bf16 throughout stays so.
Tensor narrowed(Context& ctx, const Tensor& vector, DType dtype, float offset) {
  if (dtype == DType::kF32) return vector;
  const Tensor narrow = convert_tensor(ctx, vector, dtype), back = convert_tensor(ctx, narrow, DType::kF32);
  for (int64_t i = 0; i < vector.numel(); ++i) {
    if (back.data<float>()[i] + offset != vector.data<float>()[i] + offset) return vector;
  }
  return narrow;
}

struct Target {
  bool gguf_names;
  RopeStyle style;
  float norm_offset;
};

// The weights as a file of that kind holds them.
std::vector<NamedTensor> named_weights(Context& ctx, const Model& model, const Target& target) {
  std::vector<NamedTensor> out;
  for (const WeightSpec& spec : weight_specs(model)) {
    Tensor tensor = in_rows(ctx, spec.tensor->to(ctx, Device::kCpu));
    if (spec.norm) tensor = shifted(tensor, model.config.norm_weight_offset, target.norm_offset);
    if (spec.rotated_heads > 0)
      tensor = reorder_rotary_rows(tensor, spec.rotated_heads, model.config.rope_style, target.style);
    out.push_back({target.gguf_names ? spec.gguf : spec.hf, tensor});
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
  const std::vector<float> from = inverse_frequencies(plain, config.head_dim),
                           to = inverse_frequencies(config.rope, config.head_dim);
  Tensor out = Tensor::owned(Device::kCpu, DType::kF32, {static_cast<int64_t>(from.size())});
  for (size_t i = 0; i < from.size(); ++i) out.data<float>()[i] = from[i] / to[i];
  return out;
}

// And back. Parameters that give just these divisors are right whatever they were; Llama's own come first.
RopeConfig llama3_from_divisors(const Model& model) {
  constexpr int64_t kPublishedContext = 8192, kMostContext = 1 << 24;
  const Tensor& divisors = model.weights.rope_factors;
  ModelConfig config = model.config;
  RopeConfig& rope = config.rope;
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = 1;
  for (int64_t i = 0; i < divisors.numel(); ++i)
    rope.factor = std::max(rope.factor, divisors.data<float>()[i]);
  const auto fits = [&](int64_t context) {
    rope.original_context = context;
    const Tensor derived = llama3_divisors(config);
    for (int64_t i = 0; i < divisors.numel(); ++i) {
      const float want = divisors.data<float>()[i], got = derived.data<float>()[i];
      if (!(std::abs(want - got) <= 1e-5f * want)) return false;
    }
    return true;
  };
  if (fits(kPublishedContext)) return rope;
  for (int64_t context = 16; context <= kMostContext; context *= 2) {
    if (fits(context)) return rope;
  }
  fail(
      "{}: rope_freqs.weight is not Llama 3's scaling (low_freq_factor 1, high_freq_factor 4), and "
      "config.json cannot say it",
      model.path);
}

// ggml's file type: what most of the matrices are.
int64_t gguf_file_type(const Model& model) {
  int64_t most[kDTypes] = {};
  for (const WeightSpec& spec : weight_specs(model)) {
    if (spec.matrix) most[static_cast<size_t>(spec.tensor->dtype())] += spec.tensor->numel();
  }
  const auto dtype = static_cast<DType>(std::max_element(most, most + kDTypes) - most);
  switch (dtype) {
    case DType::kF16:
      return 1;
    case DType::kQ4_0:
      return 2;
    case DType::kQ4_1:
      return 3;
    case DType::kQ8_0:
      return 7;
    case DType::kQ5_0:
      return 8;
    case DType::kQ5_1:
      return 9;
    case DType::kQ2_K:
      return 10;
    case DType::kQ3_K:
      return 12;
    case DType::kQ4_K:
      return 15;
    case DType::kQ5_K:
      return 17;
    case DType::kQ6_K:
      return 18;
    case DType::kBF16:
      return 32;
    default:
      return 0;
  }
}

bool is_there(const std::vector<GgufKeyValue>& metadata, const std::string& key) {
  return std::any_of(metadata.begin(), metadata.end(),
                     [&](const GgufKeyValue& pair) { return pair.key == key; });
}

std::string display_name(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return (normal.has_filename() ? normal.stem() : normal.parent_path().filename()).string();
}

nlohmann::ordered_json json_object(const std::string& text) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(text, nullptr, false);
  return json.is_object() ? json : nlohmann::ordered_json::object();
}

// The token that batches are filled up with. Nothing here computes with it: it only goes from file to file.
// -1: the model's own files name none.
int64_t padding_token(const Model& model) {
  int64_t id = -1;
  if (model.tokenizer && model.tokenizer_path != model.path) return id;  // another vocabulary
  if (model.gguf) {
    id = model.gguf->integer(kPaddingKey, -1);
  } else if (model.format == "hf") {
    const std::string own = (fs::path(model.path) / "config.json").string();
    const nlohmann::ordered_json json = json_object(read_text_file(own, 1 << 20));
    if (json.contains("pad_token_id") && json["pad_token_id"].is_number_integer())
      id = json["pad_token_id"].get<int64_t>();
  }
  return id < model.config.vocab ? id : -1;
}

// The tokens that begin and end a text. The vocabulary has one end; readers know two more under other names.
void add_token_ids(const Model& model, std::vector<GgufKeyValue>& metadata) {
  static constexpr const char* kEnds[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                          "tokenizer.ggml.eom_token_id"};
  std::vector<int32_t> ends;
  if (model.tokenizer && model.tokenizer->eos() >= 0) ends.push_back(model.tokenizer->eos());
  for (int32_t id : model.config.eos) {
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  }
  for (size_t i = 0; i < std::min(ends.size(), std::size(kEnds)); ++i) {
    if (!is_there(metadata, kEnds[i])) metadata.push_back({kEnds[i], {GgufType::kU32, int64_t{ends[i]}}});
  }
  const char* bos = "tokenizer.ggml.bos_token_id";
  if (model.config.bos >= 0 && !is_there(metadata, bos))
    metadata.push_back({bos, {GgufType::kU32, int64_t{model.config.bos}}});
  if (const int64_t id = padding_token(model); id >= 0 && !is_there(metadata, kPaddingKey))
    metadata.push_back({kPaddingKey, {GgufType::kU32, id}});
}

void add_vocabulary(const Model& model, std::vector<GgufKeyValue>& metadata) {
  if (model.tokenizer) {
    for (GgufKeyValue& pair : vocab_to_gguf(model.tokenizer_path, model.config.vocab))
      metadata.push_back(std::move(pair));
  } else {
    metadata.push_back({"tokenizer.ggml.model", {GgufType::kString, std::string("none")}});
  }
  add_token_ids(model, metadata);
}

std::vector<GgufKeyValue> gguf_metadata(const Model& model) {
  std::vector<GgufKeyValue> metadata;
  if (!model.gguf) {
    metadata = config_to_gguf(model.config);
    metadata.push_back({"general.name", {GgufType::kString, display_name(model.path)}});
  }
  metadata.push_back({"general.file_type", {GgufType::kU32, gguf_file_type(model)}});
  metadata.push_back({"general.quantization_version", {GgufType::kU32, int64_t{2}}});
  if (!model.adapted.empty()) metadata.push_back({kAdaptedKey, {GgufType::kString, model.adapted}});
  const bool own_vocabulary = model.gguf && (!model.tokenizer || model.tokenizer_path == model.path);
  if (model.gguf) {
    for (const GgufKeyValue& pair : model.gguf->metadata()) {
      const bool replaced = !own_vocabulary && pair.key.starts_with("tokenizer.");
      if (pair.key != "general.alignment" && !replaced && !is_there(metadata, pair.key))
        metadata.push_back(pair);
    }
  }
  if (!own_vocabulary) add_vocabulary(model, metadata);
  return metadata;
}

// "torch_dtype": the one type of all tensors, else f32, which holds them all.
const char* torch_type(const std::vector<NamedTensor>& tensors) {
  const DType first = tensors.front().tensor.dtype();
  const bool same = std::all_of(tensors.begin(), tensors.end(),
                                [&](const NamedTensor& t) { return t.tensor.dtype() == first; });
  return !same                   ? "float32"
         : first == DType::kF16  ? "float16"
         : first == DType::kBF16 ? "bfloat16"
                                 : "float32";
}

// config.json, and what it says nothing of in ModelConfig.
std::string config_json(const Model& model, const ModelConfig& config, const char* dtype) {
  nlohmann::ordered_json json = json_object(config_to_hf(config, dtype));
  if (const int64_t id = padding_token(model); id >= 0) json["pad_token_id"] = id;
  if (!model.adapted.empty()) json[kAdaptedKey] = model.adapted;  // a LoRA was merged into it
  return json.dump(2) + "\n";
}

// A vocabulary that was made from a GGUF file does not say which token it is filled up with.
void add_padding_token(const Model& model, const std::string& path) {
  const int64_t id = padding_token(model);
  if (!model.gguf || id < 0 || !fs::exists(path) || id >= model.tokenizer->vocab_size()) return;
  nlohmann::ordered_json json = json_object(read_text_file(path, 1 << 24));
  if (json.contains("pad_token")) return;
  json["pad_token"] = model.tokenizer->token(static_cast<int32_t>(id));
  write_file_atomically(path,
                        json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

// The source's own file where it has one, else what is known of it.
void write_generation_config(const Model& model, const std::string& path) {
  const fs::path own = fs::path(model.path) / "generation_config.json";
  if (model.format == "hf" && fs::exists(own))
    return write_file_atomically(path, read_text_file(own.string(), 1 << 20));
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (model.config.bos >= 0) json["bos_token_id"] = model.config.bos;
  if (!model.config.eos.empty()) json["eos_token_id"] = model.config.eos;
  if (const int64_t id = padding_token(model); id >= 0) json["pad_token_id"] = id;
  if (!json.empty()) write_file_atomically(path, json.dump(2) + "\n");
}

}  // namespace

SaveSummary save_gguf(Context& ctx, const Model& model, const std::string& path) {
  const std::vector<GgufKeyValue> metadata = gguf_metadata(model);
  std::vector<NamedTensor> tensors = named_weights(
      ctx, model, {.gguf_names = true, .style = gguf_rope_style(model.config), .norm_offset = 0});
  // llama.cpp looks for OLMo-2's output matrix even where it is the embedding.
  if (architecture_of(model.config).gguf_output && model.config.tied)
    tensors.push_back({"output.weight", tensors.front().tensor});
  if (model.config.rope.scaling == RopeScaling::kLlama3)
    tensors.push_back({"rope_freqs.weight", llama3_divisors(model.config)});
  if (model.weights.rope_factors) tensors.push_back({"rope_freqs.weight", model.weights.rope_factors});
  write_gguf(path, metadata, tensors);
  return {static_cast<int64_t>(tensors.size()), total_bytes(tensors)};
}

SaveSummary save_hf(Context& ctx, const Model& model, const std::string& dir, std::optional<DType> dtype) {
  if (dtype && is_block_format(*dtype))
    fail("a Hugging Face folder holds f32, f16 or bf16, not {}", name_of(*dtype));
  const float norm_offset = architecture_of(model.config).norm_offset;  // in such a folder
  ModelConfig config = model.config;
  if (model.weights.rope_factors) config.rope = llama3_from_divisors(model);
  std::vector<NamedTensor> tensors = named_weights(
      ctx, model, {.gguf_names = false, .style = RopeStyle::kHalves, .norm_offset = norm_offset});
  const std::vector<WeightSpec> specs = weight_specs(model);
  DType narrowest = DType::kF32;  // of the matrices, where they agree
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor& tensor = tensors[i].tensor;
    if (!specs[i].matrix) continue;
    tensor = convert_tensor(ctx, tensor,
                            dtype.value_or(is_block_format(tensor.dtype()) ? DType::kF32 : tensor.dtype()));
    narrowest = i == 0 || tensor.dtype() == narrowest ? tensor.dtype() : DType::kF32;
  }
  const float held =
      model.config.norm_weight_offset == 0 ? norm_offset : 0.0f;  // the source holds offset + w
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (specs[i].matrix) continue;
    tensors[i].tensor = narrowed(ctx, tensors[i].tensor, narrowest, specs[i].norm ? held : 0.0f);
  }
  AtomicFolder folder(dir);
  write_safetensors(folder.file("model.safetensors"), tensors);
  write_file_atomically(folder.file("config.json"), config_json(model, config, torch_type(tensors)));
  write_generation_config(model, folder.file("generation_config.json"));
  if (model.tokenizer) {
    vocab_to_hf(model.tokenizer_path, model.config.vocab, folder.path());
    add_padding_token(model, folder.file("tokenizer_config.json"));
  }
  folder.commit();
  return {static_cast<int64_t>(tensors.size()), total_bytes(tensors)};
}

}  // namespace fathom
