#include "model/config_gguf.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/format.h"
#include "model/architecture.h"

namespace fathom {
namespace {

// The keys below "<architecture>." that we read or that change nothing here.
const std::set<std::string> kKnownKeys{"context_length",
                                       "embedding_length",
                                       "block_count",
                                       "feed_forward_length",
                                       "vocab_size",
                                       "attention.head_count",
                                       "attention.head_count_kv",
                                       "attention.key_length",
                                       "attention.value_length",
                                       "attention.layer_norm_rms_epsilon",
                                       "attention.sliding_window",
                                       "attention.sliding_window_pattern",
                                       "attention.scale",
                                       "attn_logit_softcapping",
                                       "final_logit_softcapping",
                                       "rope.dimension_count",
                                       "rope.freq_base",
                                       "rope.freq_base_swa",
                                       "rope.scaling.type",
                                       "rope.scaling.factor",
                                       "rope.scaling.original_context_length",
                                       "rope.scaling.attn_factor",
                                       "rope.scaling.finetuned",
                                       "rope.scaling.yarn_beta_fast",
                                       "rope.scaling.yarn_beta_slow",
                                       "rope.scale_linear",
                                       "expert_count",
                                       "expert_used_count",
                                       "tensor_data_layout",
                                       "attention.causal"};

class Reader {
 public:
  explicit Reader(const GgufFile& file) : file_(file), architecture_(file.string("general.architecture")) {}

  std::string key(const char* name) const { return architecture_ + "." + name; }
  const std::string& architecture() const { return architecture_; }

  // A whole number, or a list of equal ones (some files give one per layer).
  int64_t integer(const char* name, int64_t fallback) const {
    const GgufArray* list = find_array(name);
    if (!list) return file_.integer(key(name), fallback);
    const auto* values = std::get_if<std::vector<int64_t>>(&list->values);
    if (!values || values->empty()) fail("{}: gguf: '{}' must be whole numbers", file_.path(), key(name));
    for (int64_t value : *values) {
      if (value != values->front())
        fail("{}: gguf: '{}' differs between layers, which is not supported", file_.path(), key(name));
    }
    return values->front();
  }
  int64_t integer(const char* name) const {
    if (!file_.find(key(name))) fail("{}: gguf: the key '{}' is missing", file_.path(), key(name));
    return integer(name, 0);
  }
  float number(const char* name, double fallback) const {
    return static_cast<float>(file_.number(key(name), fallback));
  }
  std::string string(const char* name, const char* fallback) const {
    return file_.string(key(name), fallback);
  }
  bool has(const char* name) const { return file_.find(key(name)) != nullptr; }
  const GgufArray* find_array(const char* name) const {
    const GgufValue* value = file_.find(key(name));
    return value && value->type == GgufType::kArray ? std::get_if<GgufArray>(&value->value) : nullptr;
  }

  void refuse_unknown() const {
    const std::string prefix = architecture_ + ".";
    for (const GgufKeyValue& pair : file_.metadata()) {
      if (!pair.key.starts_with(prefix) || kKnownKeys.count(pair.key.substr(prefix.size()))) continue;
      fail("{}: gguf: the key '{}' is not known; it may change what the model computes", file_.path(),
           printable(pair.key));
    }
  }

