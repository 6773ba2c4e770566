// Rows of every element type, decoded and encoded. Decoding is bit for bit what the reference package `gguf`
// computes.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace fathom {

// n elements of `blocks` as f32. Any dtype but i32 and u8; n is whole blocks. `blocks` needs no alignment.
void decode_row(DType dtype, const void* blocks, float* out, int64_t n);

// The reverse, rounding as `gguf` does. f32, f16, bf16, q4_0, q4_1, q5_0, q5_1 and q8_0; another one is a
// UserError.
void encode_row(DType dtype, const float* in, void* blocks, int64_t n);
bool can_encode(DType dtype);

// Whether products with such weights run on the stored values. The others (q2_k, q3_k) are decoded to f32
// first: slow.
bool has_dot_kernel(DType dtype);

}  // namespace fathom
