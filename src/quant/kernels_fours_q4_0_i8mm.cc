// q4_0 in fours (fours.h) with one row of activations. As of the format's other kernel, the order of the
// instructions is what counts, and was found by a search: 7.0 cycles for 32 elements of four weight rows on a
// Neoverse-V1 (21 instructions of vector arithmetic); as a compiler orders them, 8.3.
#include "quant/kernels.h"
#include "quant/neon_fours.h"

namespace fathom {
namespace {

// Adds the products of two fours of 2 * `turns` (at least one turn) blocks to out (8).
//   v0-v7    16 bytes of nibbles each        v16-v23  activations of the two blocks, each 8 twice
//   v8-v11   low nibbles, times 16           v24 v25  their scales
//   v12-v15  dot products, in parts          v26 v27  the weights' scales
//   v28 v29  the results                     v31      a mask of the high nibbles; loaded, because a register
//                                                     that was loaded is read by more units in a cycle than
//                                                     one that was computed long ago
void dot_eight(const int8_t* x, const float* scale, const uint8_t* r0, const uint8_t* r1, int64_t turns,
               float* out) {
  static constexpr uint64_t kMask[2] = {0xf0f0f0f0f0f0f0f0, 0xf0f0f0f0f0f0f0f0};
  asm volatile(
      "ldr q31, [%[mask]]\n"
      "ldp q28, q29, [%[out]]\n"
      "1:\n"
      "ldur q1, [%[r0], #16]\n"
      "shl v9.16b, v1.16b, #4\n"
      "ldur q2, [%[r0], #32]\n"
      "ldr q0, [%[r0], #0]\n"
      "shl v8.16b, v0.16b, #4\n"
      "ldur q3, [%[r0], #48]\n"
      "ldp q16, q17, [%[x], #0]\n"
      "movi v12.4s, #0\n"
      "ldp q18, q19, [%[x], #32]\n"
      "movi v13.4s, #0\n"
      "and v0.16b, v0.16b, v31.16b\n"
      "sdot v12.4s, v8.16b, v16.16b\n"
      "sdot v12.4s, v0.16b, v18.16b\n"
      "sdot v13.4s, v9.16b, v16.16b\n"
      "shl v8.16b, v2.16b, #4\n"
      "ldr s24, [%[xs], #0]\n"
      "and v2.16b, v2.16b, v31.16b\n"
      "movi v15.4s, #0\n"
      "ldur d26, [%[r0], #64]\n"
      "movi v14.4s, #0\n"
      "and v1.16b, v1.16b, v31.16b\n"
      "ldur q6, [%[r1], #32]\n"
      "sdot v13.4s, v1.16b, v18.16b\n"
      "shl v9.16b, v3.16b, #4\n"
      "and v3.16b, v3.16b, v31.16b\n"
      "ldur q5, [%[r1], #16]\n"
      "ldr q4, [%[r1], #0]\n"
      "sdot v13.4s, v9.16b, v17.16b\n"
      "sdot v13.4s, v3.16b, v19.16b\n"
      "fcvtl v26.4s, v26.4h\n"
      "sdot v12.4s, v8.16b, v17.16b\n"
      "sdot v12.4s, v2.16b, v19.16b\n"
      "addp v12.4s, v12.4s, v13.4s\n"
      "shl v10.16b, v4.16b, #4\n"
      "ldur q0, [%[r0], #72]\n"
      "sdot v14.4s, v10.16b, v16.16b\n"
      "shl v11.16b, v5.16b, #4\n"
      "sdot v15.4s, v11.16b, v16.16b\n"
      "ldur q7, [%[r1], #48]\n"
      "and v5.16b, v5.16b, v31.16b\n"
      "scvtf v12.4s, v12.4s, #4\n"
      "sdot v15.4s, v5.16b, v18.16b\n"
      "shl v10.16b, v6.16b, #4\n"
      "and v4.16b, v4.16b, v31.16b\n"
      "ldur q1, [%[r0], #88]\n"
      "sdot v14.4s, v4.16b, v18.16b\n"
      "fmul v26.4s, v26.4s, v24.s[0]\n"
      "shl v11.16b, v7.16b, #4\n"
      "and v6.16b, v6.16b, v31.16b\n"
      "and v7.16b, v7.16b, v31.16b\n"
      "ldur d27, [%[r1], #64]\n"
      "ldur q2, [%[r0], #104]\n"
      "ldp q20, q21, [%[x], #64]\n"
      "fcvtl v27.4s, v27.4h\n"
      "sdot v15.4s, v11.16b, v17.16b\n"
      "sdot v14.4s, v10.16b, v17.16b\n"
      "sdot v14.4s, v6.16b, v19.16b\n"
      "fmul v27.4s, v27.4s, v24.s[0]\n"
      "sdot v15.4s, v7.16b, v19.16b\n"
      "addp v14.4s, v14.4s, v15.4s\n"
      "shl v8.16b, v0.16b, #4\n"
      "scvtf v14.4s, v14.4s, #4\n"
      "ldur q4, [%[r1], #72]\n"
      "fmla v28.4s, v12.4s, v26.4s\n"
      "ldur d26, [%[r0], #136]\n"
      "ldr s25, [%[xs], #4]\n"
      "movi v13.4s, #0\n"
      "movi v12.4s, #0\n"
      "sdot v12.4s, v8.16b, v20.16b\n"
      "shl v8.16b, v2.16b, #4\n"
      "ldur q3, [%[r0], #120]\n"
      "and v0.16b, v0.16b, v31.16b\n"
      "ldp q22, q23, [%[x], #96]\n"
      "shl v9.16b, v1.16b, #4\n"
      "and v1.16b, v1.16b, v31.16b\n"
      "sdot v12.4s, v0.16b, v22.16b\n"
      "sdot v13.4s, v9.16b, v20.16b\n"
      "sdot v13.4s, v1.16b, v22.16b\n"
      "shl v9.16b, v3.16b, #4\n"
      "and v2.16b, v2.16b, v31.16b\n"
      "sdot v12.4s, v8.16b, v21.16b\n"
      "sdot v12.4s, v2.16b, v23.16b\n"
      "sdot v13.4s, v9.16b, v21.16b\n"
      "and v3.16b, v3.16b, v31.16b\n"
      "sdot v13.4s, v3.16b, v23.16b\n"
      "fcvtl v26.4s, v26.4h\n"
      "ldur q7, [%[r1], #120]\n"
      "addp v12.4s, v12.4s, v13.4s\n"
      "ldur q6, [%[r1], #104]\n"
      "ldur q5, [%[r1], #88]\n"
      "fmla v29.4s, v14.4s, v27.4s\n"
      "shl v10.16b, v4.16b, #4\n"
      "movi v14.4s, #0\n"
      "fmul v26.4s, v26.4s, v25.s[0]\n"
      "and v4.16b, v4.16b, v31.16b\n"
      "sdot v14.4s, v10.16b, v20.16b\n"
      "movi v15.4s, #0\n"
      "shl v11.16b, v5.16b, #4\n"
      "shl v10.16b, v6.16b, #4\n"
      "sdot v14.4s, v4.16b, v22.16b\n"
      "scvtf v12.4s, v12.4s, #4\n"
      "sdot v15.4s, v11.16b, v20.16b\n"
      "and v5.16b, v5.16b, v31.16b\n"
      "sdot v15.4s, v5.16b, v22.16b\n"
      "and v6.16b, v6.16b, v31.16b\n"
      "shl v11.16b, v7.16b, #4\n"
      "sdot v15.4s, v11.16b, v21.16b\n"
      "sdot v14.4s, v10.16b, v21.16b\n"
      "sdot v14.4s, v6.16b, v23.16b\n"
      "and v7.16b, v7.16b, v31.16b\n"
      "sdot v15.4s, v7.16b, v23.16b\n"
      "addp v14.4s, v14.4s, v15.4s\n"
      "scvtf v14.4s, v14.4s, #4\n"
      "add %[r0], %[r0], #144\n"
      "ldur d27, [%[r1], #136]\n"
      "fmla v28.4s, v12.4s, v26.4s\n"
      "fcvtl v27.4s, v27.4h\n"
      "subs %[n], %[n], #1\n"
      "add %[r1], %[r1], #144\n"
      "add %[xs], %[xs], #8\n"
      "add %[x], %[x], #128\n"
      "fmul v27.4s, v27.4s, v25.s[0]\n"
      "fmla v29.4s, v14.4s, v27.4s\n"
      "b.ne 1b\n"
      "stp q28, q29, [%[out]]\n"
      : [x] "+&r"(x), [xs] "+&r"(scale), [r0] "+&r"(r0), [r1] "+&r"(r1), [n] "+&r"(turns)
      : [out] "r"(out), [mask] "r"(kMask)
      : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12",
        "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26",
        "v27", "v28", "v29", "v31");
}

}  // namespace

void dot_row_q4_0_fours_i8mm(const QuantRow& x, int64_t k, const Weights& weights, float* out) {
  const int64_t turns = k / 64;
  for (int64_t first = 0; first < weights.step; ++first) {
    const Streams<2> at(weights, first);
    float values[2][4] = {};
    if (turns > 0) dot_eight(x.twice, x.scale, at.record[0], at.record[1], turns, values[0]);
    for (int s = 0; s < 2 && at.four[s] < at.fours; ++s) {
      float32x4_t acc = vld1q_f32(values[s]);
      if (k % 64 != 0)
        acc = add_block<FourQ4_0>(acc, at.record[s] + 2 * turns * FourQ4_0::kBytes, x, 2 * turns);
      vst1q_f32(out + 4 * at.four[s], acc);
    }
  }
}

}  // namespace fathom
