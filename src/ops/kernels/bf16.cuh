// Elements of a row in bf16, one by one, and neighbours read and written together, whose addresses are
// multiples of their size.
#pragma once

#include "ops/kernels/tensor_core.cuh"

namespace fathom {

using Bf16 = uint16_t;  // its bits

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(Bf16 x) {
  return unpack_bf16(x, 0);
}
__device__ inline void store(float* to, float x) {
  *to = x;
}
__device__ inline void store(Bf16* to, float x) {
  *to = static_cast<Bf16>(pack_bf16(x, 0.0f));
}

__device__ inline float4 load_four(const Bf16* from) {
  const uint2 x = *reinterpret_cast<const uint2*>(from);
  return {unpack_bf16(x.x, 0), unpack_bf16(x.x, 1), unpack_bf16(x.y, 0), unpack_bf16(x.y, 1)};
}

__device__ inline void store_four(Bf16* to, float4 x) {
  *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
}

struct EightFloats {
  float at[8];
};

__device__ inline EightFloats load_eight_floats(const Bf16* from) {
  const uint4 x = *reinterpret_cast<const uint4*>(from);
  const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
  EightFloats out;
#pragma unroll
  for (int i = 0; i < 8; ++i) out.at[i] = unpack_bf16(pairs[i / 2], i % 2);
  return out;
}

__device__ inline EightFloats load_eight_floats(const float* from) {
  const float4 low = *reinterpret_cast<const float4*>(from),
               high = *reinterpret_cast<const float4*>(from + 4);
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

__device__ inline void store_eight(Bf16* to, const EightFloats& x) {
  *reinterpret_cast<uint4*>(to) = make_uint4(pack_bf16(x.at[0], x.at[1]), pack_bf16(x.at[2], x.at[3]),
                                             pack_bf16(x.at[4], x.at[5]), pack_bf16(x.at[6], x.at[7]));
}

}  // namespace fathom
