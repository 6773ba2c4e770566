// The parsing half of GgufFile: bytes in, checked contents out.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "io/gguf.h"

namespace fathom {

struct GgufContents {
  uint32_t version = 0;
  std::vector<GgufKeyValue> metadata;
  std::vector<GgufTensorInfo> tensors;
  std::vector<uint32_t> key_order, tensor_order;  // indices sorted by name
  size_t data_begin = 0;  // where the data section starts; the file's end when it has none
};

inline constexpr uint64_t kGgufDefaultAlignment = 32;
inline constexpr size_t kGgufMaxKeyBytes = 65535;
inline constexpr size_t kGgufMaxTensorNameBytes =
    64;  // llama.cpp reads up to 63: what we write keeps to that

// `where` starts each message: "FILE: gguf".
GgufContents parse_gguf(std::span<const std::byte> bytes, const std::string& where);

const char* name_of(GgufType type);  // "u32", "array", …

}  // namespace fathom
