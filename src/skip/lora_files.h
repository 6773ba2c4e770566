// A LoRA as PEFT keeps it: a folder with adapter_config.json and adapter_model.safetensors.
#pragma once

#include <string>

#include "model/lora.h"

namespace fathom {

inline constexpr const char* kLoraFolder = "lora";  // inside an adapter's folder

// Into an existing folder, B's rows in Hugging Face's order. type: f32 or bf16. A number that is not finite
// is a UserError.
void write_lora(Context& ctx, const std::string& folder, const Model& model, const std::string& base_model,
                DType type = DType::kF32);

// Returns f32 factors on the CPU, in the model's order of rows. What does not fit the model or is not
// computed here is a UserError of one line.
Lora read_lora(Context& ctx, const std::string& folder, const ModelConfig& config);

// Returns whether every number of an f32 tensor on the CPU is finite.
bool all_finite(const Tensor& tensor);

}  // namespace fathom
