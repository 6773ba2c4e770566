// The inner loops of products of two matrices, as plain functions per instruction set: what training
// multiplies with. Files built with extra instruction-set flags include this header: plain data and pointers
// only.
//
// C (m, n) = Σ over k of A (m, k) · B (k, n). Both factors are cut into panels: some lines (rows of A,
// columns of B) by all of k, in the type and layout that the instruction wants. Panels are padded with zeros
// to whole lines and whole steps of k. Sums are f32, along k in ascending order, whatever the tile they are
// in. With f32 panels they are chains of fused multiply-adds: the same bits on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fathom {

// A factor in memory, f32 or bf16: element (line, k) is at line · line_step + k · k_step. One of the steps
// is 1.
struct GemmFactor {
  const void* data;
  bool bf16;
  bool round;  // f32 panels: round f32 elements to bf16 (to nearest even) first
  int64_t line_step, k_step;
};

// rows × columns of C: c = alpha · Σ + beta · c. beta = 0 does not read c.
struct GemmTile {
  float* c;
  int64_t stride, rows, columns;
  float alpha, beta;
};

struct GemmKernels {
  int64_t rows, columns;  // of a whole tile: lines of a panel of A, of B
  int64_t step;           // a panel's k is a multiple of it
  int64_t element;        // bytes of a panel's: 4 (f32) or 2 (bf16)
  // lines ≤ a panel's, k elements each, into a panel of (lines of a panel) · (k rounded up to `step`)
  // elements.
  void (*pack_a)(const GemmFactor& from, int64_t lines, int64_t k, void* panel);
  void (*pack_b)(const GemmFactor& from, int64_t lines, int64_t k, void* panel);
  // k: a multiple of `step`.
  void (*multiply)(const void* a, const void* b, int64_t k, const GemmTile& tile);
};

extern const GemmKernels kGemmF32Scalar, kGemmF32Dotprod, kGemmF32Avx2, kGemmF32Avx512;
extern const GemmKernels kGemmBf16I8mm, kGemmBf16Avx512, kGemmBf16Amx;

}  // namespace fathom
