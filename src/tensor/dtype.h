// Element types and the block formats of GGUF, with the traits that every layer above needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fathom {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kI32,
  kU8,
  // Block formats: `block` elements of a row share scales; a row is whole blocks, tensors are row-major over
  // blocks.
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};
inline constexpr int kDTypes = 15;

struct DTypeTraits {
  const char* name;     // as on the command line
  int64_t block;        // elements per block; 1: not a block format
  int64_t block_bytes;  // bytes per block
  int ggml_type;        // id in a GGUF file; -1: cannot be stored there
};

const DTypeTraits& traits(DType dtype);
inline const char* name_of(DType dtype) {
  return traits(dtype).name;
}
inline bool is_block_format(DType dtype) {
  return traits(dtype).block > 1;
}

// Bytes of a row of `elements`; a count that is not whole blocks is a UserError.
int64_t row_bytes(DType dtype, int64_t elements);

bool parse_dtype(std::string_view name, DType* dtype);
bool dtype_of_ggml(int ggml_type, DType* dtype);

}  // namespace fathom
