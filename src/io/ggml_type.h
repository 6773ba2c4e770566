// The tensor type ids of GGUF files, by name: also those that fathom does not read, so that a refusal can
// name them.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/dtype.h"

namespace fathom {

std::string ggml_type_name(uint32_t id);  // "IQ2_XXS"; "" for an id that no version of the format has
std::string supported_ggml_types();       // "F32, F16, …"
bool dtype_of_ggml_id(uint32_t id, DType* dtype);

}  // namespace fathom
