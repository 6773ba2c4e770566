// Products of f32 rows with weights of any format, on raw memory and in one thread: what ops/linear splits
// over threads. First prepare() the rows (quantise or round them, once), then multiply() any weight rows with
// them.
#pragma once

#include <cstddef>

#include "base/isa.h"
#include "quant/kernels.h"
#include "tensor/dtype.h"

namespace fathom {

const MatmulKernels& matmul_kernels(Isa isa);

// Rows of activations: (count, k), `stride` elements apart.
struct RowsView {
  const float* data;
  int64_t stride;
  int64_t count;
  int64_t k;
};

// Whether weights of that format multiply faster in fours (fours.h).
bool takes_fours(const MatmulKernels& kernels, DType dtype);

// What a product reads instead of the f32 rows.
enum class Prepared : uint8_t {
  kNothing,    // the rows themselves
  kQuantRow,   // one row in int8
  kQuantRows,  // groups of kTileRows rows in int8
  kBf16Rows,   // groups of kTileRows rows in bf16
};

Prepared prepared_form(const MatmulKernels& kernels, DType weights, int64_t rows);
size_t prepared_bytes(Prepared form, int64_t rows, int64_t k);

// How many pieces can be prepared independently (one: the form is not worth splitting), and pieces [begin,
// end) of them.
int64_t prepared_pieces(Prepared form, int64_t rows);
void prepare(const MatmulKernels& kernels, Prepared form, const RowsView& x, int64_t begin, int64_t end,
             void* prepared);

// out (x.count, weights.columns), rows `out_stride` apart. scratch: multiply_scratch_bytes, 64-byte aligned.
size_t multiply_scratch_bytes(const MatmulKernels& kernels, DType dtype, int64_t rows, int64_t k);
void multiply(const MatmulKernels& kernels, DType dtype, const RowsView& x, const void* prepared,
              const Weights& weights, float* out, int64_t out_stride, void* scratch);

}  // namespace fathom
