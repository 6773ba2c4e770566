// Hugging Face's config.json, written in the spelling of transformers 4, which transformers 5 reads too.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "model/architecture.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The shortest decimal that is this float: 1e-05, where its double would be 9.99999974737875e-06.
double plain(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

OrderedJson or_null(float value) {
  return value > 0 ? OrderedJson(plain(value)) : OrderedJson(nullptr);
}

OrderedJson rope_to_json(const RopeConfig& rope) {
  switch (rope.scaling) {
    case RopeScaling::kNone:
      return nullptr;
    case RopeScaling::kLinear:
      return {{"rope_type", "linear"}, {"factor", plain(rope.factor)}};
    case RopeScaling::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", plain(rope.factor)},
              {"low_freq_factor", plain(rope.low_frequency_factor)},
              {"high_freq_factor", plain(rope.high_frequency_factor)},
              {"original_max_position_embeddings", rope.original_context}};
    case RopeScaling::kYarn:
      return {{"rope_type", "yarn"},
              {"factor", plain(rope.factor)},
              {"beta_fast", plain(rope.beta_fast)},
              {"beta_slow", plain(rope.beta_slow)},
              {"attention_factor", plain(rope.attention_factor)},
              {"truncate", rope.truncate},
              {"original_max_position_embeddings", rope.original_context}};
  }
  return nullptr;
}

// 256 for a scale of 1/16: the whole number that gives just this scale where there is one.
OrderedJson pre_attention_scalar(float scale) {
  const double scalar = 1.0 / (static_cast<double>(scale) * static_cast<double>(scale));
  const auto whole = static_cast<int64_t>(std::llround(scalar));
  return 1.0f / std::sqrt(static_cast<float>(whole)) == scale ? OrderedJson(whole) : OrderedJson(scalar);
}

void add_windows(const ModelConfig& config, OrderedJson& json) {
  const LayersWithWindow layers = architecture_of(config).windows;
  const bool from_one_on = layers == LayersWithWindow::kFromOneOn;
  int32_t window = 0, first = -1;
  OrderedJson types = OrderedJson::array();
  for (size_t i = 0; i < config.windows.size(); ++i) {
    if (config.windows[i] > 0 && first < 0) first = static_cast<int32_t>(i);
    window = std::max(window, config.windows[i]);
    types.push_back(config.windows[i] > 0 ? "sliding_attention" : "full_attention");
  }
  if (layers == LayersWithWindow::kAll || window > 0)
    json["sliding_window"] = window > 0 ? OrderedJson(window) : OrderedJson(nullptr);
  if (layers == LayersWithWindow::kAllButEvery || (from_one_on && window > 0)) json["layer_types"] = types;
  if (from_one_on && window > 0) {
    json["use_sliding_window"] = true;
    json["max_window_layers"] = first;
  }
}

void add_switches(const ModelConfig& config, OrderedJson& json) {
  const Architecture& a = architecture_of(config);
  json[a.activation_key] = config.activation == Activation::kSilu ? "silu" : "gelu_pytorch_tanh";
  if (a.biases == Biases::kAsTheFileSays) {
    json["attention_bias"] = config.qkv_bias;
    json["mlp_bias"] = config.ffn_bias;
  }
  if (a.norms_as_the_file_says) {
    json["block_norm"] = config.norm_placement == NormPlacement::kSandwich ? "sandwich" : "before";
    json["embedding_norm"] = config.embedding_norm;
  }
  if (a.scalar_key) json["query_pre_attn_scalar"] = pre_attention_scalar(config.attention_scale);
  if (a.soft_cap_keys) {
    json["attn_logit_softcapping"] = or_null(config.attention_soft_cap);
    json["final_logit_softcapping"] = or_null(config.logit_soft_cap);
  }
}

}  // namespace

std::string config_to_hf(const ModelConfig& config, std::string_view dtype) {
  const Architecture& a = architecture_of(config);
  if (a.biases == Biases::kAsTheFileSays && config.qkv_bias != config.attention_output_bias) {
    fail(
        "config.json has one key for the biases of q, k, v and o of the architecture '{}', and this model "
        "has some of them only",
        a.name);
  }
  if (config.has_local_rope && config.local_rope.scaling != RopeScaling::kNone) {
    fail("config.json (transformers 4) cannot say that the layers with a window scale their RoPE");
  }
  OrderedJson json{{"architectures", {a.hf_class}},
                   {"model_type", a.name},
                   {"hidden_size", config.width},
                   {"num_hidden_layers", config.layers},
                   {"num_attention_heads", config.heads},
                   {"num_key_value_heads", config.kv_heads},
                   {"head_dim", config.head_dim},
                   {"intermediate_size", config.ffn_width},
                   {"vocab_size", config.vocab},
                   {"max_position_embeddings", config.context},
                   {"rms_norm_eps", plain(config.norm_eps)},
                   {"tie_word_embeddings", config.tied},
                   {"rope_theta", plain(config.rope.theta)},
                   {"rope_scaling", rope_to_json(config.rope)},
                   {"torch_dtype", dtype}};
  if (config.has_local_rope) json["rope_local_base_freq"] = plain(config.local_rope.theta);
  add_switches(config, json);
  add_windows(config, json);
  if (config.bos >= 0) json["bos_token_id"] = config.bos;
  if (!config.eos.empty())
    json["eos_token_id"] = config.eos.size() == 1 ? OrderedJson(config.eos[0]) : OrderedJson(config.eos);
  return json.dump(2) + "\n";
}

}  // namespace fathom
