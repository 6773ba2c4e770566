#include "model/load_sources.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "io/gguf.h"
#include "io/llama2c.h"
#include "io/safetensors.h"
#include "model/config_gguf.h"
#include "model/generation_config.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

// The tokenizer the options name, or else the one at `own`.
void read_tokenizer(const LoadOptions& options, const std::string& own, Model& model) {
  model.tokenizer_path = options.tokenizer.empty() ? own : options.tokenizer;
  if (!model.tokenizer_path.empty())
    model.tokenizer = load_tokenizer(model.tokenizer_path, model.config.vocab);
}

bool has_tokenizer(const fs::path& folder) {
  return fs::exists(folder / "tokenizer.json") || fs::exists(folder / "tokenizer.model") ||
         fs::exists(folder / "vocab.json");
}

// Tensors that some checkpoints hold and no forward pass of ours reads.
bool is_harmless(const std::string& name, const Model& model) {
  return name.ends_with("rotary_emb.inv_freq") ||
         (model.config.tied && (name == "lm_head.weight" || name == "output.weight"));
}

}  // namespace

const Tensor* ModelSource::take(const std::string& name) {
  const auto it = tensors.find(name);
  if (it == tensors.end()) return nullptr;
  taken_[name] = true;
  return &it->second;
}

void ModelSource::refuse_rest(const Model& loaded) const {
  for (const auto& [name, tensor] : tensors) {
    if (taken_.count(name) || is_harmless(name, loaded)) continue;
    fail("{}: tensor '{}' {} belongs to nothing that the architecture '{}' computes here", loaded.path,
         printable(name), to_string(tensor.shape()), loaded.config.architecture);
  }
}

ModelSource open_hf_source(const std::string& dir, const LoadOptions& options) {
  const fs::path folder(dir);
  if (fs::exists(folder / "adapter_config.json") && !fs::exists(folder / "config.json")) {
    fail(
        "{}: this is an adapter (adapter_config.json), not a model: merge a LoRA into its base first, or "
        "load the base",
        printable(dir));
  }
  if (!fs::exists(folder / "config.json"))
    fail("{}: expected a model folder with config.json", printable(dir));
  const bool has_safetensors =
      fs::exists(folder / "model.safetensors") || fs::exists(folder / "model.safetensors.index.json");
  if (!has_safetensors && fs::exists(folder / "pytorch_model.bin")) {
    fail(
        "{}: holds pickle weights (pytorch_model.bin), which can run code when read: save it again with "
        "safe_serialization=True",
        printable(dir));
  }
  ModelSource source;
  Model& model = source.model;
  model.path = dir;
  model.format = "hf";
  const std::string config_path = (folder / "config.json").string();
  const std::string config_text = read_text_file(config_path, 16 << 20);
  model.config = config_from_hf(config_text, config_path);
  const auto mark =
      nlohmann::json::parse(config_text, nullptr, false, true).value(kAdaptedKey, nlohmann::json());
  if (mark.is_string()) model.adapted = mark.get<std::string>();
  std::vector<UnsupportedTensor>
      unsupported;  // masks and the like; a weight among them is reported as missing
  for (NamedTensor& named : read_safetensors_dir(dir, options.mode, &unsupported))
    source.tensors.emplace(named.name, named.tensor);
  for (const UnsupportedTensor& tensor : unsupported) source.unsupported.emplace(tensor.name, tensor.why);
  read_generation_config((folder / "generation_config.json").string(), model);
  read_tokenizer(options, has_tokenizer(folder) ? dir : "", model);
  return source;
}

ModelSource open_gguf_source(const std::string& path, const LoadOptions& options) {
  ModelSource source;
  Model& model = source.model;
  model.path = path;
  model.format = "gguf";
  model.gguf = GgufFile::open(path, options.mode);
  model.config = config_from_gguf(*model.gguf);
  model.adapted = model.gguf->string(kAdaptedKey, "");
  source.gguf_names = true;
  for (const GgufTensorInfo& info : model.gguf->tensors())
    source.tensors.emplace(info.name, model.gguf->tensor(info));
  if (const Tensor* factors = source.take("rope_freqs.weight")) {
    if (factors->dtype() != DType::kF32 || !(factors->shape() == Shape{model.config.head_dim / 2})) {
      fail("{}: tensor 'rope_freqs.weight' must be f32 {}, got {} {}", path,
           to_string({model.config.head_dim / 2}), name_of(factors->dtype()), to_string(factors->shape()));
    }
    model.weights.rope_factors = *factors;
  }
  const std::string vocabulary = model.gguf->string("tokenizer.ggml.model", "none");
  if (options.tokenizer.empty() && vocabulary != "none" && vocabulary != "no_vocab") {
    model.tokenizer = tokenizer_from_gguf(*model.gguf);
    model.tokenizer_path = path;
  } else {
    read_tokenizer(options, "", model);
  }
  return source;
}

ModelSource open_llama2c_source(const std::string& path, const LoadOptions& options) {
  const auto file = Llama2cFile::open(path, options.mode);
  const Llama2cHeader& header = file->header();
  ModelSource source;
  Model& model = source.model;
  model.path = path;
  model.format = "llama2.c";
  ModelConfig& config = model.config;
  config.architecture = "llama";
  config.width = header.dim;
  config.layers = header.n_layers;
  config.heads = header.n_heads;
  config.kv_heads = header.n_kv_heads;
  config.head_dim = header.head_dim();
  config.ffn_width = header.hidden_dim;
  config.vocab = header.vocab();
  config.context = header.seq_len;
  config.norm_eps = 1e-5f;
  config.tied = header.tied();
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  config.rope_style = RopeStyle::kPairs;
  config.windows.assign(static_cast<size_t>(config.layers), 0);
  config.bos = 1;
  config.eos = {1, 2};  // its stories are separated by BOS, which therefore ends one
  check_config(config, path + ": llama2.c");

  source.tensors.emplace("model.embed_tokens.weight", file->tensor("token_embedding"));
  source.tensors.emplace("model.norm.weight", file->tensor("final_norm"));
  if (!config.tied) source.tensors.emplace("lm_head.weight", file->tensor("output"));
  static constexpr std::pair<const char*, const char*> kLayerNames[] = {
      {"attention_norm", "input_layernorm"},
      {"wq", "self_attn.q_proj"},
      {"wk", "self_attn.k_proj"},
      {"wv", "self_attn.v_proj"},
      {"wo", "self_attn.o_proj"},
      {"ffn_norm", "post_attention_layernorm"},
      {"w1", "mlp.gate_proj"},
      {"w3", "mlp.up_proj"},
      {"w2", "mlp.down_proj"}};
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const auto& [theirs, hf] : kLayerNames) {
      const Tensor one = file->tensor(theirs).rows(layer, 1);
      const Shape shape = one.rank() == 3 ? Shape{one.dim(1), one.dim(2)} : Shape{one.dim(1)};
      source.tensors.emplace(fmt::format("model.layers.{}.{}.weight", layer, hf), one.reshape(shape));
    }
  }
  read_tokenizer(options, "", model);
  return source;
}

}  // namespace fathom
