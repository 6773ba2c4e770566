// Hugging Face's config.json, read.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/format.h"
#include "model/architecture.h"
#include "model/config.h"
#include "text/tokenizer_json.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

// Reads keys and remembers which were read; what is left at the end and not known to be harmless is refused
// by name.
class ConfigKeys {
 public:
  ConfigKeys(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) fail("{}: expected a JSON object, got {}", where_, object_.type_name());
  }

  const Json* find(const char* key) {
    seen_.insert(key);
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  int64_t integer(const char* key) {
    const Json* value = find(key);
    if (!value) fail("{}: the key '{}' is missing", where_, key);
    return integer_of(key, *value);
  }
  int64_t integer(const char* key, int64_t fallback) {
    const Json* value = find(key);
    return value ? integer_of(key, *value) : fallback;
  }
  // What "key": null says, where that is not what leaving the key out says.
  int64_t integer(const char* key, int64_t fallback, int64_t if_null) {
    return integer(key, object_.contains(key) ? if_null : fallback);
  }
  // The id of a token; −1 (some files write it for "none") where there is none.
  int32_t token(const char* key, const Json& value) const {
    const int64_t id = integer_of(key, value);
    if (id < -1 || id > INT32_MAX) fail("{}: '{}' cannot be the token {}", where_, key, id);
    return static_cast<int32_t>(id);
  }
  float number(const char* key, double fallback) {
    const Json* value = find(key);
    if (value && !value->is_number())
      fail("{}: '{}' must be a number, got {}", where_, key, printable(value->dump()));
    return static_cast<float>(value ? value->get<double>() : fallback);
  }
  float number(const char* key, double fallback, double if_null) {
    return number(key, object_.contains(key) ? if_null : fallback);
  }
  bool boolean(const char* key, bool fallback) {
    const Json* value = find(key);
    if (value && !value->is_boolean())
      fail("{}: '{}' must be true or false, got {}", where_, key, printable(value->dump()));
    return value ? value->get<bool>() : fallback;
  }
  std::string string(const char* key, const std::string& fallback) {
    const Json* value = find(key);
    if (value && !value->is_string())
      fail("{}: '{}' must be a string, got {}", where_, key, printable(value->dump()));
    return value ? value->get<std::string>() : fallback;
  }
  // The key may stand there only with this value (or null): anything else changes the model in a way we do
  // not compute.
  void only(const char* key, const Json& allowed) {
    const Json* value = find(key);
    if (value && *value != allowed) {
      fail("{}: '{}': {} is not supported (only {})", where_, key, printable(value->dump()), allowed.dump());
    }
  }
  void ignore(std::initializer_list<const char*> keys) { seen_.insert(keys.begin(), keys.end()); }

  void refuse_rest() const {
    for (const auto& [key, value] : object_.items()) {
      if (seen_.count(key) || key.starts_with("_") || value.is_null()) continue;
      fail("{}: the key '{}' is not known for this architecture; it may change what the model computes",
           where_, printable(key));
    }
  }
  const std::string& where() const { return where_; }

 private:
  int64_t integer_of(const char* key, const Json& value) const {
    if (!value.is_number_integer())
      fail("{}: '{}' must be a whole number, got {}", where_, key, printable(value.dump()));
    return value.get<int64_t>();
  }

  const Json& object_;
  std::string where_;
  std::set<std::string> seen_;
};

