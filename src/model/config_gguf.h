#pragma once

#include <vector>

#include "io/gguf.h"
#include "model/config.h"

namespace fathom {

// From a GGUF file's metadata and tensor list. Architectures and keys that are not supported are refused by
// name.
ModelConfig config_from_gguf(const GgufFile& file);

// general.* and the architecture's keys, as llama.cpp reads them.
std::vector<GgufKeyValue> config_to_gguf(const ModelConfig& config);

// The name llama.cpp knows the architecture by.
std::string gguf_architecture(const ModelConfig& config);
// The order of q's and k's rows in a GGUF file of that architecture.
RopeStyle gguf_rope_style(const ModelConfig& config);

}  // namespace fathom
