#include "model/config.h"

#include <array>
#include <cmath>

#include "base/format.h"
#include "ops/attention/attention.h"

namespace fathom {
namespace {

constexpr int64_t kMaxLayers = 1024, kMaxWidth = 1 << 20, kMaxVocab = 1 << 24, kMaxContext = 1 << 28;

constexpr std::array<std::string_view, 3> kNormPlacements{"before", "after", "sandwich"};
constexpr std::array<std::string_view, 3> kQkNorms{"none", "per_head", "full_width"};
constexpr std::array<std::string_view, 4> kRopeScalings{"none", "linear", "llama3", "yarn"};
constexpr std::array<std::string_view, 2> kRopeStyles{"halves", "pairs"};
constexpr std::array<std::string_view, 2> kActivations{"silu", "gelu_tanh"};

}  // namespace

std::span<const std::string_view> enum_names(NormPlacement) {
  return kNormPlacements;
}
std::span<const std::string_view> enum_names(QkNorm) {
  return kQkNorms;
}
std::span<const std::string_view> enum_names(RopeScaling) {
  return kRopeScalings;
}
std::span<const std::string_view> enum_names(RopeStyle) {
  return kRopeStyles;
}
std::span<const std::string_view> enum_names(Activation) {
  return kActivations;
}

void check_config(const ModelConfig& config, const std::string& where) {
  const auto within = [&](const char* what, int64_t value, int64_t most) {
    if (value < 1 || value > most) fail("{}: {} must be between 1 and {}, got {}", where, what, most, value);
  };
  const auto positive = [&](const char* what, float value) {
    if (!(value > 0 && std::isfinite(value)))
      fail("{}: {} must be above 0 and finite, got {}", where, what, value);
  };
  within("the number of layers", config.layers, kMaxLayers);
  within("the width", config.width, kMaxWidth);
  within("the number of heads", config.heads, kMaxWidth);
  within("the number of key/value heads", config.kv_heads, config.heads);
  within("the head size", config.head_dim, kMaxHeadDim);
  within("the FFN width", config.ffn_width, kMaxWidth);
  within("the vocabulary", config.vocab, kMaxVocab);
  within("the context", config.context, kMaxContext);
  if (config.heads % config.kv_heads != 0) {
    fail("{}: {} heads cannot share {} key/value heads evenly", where, config.heads, config.kv_heads);
  }
  if (config.head_dim % 8 != 0)
    fail("{}: the head size must be a multiple of 8, got {}", where, config.head_dim);
  if (static_cast<int64_t>(config.windows.size()) != config.layers) {
    fail("{}: {} attention windows for {} layers", where, config.windows.size(), config.layers);
  }
  if (!(config.norm_eps > 0 && config.norm_eps < 1)) {
    fail("{}: the norm's eps must be between 0 and 1, got {}", where, config.norm_eps);
  }
  positive("the attention scale", config.attention_scale);
  for (float cap : {config.attention_soft_cap, config.logit_soft_cap}) {
    if (cap != 0) positive("a soft-cap", cap);
  }
  for (const RopeConfig& rope : {config.rope, config.local_rope}) {
    positive("the RoPE base", rope.theta);
    positive("the RoPE factor", rope.factor);
    positive("the RoPE attention factor", rope.attention_factor);
    positive("RoPE's beta_fast", rope.beta_fast);
    positive("RoPE's beta_slow", rope.beta_slow);
    if (!(rope.theta > 1)) fail("{}: the RoPE base must be above 1, got {}", where, rope.theta);
    const bool needs_original = rope.scaling == RopeScaling::kLlama3 || rope.scaling == RopeScaling::kYarn;
    if (needs_original && rope.original_context < 1)
      fail("{}: this RoPE scaling needs the original context", where);
  }
}

int64_t copied_layer(const ModelConfig& config, int64_t layer) {
  int64_t below = layer - 1;
  while (below >= 0 && config.is_local(below) != config.is_local(layer)) --below;
  return below;
}

}  // namespace fathom
