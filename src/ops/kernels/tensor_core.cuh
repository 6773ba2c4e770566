// The instructions behind products of 16 × 8 × 16 bf16 tiles by a warp (compute capability 8.0 and up).
// g = lane / 4, t = lane % 4. A (16, 16): registers hold rows g, g + 8, g, g + 8 at columns 2t, 2t + 1 (+ 8
// in the last two). B (16, 8): rows 2t, 2t + 1 (+ 8 in the second register) of column g. C (16, 8): row g at
// columns 2t, 2t + 1, then row g + 8. So C, rounded and packed, is A of the next product.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace fathom {

using SharedAddress = uint32_t;

__device__ inline SharedAddress shared_address(const void* memory) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(memory));
}

// Four 8 × 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8 and receives
// of each matrix row g, columns 2t and 2t + 1.
__device__ inline void load_matrices(uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

// The same of the transposed matrices: rows 2t and 2t + 1, column g.
__device__ inline void load_transposed(uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

// c += a · b
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes from global to shared memory, both aligned to 16, done when wait_for_copies() says so.
__device__ inline void copy_async(SharedAddress to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most kLeft of the thread's committed groups are under way.
template <int kLeft>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Two bf16, to nearest even: `low` in the lower half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// The lower (0) or the upper (1) of two.
__device__ inline float unpack_bf16(uint32_t packed, int which) {
  return __uint_as_float(which == 0 ? packed << 16 : packed & 0xffff0000u);
}

// 2^x to some 2^-22 of its value; 0 for −inf.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// tanh x to some 2^-11 of its value.
__device__ inline float fast_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace fathom
