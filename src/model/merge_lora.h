// A LoRA made part of a model that will run, or be written.
#pragma once

#include <optional>
#include <string>

#include "model/model.h"

namespace fathom {

enum class LoraMode : uint8_t { kMerge, kSide };

// W + scale · B A in place of each matrix that has factors, on the model's device. type: of the new matrices;
// none: f32, f16 and bf16 stay what they are, block formats become what the LoRA was trained for, else q8_0,
// since rounding to four bits again would lose most of what was learned. name: what the model is marked with
// (Model::adapted).
void merge_lora(Context& ctx, Model& model, const Lora& lora, const std::string& name,
                std::optional<DType> type = {});

// The factors beside the weights, in the weights' type where that is f32, f16 or bf16. Beside block formats
// in q8_0, or, where a row is no whole blocks (B, below a rank of 32), in f16.
void attach_lora(Context& ctx, Model& model, const Lora& lora);

}  // namespace fathom
