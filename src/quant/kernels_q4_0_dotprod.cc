// q4_0 with one row of activations. What bounds it is how many instructions the core takes in a cycle, and
// that depends on their order: this one, found by a search, takes 7.9 cycles for 32 elements of four weight
// rows on a Neoverse-V1 (87 instructions for eight rows, 49 of them vector arithmetic); the same instructions
// in the order a compiler chooses take 10.
#include "quant/kernels.h"
#include "quant/neon_formats.h"

namespace fathom {
namespace {

struct Factors {  // of a block of activations
  float scale;
  int32_t start;  // kMagicBits - 8 * their sum: the weights are stored plus 8
};
constexpr int64_t kMostBlocks = 256;  // whose factors are kept: longer rows go in pieces

// Adds the products of eight weight rows of `blocks` (at least one) blocks to `out`. Rows 0-3 and 4-7 take
// turns; while the four dot products of one half are made, those of the half before are summed, scaled and
// added, and the next weights loaded (after the last block: the last again). Offsets count from the rows'
// ends up to 0.
//   v0-v7    32 weights of each row          v16-v23  dot products of each row, in four parts
//   v8-v11   their high nibbles              v24 v25  scales of rows 0-3 and 4-7, first as f16
//   v12 v13  32 activations                  v26 v27  the results
//   v14 v15  their factors                   v28 v29  a mask, and kMagicBits
void dot_eight(const int8_t* q, const Factors* factors, int64_t blocks, const uint8_t* const* ends,
               float* out) {
  int64_t scale_at = -18 * blocks, at = scale_at + 2;
  uint64_t t0, t1, t2, t3;
  asm volatile(
      // nothing of rows 4-7 is to be added yet
      "movi v20.4s, #0\n"
      "movi v21.4s, #0\n"
      "movi v22.4s, #0\n"
      "movi v23.4s, #0\n"
      "movi v25.4s, #0\n"
      "movi v14.4s, #0\n"
      "dup v15.4s, %w[magic]\n"
      "dup v29.4s, %w[magic]\n"
      "movi v28.16b, #15\n"
      "ldp q26, q27, [%[out]]\n"
      "ldr q0, [%[r0], %[at]]\n"
      "ldr q1, [%[r1], %[at]]\n"
      "ldr q2, [%[r2], %[at]]\n"
      "ldr q3, [%[r3], %[at]]\n"
      "1:\n"  // both turns, mixed
      "movi v19.4s, #0\n"
      "ldp q12, q13, [%[q]], #32\n"
      "ldr q6, [%[r6], %[at]]\n"
      "ushr v8.16b, v0.16b, #4\n"
      "ldr q4, [%[r4], %[at]]\n"
      "movi v16.4s, #0\n"
      "ldrh %w[t0], [%[r0], %[scale_at]]\n"
      "ushr v9.16b, v1.16b, #4\n"
      "ushr v10.16b, v2.16b, #4\n"
      "ldrh %w[t1], [%[r1], %[scale_at]]\n"
      "and v1.16b, v1.16b, v28.16b\n"
      "ushr v11.16b, v3.16b, #4\n"
      "movi v18.4s, #0\n"
      "sdot v16.4s, v8.16b, v13.16b\n"
      "movi v17.4s, #0\n"
      "sdot v19.4s, v11.16b, v13.16b\n"
      "sdot v17.4s, v9.16b, v13.16b\n"
      "ldr q5, [%[r5], %[at]]\n"
      "sdot v18.4s, v10.16b, v13.16b\n"
      "and v0.16b, v0.16b, v28.16b\n"
      "ldrh %w[t2], [%[r2], %[scale_at]]\n"
      "ldrh %w[t3], [%[r3], %[scale_at]]\n"
      "sdot v17.4s, v1.16b, v12.16b\n"
      "and v2.16b, v2.16b, v28.16b\n"
      "and v3.16b, v3.16b, v28.16b\n"
      "sdot v18.4s, v2.16b, v12.16b\n"
      "orr %[t0], %[t0], %[t1], lsl #16\n"
      "addp v20.4s, v20.4s, v21.4s\n"
      "sdot v19.4s, v3.16b, v12.16b\n"
      "orr %[t2], %[t2], %[t3], lsl #16\n"
      "ldr q7, [%[r7], %[at]]\n"
      "sdot v16.4s, v0.16b, v12.16b\n"
      "addp v22.4s, v22.4s, v23.4s\n"
      "fcvtl v25.4s, v25.4h\n"
      "fmul v25.4s, v25.4s, v14.s[0]\n"
      "addp v20.4s, v20.4s, v22.4s\n"
      "orr %[t0], %[t0], %[t2], lsl #32\n"
      "add v20.4s, v20.4s, v15.4s\n"
      "fsub v20.4s, v20.4s, v29.4s\n"
      "fmla v27.4s, v20.4s, v25.4s\n"
      "movi v21.4s, #0\n"
      "movi v20.4s, #0\n"
      "fmov d24, %[t0]\n"
      "ldr d14, [%[factors]], #8\n"
      "adds %[at], %[at], #18\n"
      "movi v23.4s, #0\n"
      "ushr v10.16b, v6.16b, #4\n"
      "csel %[at], %[last_at], %[at], pl\n"
      "ushr v8.16b, v4.16b, #4\n"
      "movi v22.4s, #0\n"
      "ushr v11.16b, v7.16b, #4\n"
      "sdot v20.4s, v8.16b, v13.16b\n"
      "dup v15.4s, v14.s[1]\n"
      "ushr v9.16b, v5.16b, #4\n"
      "sdot v21.4s, v9.16b, v13.16b\n"
      "sdot v22.4s, v10.16b, v13.16b\n"
      "ldr q0, [%[r0], %[at]]\n"
      "sdot v23.4s, v11.16b, v13.16b\n"
      "ldrh %w[t0], [%[r4], %[scale_at]]\n"
      "and v4.16b, v4.16b, v28.16b\n"
      "and v5.16b, v5.16b, v28.16b\n"
      "sdot v21.4s, v5.16b, v12.16b\n"
      "and v6.16b, v6.16b, v28.16b\n"
      "ldrh %w[t1], [%[r5], %[scale_at]]\n"
      "and v7.16b, v7.16b, v28.16b\n"
      "ldrh %w[t2], [%[r6], %[scale_at]]\n"
      "ldr q1, [%[r1], %[at]]\n"
      "sdot v20.4s, v4.16b, v12.16b\n"
      "sdot v22.4s, v6.16b, v12.16b\n"
      "ldr q2, [%[r2], %[at]]\n"
      "ldrh %w[t3], [%[r7], %[scale_at]]\n"
      "sdot v23.4s, v7.16b, v12.16b\n"
      "orr %[t0], %[t0], %[t1], lsl #16\n"
      "addp v18.4s, v18.4s, v19.4s\n"
      "orr %[t2], %[t2], %[t3], lsl #16\n"
      "addp v16.4s, v16.4s, v17.4s\n"
      "ldr q3, [%[r3], %[at]]\n"
      "addp v16.4s, v16.4s, v18.4s\n"
      "fcvtl v24.4s, v24.4h\n"
      "add v16.4s, v16.4s, v15.4s\n"
      "add %[scale_at], %[scale_at], #18\n"
      "orr %[t0], %[t0], %[t2], lsl #32\n"
      "fmul v24.4s, v24.4s, v14.s[0]\n"
      "fsub v16.4s, v16.4s, v29.4s\n"
      "fmov d25, %[t0]\n"
      "fmla v26.4s, v16.4s, v24.4s\n"
      "b.mi 1b\n"
      // rows 4-7 of the last block are added
      "addp v20.4s, v20.4s, v21.4s\n"
      "addp v22.4s, v22.4s, v23.4s\n"
      "fcvtl v25.4s, v25.4h\n"
      "addp v20.4s, v20.4s, v22.4s\n"
      "fmul v25.4s, v25.4s, v14.s[0]\n"
      "add v20.4s, v20.4s, v15.4s\n"
      "fsub v20.4s, v20.4s, v29.4s\n"
      "fmla v27.4s, v20.4s, v25.4s\n"
      "stp q26, q27, [%[out]]\n"
      : [q] "+&r"(q), [factors] "+&r"(factors), [at] "+&r"(at), [scale_at] "+&r"(scale_at), [t0] "=&r"(t0),
        [t1] "=&r"(t1), [t2] "=&r"(t2), [t3] "=&r"(t3)
      : [r0] "r"(ends[0]), [r1] "r"(ends[1]), [r2] "r"(ends[2]), [r3] "r"(ends[3]), [r4] "r"(ends[4]),
        [r5] "r"(ends[5]), [r6] "r"(ends[6]), [r7] "r"(ends[7]), [last_at] "r"(int64_t{-16}),
        [magic] "r"(kMagicBits), [out] "r"(out)
      : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12",
        "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26",
        "v27", "v28", "v29");
}

}  // namespace

void dot_row_q4_0_dotprod(const QuantRow& x, int64_t k, const Weights& weights, float* out) {
  if (k < 32) {
    for (int64_t c = 0; c < weights.columns; ++c) out[c] = 0.0f;
  }
  for (int64_t begin = 0; begin < k / 32; begin += kMostBlocks) {
    const int64_t blocks = k / 32 - begin < kMostBlocks ? k / 32 - begin : kMostBlocks;
    Factors factors[kMostBlocks];
    for (int64_t i = 0; i < blocks; ++i) {
      const int32_t* minus = x.minus + 2 * (begin + i);
      factors[i] = {x.scale[begin + i], kMagicBits + 8 * (minus[0] + minus[1])};
    }
    for (int64_t c = 0; c < weights.step; ++c) {
      const uint8_t* ends[8];
      float values[8] = {};
      for (int64_t i = 0; i < 8; ++i) {
        const int64_t column = c + i * weights.step, last = weights.columns - 1;
        ends[i] = weights.data + (column < last ? column : last) * weights.stride + 18 * (begin + blocks);
        if (begin > 0 && column <= last) values[i] = out[column];
      }
      dot_eight(x.q + 32 * begin, factors, blocks, ends, values);
      for (int64_t i = 0; i < 8 && c + i * weights.step < weights.columns; ++i)
        out[c + i * weights.step] = values[i];
    }
  }
}

}  // namespace fathom
