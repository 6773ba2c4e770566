// q8_0 in fours (fours.h) with three or four rows of activations. The order of the instructions was found by
// a search: 10.8 cycles for 32 elements of four weight rows on a Neoverse-V1 (31 instructions of vector
// arithmetic); as a compiler orders them, 12.4, which is more than memory takes to bring the weights.
#include "quant/neon_fours.h"

namespace fathom {
namespace {

// Two fours of `blocks` (at least one) blocks, with a record of pack_rows for each block.
//   v0-v7    sums: rows 0 1 and 2 3, each with columns 0 1 and 2 3 of the one four, then of the other
//   v8-v15   the results, likewise; stored to out (8, 4)
//   v16-v27  activations and weights; later scales
//   v28 v29  the activations' scales          v30 v31  the weights' scales
void dot_eight(const uint8_t* x, const uint8_t* r0, const uint8_t* r1, int64_t blocks, float* out) {
  asm volatile(
      "movi v8.4s, #0\n"
      "movi v9.4s, #0\n"
      "movi v10.4s, #0\n"
      "movi v11.4s, #0\n"
      "movi v12.4s, #0\n"
      "movi v13.4s, #0\n"
      "movi v14.4s, #0\n"
      "movi v15.4s, #0\n"
      "1:\n"
      "movi v3.4s, #0\n"
      "ldp q16, q17, [%[x], #0]\n"
      "ldr q19, [%[r0], #16]\n"
      "movi v5.4s, #0\n"
      "movi v4.4s, #0\n"
      "movi v6.4s, #0\n"
      "movi v2.4s, #0\n"
      "smmla v2.4s, v16.16b, v19.16b\n"
      "movi v0.4s, #0\n"
      "ldr q18, [%[r0], #0]\n"
      "smmla v0.4s, v16.16b, v18.16b\n"
      "ldr q20, [%[r1], #0]\n"
      "ldr q21, [%[r1], #16]\n"
      "smmla v3.4s, v17.16b, v19.16b\n"
      "movi v1.4s, #0\n"
      "smmla v4.4s, v16.16b, v20.16b\n"
      "smmla v6.4s, v16.16b, v21.16b\n"
      "movi v7.4s, #0\n"
      "smmla v1.4s, v17.16b, v18.16b\n"
      "smmla v5.4s, v17.16b, v20.16b\n"
      "smmla v7.4s, v17.16b, v21.16b\n"
      "ldp q22, q23, [%[x], #32]\n"
      "ldr q25, [%[r0], #48]\n"
      "ldr q26, [%[r1], #32]\n"
      "ldr q27, [%[r1], #48]\n"
      "ldr q24, [%[r0], #32]\n"
      "ldp q16, q17, [%[x], #64]\n"
      "smmla v2.4s, v22.16b, v25.16b\n"
      "smmla v6.4s, v22.16b, v27.16b\n"
      "smmla v0.4s, v22.16b, v24.16b\n"
      "smmla v3.4s, v23.16b, v25.16b\n"
      "ldr q18, [%[r0], #64]\n"
      "smmla v7.4s, v23.16b, v27.16b\n"
      "ldr q27, [%[r1], #112]\n"
      "ldr q19, [%[r0], #80]\n"
      "ldr q20, [%[r1], #64]\n"
      "smmla v3.4s, v17.16b, v19.16b\n"
      "ldr q21, [%[r1], #80]\n"
      "smmla v6.4s, v16.16b, v21.16b\n"
      "smmla v0.4s, v16.16b, v18.16b\n"
      "smmla v1.4s, v23.16b, v24.16b\n"
      "smmla v2.4s, v16.16b, v19.16b\n"
      "smmla v5.4s, v23.16b, v26.16b\n"
      "smmla v4.4s, v22.16b, v26.16b\n"
      "ldr q26, [%[r1], #96]\n"
      "smmla v4.4s, v16.16b, v20.16b\n"
      "smmla v1.4s, v17.16b, v18.16b\n"
      "ldr d30, [%[r0], #128]\n"
      "ldp q22, q23, [%[x], #96]\n"
      "ldr q25, [%[r0], #112]\n"
      "smmla v2.4s, v22.16b, v25.16b\n"
      "ldr q24, [%[r0], #96]\n"
      "smmla v1.4s, v23.16b, v24.16b\n"
      "scvtf v1.4s, v1.4s\n"
      "smmla v7.4s, v17.16b, v21.16b\n"
      "prfm pldl1keep, [%[r0], #1088]\n"
      "smmla v6.4s, v22.16b, v27.16b\n"
      "smmla v5.4s, v17.16b, v20.16b\n"
      "smmla v3.4s, v23.16b, v25.16b\n"
      "prfm pldl1keep, [%[r1], #1024]\n"
      "prfm pldl1keep, [%[r0], #1024]\n"
      "ldp q28, q29, [%[x], #128]\n"
      "smmla v7.4s, v23.16b, v27.16b\n"
      "fcvtl v30.4s, v30.4h\n"
      "dup v31.2d, v30.d[1]\n"
      "dup v30.2d, v30.d[0]\n"
      "smmla v0.4s, v22.16b, v24.16b\n"
      "scvtf v0.4s, v0.4s\n"
      "fmul v17.4s, v30.4s, v29.4s\n"
      "fmul v16.4s, v30.4s, v28.4s\n"
      "fmla v8.4s, v0.4s, v16.4s\n"
      "smmla v4.4s, v22.16b, v26.16b\n"
      "fmla v9.4s, v1.4s, v17.4s\n"
      "ldr d22, [%[r1], #128]\n"
      "fcvtl v22.4s, v22.4h\n"
      "fmul v16.4s, v31.4s, v28.4s\n"
      "scvtf v2.4s, v2.4s\n"
      "fmla v10.4s, v2.4s, v16.4s\n"
      "scvtf v3.4s, v3.4s\n"
      "fmul v17.4s, v31.4s, v29.4s\n"
      "fmla v11.4s, v3.4s, v17.4s\n"
      "smmla v5.4s, v23.16b, v26.16b\n"
      "dup v23.2d, v22.d[1]\n"
      "scvtf v4.4s, v4.4s\n"
      "dup v22.2d, v22.d[0]\n"
      "fmul v18.4s, v22.4s, v28.4s\n"
      "fmla v12.4s, v4.4s, v18.4s\n"
      "fmul v18.4s, v23.4s, v28.4s\n"
      "add %[x], %[x], #192\n"
      "fmul v19.4s, v22.4s, v29.4s\n"
      "scvtf v5.4s, v5.4s\n"
      "scvtf v6.4s, v6.4s\n"
      "prfm pldl1keep, [%[r1], #1088]\n"
      "add %[r0], %[r0], #136\n"
      "fmla v14.4s, v6.4s, v18.4s\n"
      "scvtf v7.4s, v7.4s\n"
      "fmla v13.4s, v5.4s, v19.4s\n"
      "subs %[n], %[n], #1\n"
      "fmul v19.4s, v23.4s, v29.4s\n"
      "fmla v15.4s, v7.4s, v19.4s\n"
      "add %[r1], %[r1], #136\n"
      "b.ne 1b\n"
      "stp q8, q9, [%[out]]\n"
      "stp q10, q11, [%[out], #32]\n"
      "stp q12, q13, [%[out], #64]\n"
      "stp q14, q15, [%[out], #96]\n"
      : [x] "+&r"(x), [r0] "+&r"(r0), [r1] "+&r"(r1), [n] "+&r"(blocks)
      : [out] "r"(out)
      : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12",
        "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26",
        "v27", "v28", "v29", "v30", "v31");
}

}  // namespace

void dot_four_rows_q8_0_fours_i8mm(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights,
                                   float* out, int64_t stride) {
  for (int64_t first = 0; first < weights.step; ++first) {
    const Streams<2> at(weights, first);
    float values[2][2][2][4];  // four, pair of columns, pair of rows, then row by column
    dot_eight(packed, at.record[0], at.record[1], k / 32, values[0][0][0]);
    for (int s = 0; s < 2 && at.four[s] < at.fours; ++s) {
      float32x4_t acc[2][2];  // pair of rows, pair of columns
      for (int i = 0; i < 4; ++i) acc[i % 2][i / 2] = vld1q_f32(values[s][i / 2][i % 2]);
      store_four(acc, rows, out + 4 * at.four[s], stride);
    }
  }
}

}  // namespace fathom