 private:
  const GgufFile& file_;
  std::string architecture_;
};

std::string our_name(const GgufFile& file, const std::string& architecture) {
  const Architecture* row = find_gguf_architecture(architecture);
  if (!row)
    fail("{}: gguf: architecture '{}' is not supported ({})", file.path(), printable(architecture),
         gguf_architecture_names());
  return row->name;
}

// What llama.cpp takes for these architectures, whatever a file says.
constexpr float kBetaFast = 32, kBetaSlow = 1;

// YaRN's own factor of cos and sin; attn_factor multiplies it.
double yarn_magnitude(float factor) {
  return factor <= 1 ? 1.0 : 0.1 * std::log(static_cast<double>(factor)) + 1.0;
}

// Of q·k: what llama.cpp takes. The 27B Gemmas scale by the width per head, which no key says; their depth
// tells them apart.
float assumed_attention_scale(const ModelConfig& config) {
  const bool deep = config.layers == architecture_of(config).gguf_deep_layers;
  return 1.0f / std::sqrt(static_cast<float>(deep ? config.width / config.heads : config.head_dim));
}

void read_rope(const GgufFile& file, const Reader& keys, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.theta = keys.number("rope.freq_base", 10000);
  if (keys.has("rope.dimension_count") && keys.integer("rope.dimension_count") != config.head_dim) {
    fail("{}: gguf: '{}' is {}, and only rotating the whole head ({}) is supported", file.path(),
         keys.key("rope.dimension_count"), keys.integer("rope.dimension_count"), config.head_dim);
  }
  // As llama.cpp reads it: a factor alone means linear, and 0 is no factor.
  const bool has_factor = keys.has("rope.scaling.factor") || keys.has("rope.scale_linear");
  const std::string type = keys.string("rope.scaling.type", has_factor ? "linear" : "none");
  const float factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1));
  if (type != "none" && factor != 0) rope.factor = factor;
  if (type == "linear") {
    if (rope.factor != 1) rope.scaling = RopeScaling::kLinear;
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.original_context = keys.integer("rope.scaling.original_context_length", config.context);
    rope.beta_fast = keys.number("rope.scaling.yarn_beta_fast", kBetaFast);
    rope.beta_slow = keys.number("rope.scaling.yarn_beta_slow", kBetaSlow);
    rope.attention_factor =
        static_cast<float>(keys.number("rope.scaling.attn_factor", 1) * yarn_magnitude(rope.factor));
  } else if (type != "none") {
    fail("{}: gguf: RoPE scaling '{}' is not supported (none, linear, yarn)", file.path(), printable(type));
  }
  config.local_rope = rope;
  if (architecture_of(config).local_rope) {
    config.has_local_rope = true;
    config.local_rope = {.theta = keys.number("rope.freq_base_swa", 10000)};
  }
}

void read_windows(const GgufFile& file, const Reader& keys, ModelConfig& config) {
  config.windows.assign(static_cast<size_t>(config.layers), 0);
  const Architecture& a = architecture_of(config);
  const int64_t window = keys.integer("attention.sliding_window", a.gguf_window);
  if (window < 0 || window > INT32_MAX)
    fail("{}: gguf: the attention window cannot be {}", file.path(), window);
  if (window > 0 && a.windows != LayersWithWindow::kAllButEvery) {
    fail("{}: gguf: '{}' is {}: windows of this architecture are not supported", file.path(),
         keys.key("attention.sliding_window"), window);
  }
  const GgufArray* flags = keys.find_array("attention.sliding_window_pattern");
  const auto* slides = flags ? std::get_if<std::vector<int64_t>>(&flags->values) : nullptr;
  if (flags && (!slides || static_cast<int64_t>(slides->size()) != config.layers)) {
    fail("{}: gguf: '{}' must say yes or no for each of {} layers", file.path(),
         keys.key("attention.sliding_window_pattern"), config.layers);
  }
  const int64_t every =
      flags ? a.every : std::max<int64_t>(1, keys.integer("attention.sliding_window_pattern", a.every));
  for (int64_t i = 0; i < config.layers && window > 0; ++i) {
    const bool slide = slides ? (*slides)[static_cast<size_t>(i)] != 0 : (i + 1) % every != 0;
    config.windows[static_cast<size_t>(i)] = slide ? static_cast<int32_t>(window) : 0;
  }
}

void read_switches(const GgufFile& file, const Reader& keys, ModelConfig& config) {
  const Architecture& a = architecture_of(config);
  config.tied = !file.find_tensor("output.weight");
  config.qkv_bias = file.find_tensor("blk.0.attn_q.bias") != nullptr;
  config.attention_output_bias = file.find_tensor("blk.0.attn_output.bias") != nullptr;
  config.ffn_bias = file.find_tensor("blk.0.ffn_gate.bias") != nullptr;
  config.rope_style = a.gguf_rope_style;
  config.qk_norm = a.qk_norm;
  config.norm_placement = a.norm_placement;
  config.activation = a.activation;
  if (a.norms_as_the_file_says) {
    const bool sandwich = file.find_tensor("blk.0.post_attention_norm.weight") != nullptr;
    config.norm_placement = sandwich ? NormPlacement::kSandwich : NormPlacement::kBefore;
    config.embedding_norm = file.find_tensor("token_embd_norm.weight") != nullptr;
  }
  if (a.scales_embedding) config.embedding_scale = std::sqrt(static_cast<float>(config.width));
  if (a.soft_cap_keys) {
    config.attention_soft_cap = keys.number("attn_logit_softcapping", a.attention_soft_cap);
    config.logit_soft_cap = keys.number("final_logit_softcapping", a.logit_soft_cap);
  }
  config.attention_scale = keys.number("attention.scale", assumed_attention_scale(config));
  if (!file.boolean(keys.key("attention.causal"), true)) {
    fail("{}: gguf: '{}' is false: only models that look back are supported", file.path(),
         keys.key("attention.causal"));
  }
}

