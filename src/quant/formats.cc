#include "quant/formats.h"

#include <cmath>

#include "base/format.h"
#include "quant/block_formats.h"

namespace fathom {
namespace {

using Unpack = void (*)(const uint8_t*, int64_t, IntBlock&);
using Encode = void (*)(const float*, uint8_t*);

Unpack unpack_of(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return unpack_q4_0;
    case DType::kQ4_1:
      return unpack_q4_1;
    case DType::kQ5_0:
      return unpack_q5_0;
    case DType::kQ5_1:
      return unpack_q5_1;
    case DType::kQ8_0:
      return unpack_q8_0;
    case DType::kQ2_K:
      return unpack_q2_k;
    case DType::kQ3_K:
      return unpack_q3_k;
    case DType::kQ4_K:
      return unpack_q4_k;
    case DType::kQ5_K:
      return unpack_q5_k;
    case DType::kQ6_K:
      return unpack_q6_k;
    default:
      return nullptr;
  }
}

Encode encode_of(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return encode_q4_0;
    case DType::kQ4_1:
      return encode_q4_1;
    case DType::kQ5_0:
      return encode_q5_0;
    case DType::kQ5_1:
      return encode_q5_1;
    case DType::kQ8_0:
      return encode_q8_0;
    default:
      return nullptr;
  }
}

bool has_min(DType dtype) {
  return dtype == DType::kQ4_1 || dtype == DType::kQ5_1 || dtype == DType::kQ2_K || dtype == DType::kQ4_K ||
         dtype == DType::kQ5_K;
}

void decode_blocks(DType dtype, const uint8_t* row, float* out, int64_t n) {
  const Unpack unpack = unpack_of(dtype);
  const bool with_min = has_min(dtype);
  IntBlock block;
  for (int64_t i = 0; i < n / 32; ++i) {
    unpack(row, i, block);
    for (int j = 0; j < 32; ++j) {
      const float value = block.scale[j / 16] * static_cast<float>(block.q[j]);
      out[32 * i + j] = with_min ? value + block.min[j / 16] : value;  // adding 0 would lose a -0
    }
  }
}

void decode_halves(float (*convert)(uint16_t), const uint8_t* row, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half;
    std::memcpy(&half, row + 2 * i, 2);
    out[i] = convert(half);
  }
}

void encode_halves(uint16_t (*convert)(float), const float* in, uint8_t* row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t half = convert(in[i]);
    std::memcpy(row + 2 * i, &half, 2);
  }
}

// trunc(value) in [0, limit]; NaN is 0.
uint8_t truncate(float value, int limit) {
  if (!(value > 0.0f)) return 0;
  return value < static_cast<float>(limit) ? static_cast<uint8_t>(value) : static_cast<uint8_t>(limit);
}

}  // namespace

void decode_row(DType dtype, const void* blocks, float* out, int64_t n) {
  const auto* row = static_cast<const uint8_t*>(blocks);
  row_bytes(dtype, n);  // throws unless whole blocks
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, row, static_cast<size_t>(n) * 4);
      return;
    case DType::kF16:
      return decode_halves(f32_of_f16, row, out, n);
    case DType::kBF16:
      return decode_halves(f32_of_bf16, row, out, n);
    case DType::kI32:
    case DType::kU8:
      fail("decode_row: {} values are not weights", name_of(dtype));
    default:
      return decode_blocks(dtype, row, out, n);
  }
}

void encode_row(DType dtype, const float* in, void* blocks, int64_t n) {
  auto* row = static_cast<uint8_t*>(blocks);
  row_bytes(dtype, n);
  if (dtype == DType::kF32) {
    std::memcpy(row, in, static_cast<size_t>(n) * 4);
  } else if (dtype == DType::kF16) {
    encode_halves(f16_of_f32, in, row, n);
  } else if (dtype == DType::kBF16) {
    encode_halves(bf16_of_f32, in, row, n);
  } else if (const Encode encode = encode_of(dtype)) {
    for (int64_t i = 0; i < n / 32; ++i) encode(in + 32 * i, row + i * traits(dtype).block_bytes);
  } else {
    fail("cannot encode to {}: expected f32, f16, bf16, q4_0, q4_1, q5_0, q5_1 or q8_0", name_of(dtype));
  }
}

bool can_encode(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 || encode_of(dtype) != nullptr;
}

bool has_dot_kernel(DType dtype) {
  return dtype != DType::kQ2_K && dtype != DType::kQ3_K && dtype != DType::kI32 && dtype != DType::kU8;
}

float quantise_symmetric(const float* in, int levels, uint8_t* q) {
  float largest = 0.0f;  // by magnitude, the first of equals, with its sign
  for (int i = 0; i < 32; ++i) {
    if (std::fabs(in[i]) > std::fabs(largest)) largest = in[i];
  }
  const int middle = levels / 2;
  const auto half = static_cast<float>(middle);
  const float scale = largest / -half;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  for (int i = 0; i < 32; ++i) q[i] = truncate(in[i] * inverse + (half + 0.5f), levels - 1);
  return scale;
}

void quantise_from_min(const float* in, int levels, uint8_t* q, float* scale, float* min) {
  float low = in[0], high = in[0];
  for (int i = 1; i < 32; ++i) {
    low = in[i] < low ? in[i] : low;
    high = in[i] > high ? in[i] : high;
  }
  *min = low;
  *scale = (high - low) / static_cast<float>(levels - 1);
  const float inverse = *scale == 0.0f ? 0.0f : 1.0f / *scale;
  for (int i = 0; i < 32; ++i) q[i] = truncate((in[i] - low) * inverse + 0.5f, levels - 1);
}

void unpack_k_scales(const uint8_t* bytes, int sub, uint8_t* scale, uint8_t* min) {
  if (sub < 4) {
    *scale = bytes[sub] & 0x3f;
    *min = bytes[sub + 4] & 0x3f;
  } else {  // four low bits in the last four bytes, two high bits on top of the first eight
    *scale = static_cast<uint8_t>((bytes[sub + 4] & 0x0f) | (bytes[sub - 4] >> 6) << 4);
    *min = static_cast<uint8_t>(bytes[sub + 4] >> 4 | (bytes[sub] >> 6) << 4);
  }
}

}  // namespace fathom
