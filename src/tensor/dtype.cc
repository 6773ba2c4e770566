#include "tensor/dtype.h"

#include <array>

#include "base/format.h"

namespace fathom {
namespace {

struct Row {
  DType dtype;
  DTypeTraits traits;
};

// In the order of the enumeration.
constexpr std::array<Row, kDTypes> kRows{{
    {DType::kF32, {"f32", 1, 4, 0}},
    {DType::kF16, {"f16", 1, 2, 1}},
    {DType::kBF16, {"bf16", 1, 2, 30}},
    {DType::kI32, {"i32", 1, 4, 26}},
    {DType::kU8, {"u8", 1, 1, -1}},
    {DType::kQ4_0, {"q4_0", 32, 18, 2}},
    {DType::kQ4_1, {"q4_1", 32, 20, 3}},
    {DType::kQ5_0, {"q5_0", 32, 22, 6}},
    {DType::kQ5_1, {"q5_1", 32, 24, 7}},
    {DType::kQ8_0, {"q8_0", 32, 34, 8}},
    {DType::kQ2_K, {"q2_k", 256, 84, 10}},
    {DType::kQ3_K, {"q3_k", 256, 110, 11}},
    {DType::kQ4_K, {"q4_k", 256, 144, 12}},
    {DType::kQ5_K, {"q5_k", 256, 176, 13}},
    {DType::kQ6_K, {"q6_k", 256, 210, 14}},
}};

constexpr bool in_order() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].dtype) != i || !kRows[i].traits.name) return false;
  }
  return true;
}
static_assert(in_order(), "every DType has its row, at its number");

}  // namespace

const DTypeTraits& traits(DType dtype) {
  return kRows[static_cast<size_t>(dtype)].traits;
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
    if (name == kRows[static_cast<size_t>(i)].traits.name) {
      *dtype = static_cast<DType>(i);
      return true;
    }
  }
  return false;
}

bool dtype_of_ggml(int ggml_type, DType* dtype) {
  for (int i = 0; i < kDTypes; ++i) {
    if (ggml_type >= 0 && ggml_type == kRows[static_cast<size_t>(i)].traits.ggml_type) {
      *dtype = static_cast<DType>(i);
      return true;
    }
  }
  return false;
}

}  // namespace fathom
