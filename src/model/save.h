#pragma once

#include <optional>
#include <string>

#include "model/model.h"

namespace fathom {

struct SaveSummary {
  int64_t tensors = 0, bytes = 0;
};

// GGUF v3 as llama.cpp expects it. Vocabulary and other metadata come from the source file where it is a
// GGUF, else from the tokenizer. Matrices keep their dtypes (convert_weights first to change them).
SaveSummary save_gguf(Context& ctx, const Model& model, const std::string& path);

// config.json, model.safetensors, tokenizer files, generation_config.json as transformers expects them; block
// formats are decoded to `dtype` (f32, f16 or bf16; none: f32 for block formats, the rest as stored). The
// folder appears whole or not at all.
SaveSummary save_hf(Context& ctx, const Model& model, const std::string& dir, std::optional<DType> dtype);

}  // namespace fathom