int32_t token_id(const GgufFile& file, const char* key) {
  const int64_t id = file.integer(key, -1);
  if (id < -1 || id > INT32_MAX) fail("{}: gguf: '{}' cannot be the token {}", file.path(), key, id);
  return static_cast<int32_t>(id);
}

GgufKeyValue integer_pair(const std::string& key, int64_t value) {
  return {key, {GgufType::kU32, value}};
}
GgufKeyValue number_pair(const std::string& key, float value) {
  return {key, {GgufType::kF32, static_cast<double>(value)}};
}
GgufKeyValue string_pair(const std::string& key, const std::string& value) {
  return {key, {GgufType::kString, value}};
}

}  // namespace

std::string gguf_architecture(const ModelConfig& config) {
  return architecture_of(config).gguf;
}

RopeStyle gguf_rope_style(const ModelConfig& config) {
  return architecture_of(config).gguf_rope_style;
}

ModelConfig config_from_gguf(const GgufFile& file) {
  const Reader keys(file);
  ModelConfig config;
  config.architecture = our_name(file, keys.architecture());
  if (keys.integer("expert_count", 0) > 0)
    fail("{}: gguf: mixtures of experts are not supported", file.path());
  config.width = keys.integer("embedding_length");
  config.layers = keys.integer("block_count");
  config.ffn_width = keys.integer("feed_forward_length");
  config.heads = keys.integer("attention.head_count");
  config.kv_heads = keys.integer("attention.head_count_kv", config.heads);
  config.context = keys.integer("context_length");
  if (config.heads < 1)
    fail("{}: gguf: the number of heads must be at least 1, got {}", file.path(), config.heads);
  config.head_dim = keys.integer("attention.key_length", config.width / config.heads);
  if (keys.integer("attention.value_length", config.head_dim) != config.head_dim) {
    fail("{}: gguf: keys and values of different sizes are not supported", file.path());
  }
  config.norm_eps = keys.number("attention.layer_norm_rms_epsilon", 1e-5);
  const GgufTensorInfo* embedding = file.find_tensor("token_embd.weight");
  if (!embedding || embedding->shape.rank() != 2)
    fail("{}: gguf: holds no model: there is no token_embd.weight matrix", file.path());
  config.vocab = embedding->shape[0];
  config.windows.assign(1, 0);
  if (config.layers >= 1 && config.layers <= 1024)
    config.windows.assign(static_cast<size_t>(config.layers), 0);
  config.local_rope = config.rope;
  config.attention_scale = 1;
  check_config(config, file.path() + ": gguf");  // sizes first: what follows divides by them
  read_switches(file, keys, config);
  read_windows(file, keys, config);
  read_rope(file, keys, config);
  config.bos = token_id(file, "tokenizer.ggml.bos_token_id");
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    const int32_t id = token_id(file, key);
    if (id >= 0 && std::find(config.eos.begin(), config.eos.end(), id) == config.eos.end())
      config.eos.push_back(id);
  }
  keys.refuse_unknown();
  check_config(config, file.path() + ": gguf");
  return config;
}

