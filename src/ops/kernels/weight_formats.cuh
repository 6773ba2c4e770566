// Every weight format as a struct with at(): element `lane` of the index-th 32 of a row, in f32, bit for bit
// what quant/formats.h decodes. A warp takes 32 consecutive elements; what they share comes from the cache.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace fathom {

__device__ inline float f16_at(const uint8_t* bytes) {  // blocks have even sizes: always aligned
  return __half2float(*reinterpret_cast<const __half*>(bytes));
}

struct FormatF32 {
  __device__ static float at(const uint8_t* row, int index, int lane) {
    return reinterpret_cast<const float*>(row)[32 * index + lane];
  }
};

struct FormatF16 {
  __device__ static float at(const uint8_t* row, int index, int lane) {
    return __half2float(reinterpret_cast<const __half*>(row)[32 * index + lane]);
  }
};

struct FormatBF16 {
  __device__ static float at(const uint8_t* row, int index, int lane) {
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[32 * index + lane]);
  }
};

// Nibbles of a block of 32: elements 0-15 low, 16-31 high.
__device__ inline int nibble(const uint8_t* bytes, int lane) {
  return bytes[lane & 15] >> (lane >> 4 << 2) & 15;
}
__device__ inline int bit(const uint8_t* bytes, int lane) {
  return bytes[lane >> 3] >> (lane & 7) & 1;
}

struct FormatQ4_0 {
  __device__ static float at(const uint8_t* row, int index, int lane) {
    const uint8_t* block = row + 18 * index;
    return f16_at(block) * static_cast<float>(nibble(block + 2, lane) - 8);
  }
};

struct FormatQ4_1 {
  __device__ static float at(const uint8_t* row, int index, int lane) {
    const uint8_t* block = row + 20 * index;
    return f16_at(block) * static_cast<float>(nibble(block + 4, lane)) + f16_at(block + 2);
  }
};

struct FormatQ5_0 {
  __device__ static float at(const uint8_t* row, int index, int lane) {
    const uint8_t* block = row + 22 * index;
    return f16_at(block) * static_cast<float>((nibble(block + 6, lane) | bit(block + 2, lane) << 4) - 16);
  }
};

struct FormatQ5_1 {
  __device__ static float at(const uint8_t* row, int index, int lane) {
    const uint8_t* block = row + 24 * index;
    const int q = nibble(block + 8, lane) | bit(block + 4, lane) << 4;
    return f16_at(block) * static_cast<float>(q) + f16_at(block + 2);
  }
};

struct FormatQ8_0 {
  __device__ static float at(const uint8_t* row, int index, int lane) {
    const uint8_t* block = row + 34 * index;
    return f16_at(block) * static_cast<float>(static_cast<int8_t>(block[2 + lane]));
  }
};

// The k formats: eight times 32 elements in a block of 256. Their layouts are told in quant/q?_k.cc.
struct FormatQ2_K {
  __device__ static float at(const uint8_t* row, int index, int lane) {
    const uint8_t* block = row + 84 * (index / 8);
    const int sub = index % 8, packed = block[2 * sub + lane / 16];
    const int q = block[16 + 32 * (sub / 4) + lane] >> (2 * (sub % 4)) & 3;
    const float scale = f16_at(block + 80) * static_cast<float>(packed & 15);
    return scale * static_cast<float>(q) - f16_at(block + 82) * static_cast<float>(packed >> 4);
  }
};

struct FormatQ3_K {
  __device__ static float at(const uint8_t* row, int index, int lane) {
    const uint8_t *block = row + 110 * (index / 8), *scales = block + 96;
    const int sub = index % 8, group = 2 * sub + lane / 16;
    const int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
    const int high = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
    const int q =
        (block[32 + 32 * (sub / 4) + lane] >> (2 * (sub % 4)) & 3) - (block[lane] >> sub & 1 ? 0 : 4);
    return f16_at(block + 108) * static_cast<float>((low | high << 4) - 32) * static_cast<float>(q);
  }
};

// scale * q - min, with the six-bit scales and minima of q4_k and q5_k: eight of each in twelve bytes.
__device__ inline float with_k_scales(const uint8_t* block, int sub, int q) {
  const uint8_t* bytes = block + 4;
  int scale, min;
  if (sub < 4) {
    scale = bytes[sub] & 0x3f;
    min = bytes[sub + 4] & 0x3f;
  } else {
    scale = (bytes[sub + 4] & 0x0f) | bytes[sub - 4] >> 6 << 4;
    min = bytes[sub + 4] >> 4 | bytes[sub] >> 6 << 4;
  }
  return f16_at(block) * static_cast<float>(scale) * static_cast<float>(q) -
         f16_at(block + 2) * static_cast<float>(min);
}

struct FormatQ4_K {
  __device__ static float at(const uint8_t* row, int index, int lane) {
    const uint8_t* block = row + 144 * (index / 8);
    const int sub = index % 8;
    return with_k_scales(block, sub, block[16 + 32 * (sub / 2) + lane] >> (4 * (sub % 2)) & 15);
  }
};

struct FormatQ5_K {
  __device__ static float at(const uint8_t* row, int index, int lane) {
    const uint8_t* block = row + 176 * (index / 8);
    const int sub = index % 8, high = block[16 + lane] >> sub & 1;
    return with_k_scales(block, sub, (block[48 + 32 * (sub / 2) + lane] >> (4 * (sub % 2)) & 15) | high << 4);
  }
};

struct FormatQ6_K {
  __device__ static float at(const uint8_t* row, int index, int lane) {
    const uint8_t* block = row + 210 * (index / 8);
    const int sub = index % 8, half = sub / 4, t = sub % 4;
    const int low = block[64 * half + 32 * (t % 2) + lane] >> (4 * (t / 2)) & 15;
    const int high = block[128 + 32 * half + lane] >> (2 * t) & 3;
    const int scale = static_cast<int8_t>(block[192 + 2 * sub + lane / 16]);
    return f16_at(block + 208) * static_cast<float>(scale) * static_cast<float>((low | high << 4) - 32);
  }
};

// fn(FormatQ4_0{}) for DType::kQ4_0, and so on. The ops' checks have refused i32 and u8.
template <class Fn>
void with_format(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn(FormatF32{});
    case DType::kF16:
      return fn(FormatF16{});
    case DType::kBF16:
      return fn(FormatBF16{});
    case DType::kQ4_0:
      return fn(FormatQ4_0{});
    case DType::kQ4_1:
      return fn(FormatQ4_1{});
    case DType::kQ5_0:
      return fn(FormatQ5_0{});
    case DType::kQ5_1:
      return fn(FormatQ5_1{});
    case DType::kQ8_0:
      return fn(FormatQ8_0{});
    case DType::kQ2_K:
      return fn(FormatQ2_K{});
    case DType::kQ3_K:
      return fn(FormatQ3_K{});
    case DType::kQ4_K:
      return fn(FormatQ4_K{});
    case DType::kQ5_K:
      return fn(FormatQ5_K{});
    case DType::kQ6_K:
      return fn(FormatQ6_K{});
    case DType::kI32:
    case DType::kU8:
      break;
  }
}

}  // namespace fathom
