#include "model/architecture.h"

#include "base/format.h"

namespace fathom {
namespace {

constexpr Architecture kArchitectures[] = {
    {.name = "llama",
     .hf_class = "LlamaForCausalLM",
     .gguf = "llama",
     .biases = Biases::kAsTheFileSays,
     .kv_heads_needed = false,
     .gguf_rope_style = RopeStyle::kPairs,
     .gguf_rope_factors = true},
    // Llama with windows; GGUF has one name for both.
    {.name = "mistral",
     .hf_class = "MistralForCausalLM",
     .gguf = "llama",
     .windows = LayersWithWindow::kAll,
     .gguf_rope_style = RopeStyle::kPairs,
     .gguf_rope_factors = true},
    {.name = "qwen2",
     .hf_class = "Qwen2ForCausalLM",
     .gguf = "qwen2",
     .biases = Biases::kQkv,
     .windows = LayersWithWindow::kFromOneOn,
     .off_key = "use_mrope",
     .gguf_head_dim = false},
    {.name = "qwen3",
     .hf_class = "Qwen3ForCausalLM",
     .gguf = "qwen3",
     .qk_norm = QkNorm::kPerHead,
     .windows = LayersWithWindow::kFromOneOn,
     .head_dim = 128},
    {.name = "olmo2",
     .hf_class = "Olmo2ForCausalLM",
     .gguf = "olmo2",
     .qk_norm = QkNorm::kFullWidth,
     .norm_placement = NormPlacement::kAfter,
     .off_key = "clip_qkv",
     .off_is_null = true,
     .kv_heads_needed = false,
     .norm_eps = 1e-5,
     .gguf_head_dim = false,
     .gguf_output = true},
    {.name = "gemma2",
     .hf_class = "Gemma2ForCausalLM",
     .gguf = "gemma2",
     .norm_placement = NormPlacement::kSandwich,
     .activation = Activation::kGeluTanh,
     .scales_embedding = true,
     .windows = LayersWithWindow::kAllButEvery,
     .every = 2,
     .activation_key = "hidden_activation",
     .off_key = "use_bidirectional_attention",
     .norm_offset = 1,
     .scalar_key = true,
     .soft_cap_keys = true,
     .attention_soft_cap = 50,
     .logit_soft_cap = 30,
     .head_dim = 256,
     .tied = true,
     .gguf_tied = true,
     .gguf_window = 4096,
     .gguf_deep_layers = 46},
    {.name = "gemma3_text",
     .hf_class = "Gemma3ForCausalLM",
     .gguf = "gemma3",
     .qk_norm = QkNorm::kPerHead,
     .norm_placement = NormPlacement::kSandwich,
     .activation = Activation::kGeluTanh,
     .scales_embedding = true,
     .windows = LayersWithWindow::kAllButEvery,
     .every = 6,
     .local_rope = true,
     .activation_key = "hidden_activation",
     .off_key = "use_bidirectional_attention",
     .norm_offset = 1,
     .scalar_key = true,
     .soft_cap_keys = true,
     .head_dim = 256,
     .tied = true,
     .rope_theta = 1e6,
     .gguf_deep_layers = 62},
    {.name = "skip_middle",
     .hf_class = "SkipMiddleForCausalLM",
     .gguf = "skip_middle",
     .norms_as_the_file_says = true,
     .biases = Biases::kAsTheFileSays,
     .kv_heads_needed = false},
};

}  // namespace

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& row : kArchitectures) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

const Architecture* find_gguf_architecture(std::string_view gguf_name) {
  for (const Architecture& row : kArchitectures) {
    if (gguf_name == row.gguf) return &row;
  }
  return nullptr;
}

const Architecture& architecture_of(const ModelConfig& config) {
  const Architecture* row = find_architecture(config.architecture);
  if (!row)
    fail("architecture '{}' is not supported ({})", printable(config.architecture), architecture_names());
  return *row;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture& row : kArchitectures) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

std::string gguf_architecture_names() {
  std::string names;
  for (const Architecture& row : kArchitectures) {
    if (find_gguf_architecture(row.gguf) != &row) continue;  // shares the name of one before it
    names += (names.empty() ? "" : ", ") + std::string(row.gguf);
  }
  return names;
}

}  // namespace fathom
