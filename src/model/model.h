// A model in memory: its config, its weights (mostly views of a mapped file, or, arranged to run, copies) and
// its tokenizer.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "tensor/tensor.h"
#include "text/tokenizer.h"

namespace fathom {

class GgufFile;

inline constexpr const char* kAdaptedKey = "fathom.adapted";  // of Model::adapted, in GGUF and config.json

struct BlockWeights {
  Tensor attention_norm, attention_post_norm, ffn_norm,
      ffn_post_norm;                      // f32 (width); undefined where not placed
  Tensor q, k, v;                         // (heads · head_dim, width), …
  Tensor o;                               // (width, heads · head_dim)
  Tensor q_bias, k_bias, v_bias, o_bias;  // f32
  Tensor q_norm, k_norm;                  // f32
  Tensor gate, up;                        // (ffn, width)
  Tensor down;                            // (width, ffn)
  Tensor gate_bias, up_bias, down_bias;   // f32
};

struct ModelWeights {
  Tensor embedding;       // (vocab, width)
  Tensor embedding_norm;  // f32 (width)
  std::vector<BlockWeights> blocks;
  Tensor final_norm;    // f32 (width)
  Tensor output;        // (vocab, width); the embedding itself when tied
  Tensor rope_factors;  // f32 (head_dim / 2): a GGUF file's divisors of the frequencies; mostly undefined
  Tensor frequencies, local_frequencies;  // f32 (head_dim / 2): derived, on the model's device
};

// The matrices of a block that a LoRA can change, in forward order.
enum class Projection : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr size_t kProjections = 7;

// Low-rank factors beside a matrix W: y = x Wᵀ + scale · (x Aᵀ) Bᵀ.
struct LoraFactors {
  Tensor a, b;  // (rank, in), (out, rank); both undefined: the matrix is left alone
};

struct Lora {
  int64_t rank = 0;
  float alpha = 0;
  float dropout = 0;  // of x, while a tape is attached
  uint64_t seed = 0;  // of the dropout: training sets it for each step
  std::vector<std::array<LoraFactors, kProjections>> blocks;  // of each layer; empty: there is none
  bool merged = false;                                        // the weights have it in them already
  std::optional<DType>
      round;  // the type of merged weights that it was trained for; none: merge_lora() chooses
  bool any() const { return !blocks.empty(); }
  bool beside() const { return any() && !merged; }
  float scale() const { return alpha / static_cast<float>(rank); }
};

// What generation_config.json says; a negative value: nothing said.
struct GenerationDefaults {
  float temperature = -1, top_p = -1, min_p = -1, repeat_penalty = -1;
  int32_t top_k = -1;
};

struct Model {
  ModelConfig config;
  ModelWeights weights;
  Lora lora;                                   // beside the weights: not in weight_specs
  std::shared_ptr<const Tokenizer> tokenizer;  // null when the files have none
  GenerationDefaults generation;
  std::string path, format;              // format: "gguf", "hf", "llama2.c"
  std::string tokenizer_path;            // where the tokenizer was read from
  std::shared_ptr<const GgufFile> gguf;  // the source where it was one: its metadata serves info and save
  Device device = Device::kCpu;
  std::string adapted;  // the adapter whose LoRA is part of the weights; "": none is known

  int64_t parameters() const;    // a tied output counts once; without a LoRA's factors
  int64_t weight_bytes() const;  // as held, factors included
};

}  // namespace fathom