// Keys that say how a model was trained, named or run elsewhere: nothing that we compute depends on them.
void ignore_harmless(ConfigKeys& keys) {
  keys.ignore({"architectures",
               "model_type",
               "torch_dtype",
               "dtype",
               "transformers_version",
               "use_cache",
               "fathom.adapted",
               "initializer_range",
               "pad_token_id",
               "attention_dropout",
               "hidden_dropout",
               "dropout",
               "classifier_dropout",
               "pretraining_tp",
               "return_dict",
               "output_hidden_states",
               "output_attentions",
               "chunk_size_feed_forward",
               "is_encoder_decoder",
               "id2label",
               "label2id",
               "problem_type",
               "name_or_path",
               "cache_implementation",
               "unsloth_version",
               "unsloth_fixed",
               "transformers.js_config",
               "is_llama_config",
               "tie_encoder_decoder",
               "bad_words_ids",
               "begin_suppress_tokens",
               "tokenizer_class",
               "task_specific_params",
               "temperature",
               "top_k",
               "top_p",
               "do_sample",
               "max_length",
               "min_length",
               "repetition_penalty",
               "finetuning_task",
               "prefix",
               "is_decoder",
               "tf_legacy_loss",
               "typical_p",
               "use_bfloat16",
               "output_scores",
               "return_dict_in_generate",
               "num_beams",
               "num_beam_groups",
               "num_return_sequences",
               "no_repeat_ngram_size",
               "length_penalty",
               "early_stopping",
               "diversity_penalty",
               "encoder_no_repeat_ngram_size",
               "exponential_decay_length_penalty",
               "forced_bos_token_id",
               "forced_eos_token_id",
               "remove_invalid_values",
               "sep_token_id",
               "decoder_start_token_id",
               "suppress_tokens",
               "torchscript",
               "pruned_heads",
               "cross_attention_hidden_size",
               "add_cross_attention"});
}

RopeScaling scaling_of(const std::string& name, const std::string& where) {
  if (name == "default") return RopeScaling::kNone;
  if (name == "linear") return RopeScaling::kLinear;
  if (name == "llama3") return RopeScaling::kLlama3;
  if (name == "yarn") return RopeScaling::kYarn;
  fail("{}: RoPE scaling '{}' is not supported (default, linear, llama3, yarn)", where, printable(name));
}

float yarn_attention_factor(ConfigKeys& keys, float factor) {
  const auto magnitude = [&](double m) {
    return factor <= 1 ? 1.0 : 0.1 * m * std::log(static_cast<double>(factor)) + 1.0;
  };
  const float m = keys.number("mscale", 0), m_all = keys.number("mscale_all_dim", 0);
  const double derived = m != 0 && m_all != 0 ? magnitude(m) / magnitude(m_all) : magnitude(1);
  return keys.number("attention_factor", derived);
}

// One RoPE description: transformers 5's rope_parameters, or transformers 4's rope_scaling with the base
// beside it.
RopeConfig rope_from(const Json& object, float theta, int64_t context, const std::string& where) {
  ConfigKeys keys(object, where);
  RopeConfig rope;
  rope.theta = keys.number("rope_theta", theta);
  const std::string older_name = keys.string("type", "default");
  rope.scaling = scaling_of(keys.string("rope_type", older_name), where);
  keys.only("partial_rotary_factor", 1.0);
  if (rope.scaling == RopeScaling::kNone) {
    keys.ignore({"factor", "original_max_position_embeddings", "finetuned"});
    keys.refuse_rest();
    return rope;
  }
  rope.original_context =
      keys.integer("original_max_position_embeddings", rope.scaling == RopeScaling::kYarn ? context : 0);
  const bool derives = rope.scaling == RopeScaling::kYarn && rope.original_context > 0;
  rope.factor = keys.number(
      "factor", derives ? static_cast<double>(context) / static_cast<double>(rope.original_context) : 0);
  if (rope.scaling == RopeScaling::kLlama3) {
    rope.low_frequency_factor = keys.number("low_freq_factor", 0);
    rope.high_frequency_factor = keys.number("high_freq_factor", 0);
    if (!(rope.low_frequency_factor > 0 && rope.high_frequency_factor > rope.low_frequency_factor)) {
      fail("{}: expected 0 < low_freq_factor < high_freq_factor, got {} and {}", where,
           rope.low_frequency_factor, rope.high_frequency_factor);
    }
  }
  keys.ignore({"finetuned"});
  if (rope.scaling == RopeScaling::kYarn) {
    rope.beta_fast = keys.number("beta_fast", 32);
    rope.beta_slow = keys.number("beta_slow", 1);
    rope.truncate = keys.boolean("truncate", true);
    rope.attention_factor = yarn_attention_factor(keys, rope.factor);
  }
  keys.refuse_rest();
  return rope;
}

