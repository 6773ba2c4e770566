#include "tensor/dtype.h"

#include <array>

#include "base/format.h"

namespace fathom {
namespace {

constexpr std::array<DTypeTraits, kDTypes> kTraits{{
    {"f32", 1, 4, 0},
    {"f16", 1, 2, 1},
    {"bf16", 1, 2, 30},
    {"i32", 1, 4, 26},
    {"u8", 1, 1, -1},
    {"q4_0", 32, 18, 2},
    {"q4_1", 32, 20, 3},
    {"q5_0", 32, 22, 6},
    {"q5_1", 32, 24, 7},
    {"q8_0", 32, 34, 8},
    {"q2_k", 256, 84, 10},
    {"q3_k", 256, 110, 11},
    {"q4_k", 256, 144, 12},
    {"q5_k", 256, 176, 13},
    {"q6_k", 256, 210, 14},
}};

}  // namespace

const DTypeTraits& traits(DType dtype) {
  return kTraits[static_cast<size_t>(dtype)];
}

int64_t row_bytes(DType dtype, int64_t elements) {
  const DTypeTraits& t = traits(dtype);
  if (elements % t.block != 0) {
    fail("a row of {} elements is not whole blocks of {} ({} per block)", elements, t.name, t.block);
  }
  return elements / t.block * t.block_bytes;
}

bool parse_dtype(std::string_view name, DType* dtype) {
  for (int i = 0; i < kDTypes; ++i) {
    if (name == kTraits[static_cast<size_t>(i)].name) {
      *dtype = static_cast<DType>(i);
      return true;
    }
  }
  return false;
}

bool dtype_of_ggml(int ggml_type, DType* dtype) {
  for (int i = 0; i < kDTypes; ++i) {
    if (ggml_type >= 0 && ggml_type == kTraits[static_cast<size_t>(i)].ggml_type) {
      *dtype = static_cast<DType>(i);
      return true;
    }
  }
  return false;
}

}  // namespace fathom
