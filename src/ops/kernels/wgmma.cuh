// Hopper's products by a warpgroup (four warps; compute capability 9.0a) and bulk copies into shared memory.
// A tile is rows of 64 bf16, 128 bytes, in shared memory, at a multiple of 1024 bytes. The eight 16-byte
// chunks of a row are exchanged by its number: chunk c of row r lies at c ^ (r % 8), so that eight rows'
// chunks at one place lie in different banks. A tile is a factor in two ways: `across`, a product along its
// columns, and `down`, a product along its rows (as B only).
// Sums of 64 × 8n elements: warp w of the warpgroup has rows 16w to 16w + 15, as C of tensor_core.cuh, n
// times. Registers as factor A (64 × 16): each warp as A of tensor_core.cuh; use them in one product only,
// since ptxas 13.0 takes them for free after it (rows that a loop kept there came out wrong).
#pragma once

#include "ops/kernels/tensor_core.cuh"

namespace fathom {

inline constexpr int kWarpgroup = 128;
inline constexpr uint32_t kTileRowBytes = 128;

// What the products read of shared memory: 16 columns from `column` on, a multiple of 16, of the tile's rows.
// Bits 0 to 13: address / 16; 32 to 45: bytes from eight rows to the next eight / 16; 62: chunks exchanged.
__device__ inline uint64_t across(SharedAddress tile, int column) {
  const uint64_t start = uint64_t{1} << 62 | uint64_t{64} << 32 | ((tile & 0x3ffff) >> 4);
  return start + static_cast<uint64_t>(column / 8);
}
// 16 rows from `row` on, a multiple of 16.
__device__ inline uint64_t down(SharedAddress tile, int row) {
  return across(tile, 0) + static_cast<uint64_t>(row) * (kTileRowBytes / 16);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Before the first product after registers that it uses have been written.
__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

#define FATHOM_FOUR(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define FATHOM_SIXTEEN(c, n) \
  FATHOM_FOUR(c, n), FATHOM_FOUR(c, n + 1), FATHOM_FOUR(c, n + 2), FATHOM_FOUR(c, n + 3)

// Until at most kLeft committed groups are under way. sums: of a group that is done now.
template <int kLeft>
__device__ inline void wait_for_products(float (&sums)[8][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %32;"
               : FATHOM_SIXTEEN(sums, 0), FATHOM_SIXTEEN(sums, 4)
               : "n"(kLeft)
               : "memory");
}
template <int kLeft>
__device__ inline void wait_for_products(float (&sums)[4][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %16;" : FATHOM_SIXTEEN(sums, 0) : "n"(kLeft) : "memory");
}
// sums (64, 64) = a · b, or, if kAdd, sums += a · b: 16 columns of two tiles, `across`.
template <bool kAdd>
__device__ inline void multiply_across(float (&c)[8][4], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
      "%11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "
      "%31}, %32, %33, p, 1, 1, 0, 0;\n}\n"
      : FATHOM_SIXTEEN(c, 0), FATHOM_SIXTEEN(c, 4)
      : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
}
// The same with 32 columns.
template <bool kAdd>
__device__ inline void multiply_across(float (&c)[4][4], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
      "%11, %12, %13, %14, %15}, %16, %17, p, 1, 1, 0, 0;\n}\n"
      : FATHOM_SIXTEEN(c, 0)
      : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
}
// sums (64, 64) += a · b: 16 of a tile's rows `down`.
__device__ inline void add_down(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
      "%11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "
      "%31}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
      : FATHOM_SIXTEEN(c, 0), FATHOM_SIXTEEN(c, 4)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// Shared memory written by ordinary stores is read by products next; a barrier follows.
__device__ inline void show_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// An mbarrier of eight bytes in shared memory: bulk copies arrive at it. One thread prepares them all.
__device__ inline void prepare_arrival(SharedAddress barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
__device__ inline void arrivals_prepared() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
// By the thread that then copies this many bytes.
__device__ inline void expect_bytes(SharedAddress barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// A multiple of 16 bytes, both sides aligned to 16.
__device__ inline void copy_bulk(SharedAddress to, const void* from, uint32_t bytes, SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Until the copies of a phase have arrived; phases 0, 1, 0, …
__device__ inline void wait_for_arrival(SharedAddress barrier, uint32_t phase) {
  asm volatile(
      "{\n.reg .pred p;\nAGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra AGAIN;\n}\n" ::"r"(barrier),
      "r"(phase)
      : "memory");
}
// What comes before computes these values before what comes after: a wait for products that they do not need.
template <int kColumns>
__device__ inline void settle(float (&x)[kColumns][4]) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) asm volatile("" : FATHOM_FOUR(x, n)::"memory");
}

__device__ inline void store_shared(SharedAddress to, uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ inline void store_shared(SharedAddress to, uint4 x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}
// Counts calls up to `most`, then starts again: true for the last one, after everything that the others have
// read before theirs.
__device__ inline bool is_last(SharedAddress counter, uint32_t most) {
  uint32_t before;
  asm volatile("atom.acq_rel.cta.shared::cta.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(counter), "r"(most - 1)
               : "memory");
  return before == most - 1;
}

#undef FATHOM_SIXTEEN
#undef FATHOM_FOUR

#endif

}  // namespace fathom