void read_rope(ConfigKeys& keys, ModelConfig& config) {
  const Architecture& a = architecture_of(config);
  const float theta = keys.number("rope_theta", a.rope_theta);
  const float local_theta = keys.number("rope_local_base_freq", 1e4);
  keys.only("partial_rotary_factor", 1.0);
  const Json* parameters = keys.find("rope_parameters");
  const Json* scaling = keys.find("rope_scaling");
  const std::string where = keys.where() + (parameters ? ": rope_parameters" : ": rope_scaling");
  const Json* source = parameters ? parameters : scaling;
  config.has_local_rope = a.local_rope;
  config.rope.theta = theta;
  config.local_rope.theta = config.has_local_rope ? local_theta : theta;
  if (!source) return;
  if (source->is_object() && source->contains("full_attention")) {  // one set per kind of layer
    config.rope = rope_from(source->at("full_attention"), theta, config.context, where);
    config.local_rope = config.rope;
    if (source->contains("sliding_attention")) {
      config.local_rope = rope_from(source->at("sliding_attention"), local_theta, config.context, where);
      config.has_local_rope = true;
    }
    return;
  }
  config.rope = rope_from(*source, theta, config.context, where);
  if (!config.has_local_rope) config.local_rope = config.rope;
}

// Which layers look back only `window` tokens: layer_types where the file has it, else the architecture's own
// pattern.
void read_windows(ConfigKeys& keys, ModelConfig& config) {
  config.windows.assign(static_cast<size_t>(std::clamp<int64_t>(config.layers, 0, 1 << 16)), 0);
  const Architecture& a = architecture_of(config);
  const bool from_one_on = a.windows == LayersWithWindow::kFromOneOn;
  // What transformers takes where the key is left out; null switches windows off.
  const int64_t usual = a.windows == LayersWithWindow::kNone ? 0 : 4096;
  const int64_t window = keys.integer("sliding_window", usual, 0);
  if (window < 0 || window > INT32_MAX)
    fail("{}: 'sliding_window' must not be negative or huge, got {}", keys.where(), window);
  const int64_t every = std::max<int64_t>(1, keys.integer("sliding_window_pattern", a.every));
  const bool used = keys.boolean("use_sliding_window", !from_one_on);
  const int64_t first = from_one_on ? keys.integer("max_window_layers", 28) : 0;
  const Json* types = keys.find("layer_types");
  if (types && (!types->is_array() || types->size() != config.windows.size())) {
    fail("{}: 'layer_types' must list {} layers", keys.where(), config.layers);
  }
  if (window == 0 || !used) return;
  for (size_t i = 0; i < config.windows.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    bool slides = a.windows == LayersWithWindow::kAll || (from_one_on && layer >= first) ||
                  (a.windows == LayersWithWindow::kAllButEvery && (layer + 1) % every != 0);
    if (types) {
      const Json& type = (*types)[i];
      if (type != "sliding_attention" && type != "full_attention") {
        fail("{}: layer type {} is not supported (full_attention, sliding_attention)", keys.where(),
             printable(type.dump()));
      }
      slides = type == "sliding_attention";
    }
    config.windows[i] = slides ? static_cast<int32_t>(window) : 0;
  }
}

Activation activation_of(ConfigKeys& keys, const Architecture& a) {
  // Gemma has both keys and transformers reads hidden_activation alone: the other is "gelu" in old files and
  // means the tanh form.
  const std::string key = a.activation_key;
  if (key != "hidden_act") keys.ignore({"hidden_act"});
  const bool silu = a.activation == Activation::kSilu;
  const std::string name = keys.string(key.c_str(), silu ? "silu" : "gelu_pytorch_tanh");
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  fail("{}: activation '{}' is not supported (silu, gelu_pytorch_tanh)", keys.where(), printable(name));
}

