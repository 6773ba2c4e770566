#include "model/weights.h"

#include <cstring>

#include "base/format.h"

namespace fathom {
namespace {

class SpecList {
 public:
  SpecList(const ModelConfig& config, ModelWeights& weights) : config_(config), weights_(weights) {}

  std::vector<WeightSpec> build() {
    const int64_t width = config_.width;
    weights_.blocks.resize(static_cast<size_t>(config_.layers));
    matrix("model.embed_tokens.weight", "token_embd.weight", {config_.vocab, width}, weights_.embedding);
    if (config_.embedding_norm)
      norm("model.embed_norm.weight", "token_embd_norm.weight", width, weights_.embedding_norm);
    for (int64_t i = 0; i < config_.layers; ++i) block(i, weights_.blocks[static_cast<size_t>(i)]);
    norm("model.norm.weight", "output_norm.weight", width, weights_.final_norm);
    if (!config_.tied) matrix("lm_head.weight", "output.weight", {config_.vocab, width}, weights_.output);
    return std::move(specs_);
  }

 private:
  void matrix(const std::string& hf, const std::string& gguf, const Shape& shape, Tensor& tensor) {
    specs_.push_back({.hf = hf, .gguf = gguf, .shape = shape, .tensor = &tensor, .matrix = true});
  }
  void vector(const std::string& hf, const std::string& gguf, int64_t size, Tensor& tensor) {
    specs_.push_back({.hf = hf, .gguf = gguf, .shape = {size}, .tensor = &tensor});
  }
  void norm(const std::string& hf, const std::string& gguf, int64_t size, Tensor& tensor) {
    vector(hf, gguf, size, tensor);
    specs_.back().norm = true;
  }
  // A matrix of `out` rows and its bias where the config has one.
  void projection(const std::string& hf, const std::string& gguf, int64_t out, int64_t in, Tensor& weight,
                  bool has_bias, Tensor& bias, int64_t rotated_heads = 0) {
    matrix(hf + ".weight", gguf + ".weight", {out, in}, weight);
    specs_.back().rotated_heads = rotated_heads;
    if (!has_bias) return;
    vector(hf + ".bias", gguf + ".bias", out, bias);
    specs_.back().rotated_heads = rotated_heads;
  }

  void block(int64_t index, BlockWeights& w) {
    const ModelConfig& c = config_;
    const std::string hf = fmt::format("model.layers.{}.", index), gguf = fmt::format("blk.{}.", index);
    const bool before = c.norm_placement != NormPlacement::kAfter,
               after = c.norm_placement != NormPlacement::kBefore;
    const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
    if (before) norm(hf + "input_layernorm.weight", gguf + "attn_norm.weight", c.width, w.attention_norm);
    projection(hf + "self_attn.q_proj", gguf + "attn_q", q_width, c.width, w.q, c.qkv_bias, w.q_bias,
               c.heads);
    projection(hf + "self_attn.k_proj", gguf + "attn_k", kv_width, c.width, w.k, c.qkv_bias, w.k_bias,
               c.kv_heads);
    projection(hf + "self_attn.v_proj", gguf + "attn_v", kv_width, c.width, w.v, c.qkv_bias, w.v_bias);
    if (c.qk_norm != QkNorm::kNone) {
      const bool full = c.qk_norm == QkNorm::kFullWidth;
      norm(hf + "self_attn.q_norm.weight", gguf + "attn_q_norm.weight", full ? q_width : c.head_dim,
           w.q_norm);
      norm(hf + "self_attn.k_norm.weight", gguf + "attn_k_norm.weight", full ? kv_width : c.head_dim,
           w.k_norm);
    }
    projection(hf + "self_attn.o_proj", gguf + "attn_output", c.width, q_width, w.o, c.attention_output_bias,
               w.o_bias);
    // Llama calls the norm before the FFN "post attention"; where there is a norm after attention, that one
    // has the name.
    if (after)
      norm(hf + "post_attention_layernorm.weight", gguf + "post_attention_norm.weight", c.width,
           w.attention_post_norm);
    const char* ffn_norm_name =
        after ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight";
    if (before) norm(hf + ffn_norm_name, gguf + "ffn_norm.weight", c.width, w.ffn_norm);
    projection(hf + "mlp.gate_proj", gguf + "ffn_gate", c.ffn_width, c.width, w.gate, c.ffn_bias,
               w.gate_bias);
    projection(hf + "mlp.up_proj", gguf + "ffn_up", c.ffn_width, c.width, w.up, c.ffn_bias, w.up_bias);
    projection(hf + "mlp.down_proj", gguf + "ffn_down", c.width, c.ffn_width, w.down, c.ffn_bias,
               w.down_bias);
    if (after)
      norm(hf + "post_feedforward_layernorm.weight", gguf + "post_ffw_norm.weight", c.width, w.ffn_post_norm);
  }

  const ModelConfig& config_;
  ModelWeights& weights_;
  std::vector<WeightSpec> specs_;
};

}  // namespace

std::vector<WeightSpec> weight_specs(const ModelConfig& config, ModelWeights& weights) {
  return SpecList(config, weights).build();
}

std::vector<WeightSpec> weight_specs(const Model& model) {
  return weight_specs(model.config,
                      const_cast<ModelWeights&>(model.weights));  // build() resizes to the size it has
}

Tensor reorder_rotary_rows(const Tensor& weight, int64_t heads, RopeStyle from, RopeStyle to) {
  if (from == to) return weight;
  Tensor out = Tensor::owned(Device::kCpu, weight.dtype(), weight.shape());
  const int64_t head_dim = weight.dim(0) / heads, half = head_dim / 2;
  const auto bytes = static_cast<size_t>(weight.nbytes() / weight.dim(0));
  for (int64_t row = 0; row < weight.dim(0); ++row) {
    const int64_t head = row / head_dim, i = row % head_dim;
    const int64_t pair_place = i < half ? 2 * i : 2 * (i - half) + 1;  // of the half-ordered row i
    const int64_t other = head * head_dim + pair_place;
    const auto* source = static_cast<const std::byte*>(weight.raw());
    auto* target = static_cast<std::byte*>(out.raw());
    if (to == RopeStyle::kPairs) {
      std::memcpy(target + static_cast<size_t>(other) * bytes, source + static_cast<size_t>(row) * bytes,
                  bytes);
    } else {
      std::memcpy(target + static_cast<size_t>(row) * bytes, source + static_cast<size_t>(other) * bytes,
                  bytes);
    }
  }
  return out;
}

int64_t Model::parameters() const {
  int64_t total = 0;
  for (const WeightSpec& spec : weight_specs(*this)) total += spec.tensor->numel();
  return total;
}

int64_t Model::weight_bytes() const {
  int64_t total = 0;
  for (const WeightSpec& spec : weight_specs(*this)) total += spec.tensor->nbytes();
  for (const auto& block : lora.blocks) {
    for (const LoraFactors& factors : block) {
      if (factors.a) total += factors.a.nbytes() + factors.b.nbytes();
    }
  }
  return total;
}

}  // namespace fathom