namespace {

// A GGUF file names an architecture and a few numbers; the rest is what llama.cpp computes for that name.
void refuse_what_gguf_cannot_say(const ModelConfig& config) {
  const Architecture& a = architecture_of(config);
  const auto cannot = [&](const std::string& what) {
    fail("GGUF cannot say {} for the architecture '{}': llama.cpp would compute something else", what,
         a.gguf);
  };
  const bool windows =
      std::any_of(config.windows.begin(), config.windows.end(), [](int32_t w) { return w > 0; });
  if (windows && a.windows != LayersWithWindow::kAllButEvery)
    cannot("that layers have attention windows (sliding_window)");
  if (!windows && a.gguf_window > 0) cannot("that no layer has an attention window");
  if (config.activation != a.activation) cannot("that the activation is another one");
  if (std::abs(config.attention_scale / assumed_attention_scale(config) - 1) > 1e-6f) {
    cannot(fmt::format("that q·k is scaled by {} and not {} (query_pre_attn_scalar)", config.attention_scale,
                       assumed_attention_scale(config)));
  }
  if (a.gguf_tied && !config.tied) cannot("that the output matrix is not the embedding");
  if (a.attention_soft_cap > 0 && !(config.attention_soft_cap > 0 && config.logit_soft_cap > 0))
    cannot("that there is no soft-cap");
  if (a.attention_soft_cap == 0 && config.attention_soft_cap > 0) cannot("that attention has a soft-cap");
  if (!a.soft_cap_keys && config.logit_soft_cap > 0) cannot("that logits have a soft-cap");
  if (!a.gguf_head_dim && config.heads * config.head_dim != config.width) {
    cannot(
        fmt::format("that {} heads of {} are not the width {}", config.heads, config.head_dim, config.width));
  }
  const RopeConfig& rope = config.rope;
  if (rope.scaling == RopeScaling::kLlama3 && !a.gguf_rope_factors)
    cannot("that RoPE is scaled as in Llama 3");
  if (rope.scaling == RopeScaling::kYarn && !rope.truncate) cannot("YaRN's \"truncate\": false");
  if (rope.scaling == RopeScaling::kYarn && (rope.beta_fast != kBetaFast || rope.beta_slow != kBetaSlow)) {
    cannot(fmt::format("YaRN's betas {} and {} (readers take {} and {})", rope.beta_fast, rope.beta_slow,
                       kBetaFast, kBetaSlow));
  }
  if (config.has_local_rope && config.local_rope.scaling != RopeScaling::kNone) {
    cannot("that the layers with a window scale their RoPE");
  }
}

void add_windows(const ModelConfig& config, const std::string& prefix, std::vector<GgufKeyValue>& out) {
  const int32_t window = *std::max_element(config.windows.begin(), config.windows.end());
  if (window == 0) return;
  out.push_back(integer_pair(prefix + "attention.sliding_window", window));
  // What readers take where the next key is not there.
  const auto every = static_cast<size_t>(architecture_of(config).every);
  bool usual = true;
  std::vector<int64_t> slides;
  for (size_t i = 0; i < config.windows.size(); ++i) {
    slides.push_back(config.windows[i] > 0);
    usual = usual && (config.windows[i] > 0) == ((i + 1) % every != 0);
  }
  if (!usual) {
    out.push_back({prefix + "attention.sliding_window_pattern",
                   {GgufType::kArray, GgufArray{GgufType::kBool, slides}}});
  }
}

void add_rope(const ModelConfig& config, const std::string& prefix, std::vector<GgufKeyValue>& out) {
  const RopeConfig& rope = config.rope;
  out.push_back(integer_pair(prefix + "rope.dimension_count", config.head_dim));
  out.push_back(number_pair(prefix + "rope.freq_base", rope.theta));
  if (config.has_local_rope)
    out.push_back(number_pair(prefix + "rope.freq_base_swa", config.local_rope.theta));
  const bool yarn = rope.scaling == RopeScaling::kYarn;
  if (!yarn && rope.scaling != RopeScaling::kLinear) return;  // Llama 3's scaling is a tensor
  out.push_back(string_pair(prefix + "rope.scaling.type", yarn ? "yarn" : "linear"));
  out.push_back(number_pair(prefix + "rope.scaling.factor", rope.factor));
  if (!yarn) return;
  out.push_back(integer_pair(prefix + "rope.scaling.original_context_length", rope.original_context));
  const auto share = static_cast<float>(rope.attention_factor / yarn_magnitude(rope.factor));
  if (std::abs(share - 1) > 1e-6f) out.push_back(number_pair(prefix + "rope.scaling.attn_factor", share));
}

}  // namespace

std::vector<GgufKeyValue> config_to_gguf(const ModelConfig& config) {
  refuse_what_gguf_cannot_say(config);
  const std::string a = gguf_architecture(config), prefix = a + ".";
  std::vector<GgufKeyValue> out{
      string_pair("general.architecture", a),
      string_pair("general.type", "model"),
      integer_pair(prefix + "context_length", config.context),
      integer_pair(prefix + "embedding_length", config.width),
      integer_pair(prefix + "block_count", config.layers),
      integer_pair(prefix + "feed_forward_length", config.ffn_width),
      integer_pair(prefix + "vocab_size", config.vocab),
      integer_pair(prefix + "attention.head_count", config.heads),
      integer_pair(prefix + "attention.head_count_kv", config.kv_heads),
      integer_pair(prefix + "attention.key_length", config.head_dim),
      integer_pair(prefix + "attention.value_length", config.head_dim),
      number_pair(prefix + "attention.layer_norm_rms_epsilon", config.norm_eps),
  };
  add_rope(config, prefix, out);
  add_windows(config, prefix, out);
  if (config.attention_soft_cap > 0)
    out.push_back(number_pair(prefix + "attn_logit_softcapping", config.attention_soft_cap));
  if (config.logit_soft_cap > 0)
    out.push_back(number_pair(prefix + "final_logit_softcapping", config.logit_soft_cap));
  return out;
}

}  // namespace fathom
