// What architectures differ in, one row each. Reading and writing files look here and compare no names; what
// the model computes follows from ModelConfig's switches alone.
#pragma once

#include <string>
#include <string_view>

#include "model/config.h"

namespace fathom {

enum class LayersWithWindow : uint8_t {
  kNone,
  kAll,          // Mistral
  kFromOneOn,    // Qwen: from max_window_layers on, where use_sliding_window says so
  kAllButEvery,  // Gemma: all but every n-th
};

enum class Biases : uint8_t {
  kNone,
  kAsTheFileSays,  // attention_bias, mlp_bias
  kQkv,
};

struct Architecture {
  const char* name;      // Hugging Face's model_type, and ModelConfig::architecture
  const char* hf_class;  // transformers' class
  const char* gguf;      // llama.cpp's name; of rows that share one, the first is what a GGUF file is read as

  // What is computed.
  QkNorm qk_norm = QkNorm::kNone;
  NormPlacement norm_placement = NormPlacement::kBefore;
  bool norms_as_the_file_says = false;  // placement and embedding norm are in the file
  Activation activation = Activation::kSilu;
  Biases biases = Biases::kNone;
  bool scales_embedding = false;  // by √width
  LayersWithWindow windows = LayersWithWindow::kNone;
  int64_t every = 0;        // kAllButEvery: n, where the file does not say
  bool local_rope = false;  // layers with a window have their own RoPE

  // Hugging Face's files: keys, and what a key that is left out means.
  const char* activation_key = "hidden_act";
  const char* off_key = nullptr;  // a key that must be off
  bool off_is_null = false;       // off: null, not false
  float norm_offset = 0;          // norm weights are stored less this
  bool scalar_key = false;        // q·k is scaled by 1 / √query_pre_attn_scalar
  bool soft_cap_keys = false;
  float attention_soft_cap = 0, logit_soft_cap = 0;  // in GGUF files too
  int64_t head_dim = 0;                              // 0: width / heads
  bool kv_heads_needed = true;                       // false: as many as heads
  bool tied = false;
  double norm_eps = 1e-6, rope_theta = 1e4;

  // GGUF files: what llama.cpp computes for the name, whatever a file says.
  RopeStyle gguf_rope_style = RopeStyle::kHalves;  // the order of q's and k's rows
  bool gguf_rope_factors = false;                  // it reads rope_freqs.weight, Llama 3's scaling
  bool gguf_head_dim = true;                       // it reads a head size that is not width / heads
  bool gguf_output = false;      // it looks for the output matrix where that is the embedding
  bool gguf_tied = false;        // it takes the embedding for the output matrix
  int64_t gguf_window = 0;       // where no key gives one; 0: none
  int64_t gguf_deep_layers = 0;  // at this depth q·k is scaled by the width per head (the 27B Gemmas)
};

// By name; null: there is no such row.
const Architecture* find_architecture(std::string_view name);
const Architecture* find_gguf_architecture(std::string_view gguf_name);

// The model's row. A name that the table does not have is a UserError with those it has.
const Architecture& architecture_of(const ModelConfig& config);

// "llama, mistral, …"
std::string architecture_names();
std::string gguf_architecture_names();

}  // namespace fathom
