// One description for every architecture: switches, not subclasses.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/attention/rope.h"
#include "ops/rows/gated_activation.h"

namespace fathom {

enum class NormPlacement : uint8_t {
  kBefore,    // Llama: h + f(norm(h))
  kAfter,     // OLMo-2: h + norm(f(h))
  kSandwich,  // Gemma-2, Skip-Middle: h + norm(f(norm(h)))
};

enum class QkNorm : uint8_t {
  kNone,
  kPerHead,    // Qwen3, Gemma-3: over head_dim, one weight for all heads
  kFullWidth,  // OLMo-2: over all heads together
};

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

// As they are written in files of ours, in the order of the enumerators.
std::span<const std::string_view> enum_names(NormPlacement);
std::span<const std::string_view> enum_names(QkNorm);
std::span<const std::string_view> enum_names(RopeScaling);
std::span<const std::string_view> enum_names(RopeStyle);
std::span<const std::string_view> enum_names(Activation);

struct RopeConfig {
  float theta = 10000.0f;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0f;
  int64_t original_context = 0;  // llama3, yarn: the context the model was first trained with
  float low_frequency_factor = 1.0f, high_frequency_factor = 4.0f;  // llama3
  float beta_fast = 32.0f, beta_slow = 1.0f;                        // yarn
  float attention_factor = 1.0f;                                    // yarn: on cos and sin
  bool truncate = true;  // yarn: the ramp's ends are rounded to whole dimensions

  template <class V>
  void visit(V& v) {
    v("theta", theta);
    v("scaling", scaling);
    v("factor", factor);
    v("original_context", original_context);
    v("low_frequency_factor", low_frequency_factor);
    v("high_frequency_factor", high_frequency_factor);
    v("beta_fast", beta_fast);
    v("beta_slow", beta_slow);
    v("attention_factor", attention_factor);
    v("truncate", truncate);
  }
};

struct ModelConfig {
  std::string architecture;  // Hugging Face's model_type: "llama", "qwen2", …
  int64_t width = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn_width = 0, vocab = 0;
  int64_t context = 0;  // the longest sequence it was trained for

  float norm_eps = 1e-6f;
  float norm_weight_offset =
      0.0f;  // 1 for Gemma's Hugging Face files, whose norm weights are stored less one
  NormPlacement norm_placement = NormPlacement::kBefore;
  bool embedding_norm = false;  // Skip-Middle
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false, attention_output_bias = false, ffn_bias = false;
  bool tied = false;  // the output matrix is the embedding
  Activation activation = Activation::kSilu;
  float embedding_scale = 1.0f;
  float attention_scale = 0.0f;                            // of q·k
  float attention_soft_cap = 0.0f, logit_soft_cap = 0.0f;  // 0: none

  RopeStyle rope_style = RopeStyle::kHalves;
  RopeConfig rope;
  RopeConfig local_rope;  // Gemma-3: of the layers with a window
  bool has_local_rope = false;
  std::vector<int32_t> windows;  // per layer; 0: all of the past

  int32_t bos = -1;
  std::vector<int32_t> eos;

  // Keys of a layer with a local RoPE live in another space than the others'.
  bool is_local(int64_t layer) const { return has_local_rope && windows[static_cast<size_t>(layer)] > 0; }
  const RopeConfig& rope_of(int64_t layer) const { return is_local(layer) ? local_rope : rope; }

  template <class V>
  void visit(V& v) {
    v("architecture", architecture);
    v("width", width);
    v("layers", layers);
    v("heads", heads);
    v("kv_heads", kv_heads);
    v("head_dim", head_dim);
    v("ffn_width", ffn_width);
    v("vocab", vocab);
    v("context", context);
    v("norm_eps", norm_eps);
    v("norm_weight_offset", norm_weight_offset);
    v("norm_placement", norm_placement);
    v("embedding_norm", embedding_norm);
    v("qk_norm", qk_norm);
    v("qkv_bias", qkv_bias);
    v("attention_output_bias", attention_output_bias);
    v("ffn_bias", ffn_bias);
    v("tied", tied);
    v("activation", activation);
    v("embedding_scale", embedding_scale);
    v("attention_scale", attention_scale);
    v("attention_soft_cap", attention_soft_cap);
    v("logit_soft_cap", logit_soft_cap);
    v("rope_style", rope_style);
    v("rope", rope);
    v("local_rope", local_rope);
    v("has_local_rope", has_local_rope);
    v("windows", windows);
    v("bos", bos);
    v("eos", eos);
  }
};

// Throws a UserError naming the first value that no model can have (0 heads, a width that the heads do not
// divide, …). `where` starts the message.
void check_config(const ModelConfig& config, const std::string& where);

// The layer whose keys and values a row that skips attention in `layer` may take for its own: the nearest one
// below with the same RoPE (windows may differ). -1: there is none.
int64_t copied_layer(const ModelConfig& config, int64_t layer);

// Hugging Face's config.json, in the spelling of transformers 4 or 5. Architectures and keys that are not
// supported are refused by name.
ModelConfig config_from_hf(const std::string& json_text, const std::string& where);
// `dtype`: what transformers holds the weights in ("float32", "float16", "bfloat16").
std::string config_to_hf(const ModelConfig& config, std::string_view dtype);

// (head_dim / 2) inverse frequencies of the rotary embedding, scaling applied.
std::vector<float> inverse_frequencies(const RopeConfig& rope, int64_t head_dim);
// What cos and sin are multiplied by.
float rope_magnitude(const RopeConfig& rope);

}  // namespace fathom