void read_switches(ConfigKeys& keys, ModelConfig& config) {
  const Architecture& a = architecture_of(config);
  config.activation = activation_of(keys, a);
  config.qk_norm = a.qk_norm;
  config.norm_placement = a.norm_placement;
  config.norm_weight_offset = a.norm_offset;
  if (a.biases == Biases::kAsTheFileSays) {
    const bool bias = keys.boolean("attention_bias", false);
    config.qkv_bias = config.attention_output_bias = bias;
    config.ffn_bias = keys.boolean("mlp_bias", false);
  } else if (a.biases == Biases::kQkv) {
    config.qkv_bias = true;
  } else {
    keys.only("attention_bias", false);
    keys.only("mlp_bias", false);
  }
  keys.only("rope_interleaved", false);
  if (a.off_key) keys.only(a.off_key, a.off_is_null ? Json(nullptr) : Json(false));
  if (a.norms_as_the_file_says) {
    const std::string placement = keys.string("block_norm", "sandwich");
    if (placement != "sandwich" && placement != "before") {
      fail("{}: 'block_norm' must be sandwich or before, got '{}'", keys.where(), printable(placement));
    }
    config.norm_placement = placement == "sandwich" ? NormPlacement::kSandwich : NormPlacement::kBefore;
    config.embedding_norm = keys.boolean("embedding_norm", true);
  }
  // transformers rounds the scale to the weights' dtype; in f32 it is the square root itself.
  if (a.scales_embedding) config.embedding_scale = std::sqrt(static_cast<float>(config.width));
  if (a.scalar_key) config.attention_scale = 1.0f / std::sqrt(keys.number("query_pre_attn_scalar", 256));
  if (a.soft_cap_keys) {
    config.attention_soft_cap = keys.number("attn_logit_softcapping", a.attention_soft_cap, 0);
    config.logit_soft_cap = keys.number("final_logit_softcapping", a.logit_soft_cap, 0);
  }
}

void read_tokens(ConfigKeys& keys, ModelConfig& config) {
  const Json *bos = keys.find("bos_token_id"), *eos = keys.find("eos_token_id");
  if (bos) config.bos = keys.token("bos_token_id", *bos);
  if (!eos) return;
  for (const Json& id : eos->is_array() ? *eos : Json::array({*eos})) {
    if (const int32_t token = keys.token("eos_token_id", id); token >= 0) config.eos.push_back(token);
  }
}

std::string read_architecture(ConfigKeys& keys) {
  const std::string name = keys.string("model_type", "");
  if (find_architecture(name)) return name;
  if (keys.find("text_config")) {
    fail(
        "{}: architecture '{}' wraps a text model in vision or audio parts, which are not supported: save "
        "its text model alone (for "
        "gemma3: transformers' Gemma3ForCausalLM, model_type gemma3_text)",
        keys.where(), printable(name));
  }
  fail("{}: architecture '{}' is not supported ({})", keys.where(), printable(name), architecture_names());
}

// Llama counted one key/value head for each head before it had fewer; the other architectures always say.
int64_t kv_heads_of(ConfigKeys& keys, const ModelConfig& config) {
  const bool needed = architecture_of(config).kv_heads_needed;
  return needed ? keys.integer("num_key_value_heads") : keys.integer("num_key_value_heads", config.heads);
}

}  // namespace

ModelConfig config_from_hf(const std::string& json_text, const std::string& where) {
  const std::unique_ptr<Json> json = read_json_tree(json_text, where);
  ConfigKeys keys(*json, where);
  ModelConfig config;
  config.architecture = read_architecture(keys);
  const Architecture& a = architecture_of(config);
  if (const Json* quantised = keys.find("quantization_config")) {
    const std::string how =
        ConfigKeys(*quantised, where + ": quantization_config").string("quant_method", "?");
    fail("{}: weights quantised by '{}' are not supported: use the original checkpoint or a GGUF file", where,
         printable(how));
  }
  config.width = keys.integer("hidden_size");
  config.layers = keys.integer("num_hidden_layers");
  config.heads = keys.integer("num_attention_heads");
  config.kv_heads = kv_heads_of(keys, config);
  if (config.heads < 1) fail("{}: 'num_attention_heads' must be at least 1, got {}", where, config.heads);
  config.head_dim = keys.integer("head_dim", a.head_dim > 0 ? a.head_dim : config.width / config.heads);
  config.ffn_width = keys.integer("intermediate_size");
  config.vocab = keys.integer("vocab_size");
  config.context = keys.integer("max_position_embeddings", 2048);
  config.norm_eps = keys.number("rms_norm_eps", a.norm_eps);
  config.tied = keys.boolean("tie_word_embeddings", a.tied);
  if (config.head_dim > 0) config.attention_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  read_switches(keys, config);
  read_windows(keys, config);
  read_rope(keys, config);
  read_tokens(keys, config);
  ignore_harmless(keys);
  keys.refuse_rest();
  check_config(config, where);
  return config;
}

}  // namespace fathom
