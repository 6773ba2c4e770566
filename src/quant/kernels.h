// The inner loops of products, as plain functions per instruction set. Files built with extra instruction-set
// flags include this header and nothing else of ours that has code with external linkage: plain data and
// pointers only.
//
// One order of accumulation per weight format, the same on every instruction set and for every number of
// rows:
//   block formats   for each group of consecutive elements, ascending:  acc = fma(float(Σ qw·qx), dw * dx,
//   acc), and
//                   then, for formats with a minimum,                   acc = fma(m, dx * Σ qx, acc)
//                   Integer sums are exact, so their order is free. A group is 32 elements; 16 for q6_k.
//   f32, f16, bf16  eight partial sums, p[j] = fma(w[k], x[k], p[j]) for k = j, j + 8, ..., the last eight
//   padded with
//                   zeros; then ((p0+p4)+(p1+p5)) + ((p2+p6)+(p3+p7)).
//   bf16 on i8mm    bfmmla, four elements at a time, ascending.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fathom {

// The formats whose products run on integers, the one list of them: FORMAT(what, Q8_0), FORMAT(what, Q4_0), …
// Every table below is filled from it, on every instruction set, and so is the mapping from DType::kQ8_0.
// A format that is added here needs a type of that name (Q8_0) in kernels_scalar.cc, neon_formats.h and
// avx_formats.h, and FourQ8_0 in neon_fours.h: without one of them the tables do not compile.
// Macros, because a template's code could be compiled with an instruction set's flags and used by others.
#define FATHOM_INT_FORMATS(FORMAT, what) \
  FORMAT(what, Q8_0)                     \
  FORMAT(what, Q4_0)                     \
  FORMAT(what, Q4_1)                     \
  FORMAT(what, Q5_0)                     \
  FORMAT(what, Q5_1)                     \
  FORMAT(what, Q4_K)                     \
  FORMAT(what, Q5_K)                     \
  FORMAT(what, Q6_K)

#define FATHOM_INT_FORMAT_NAME(prefix, F) prefix##F,
#define FATHOM_INT_FORMAT_ENTRY(what, F) what<F>,
#define FATHOM_INT_FORMAT_FOURS(what, F) what<Four##F>,

// Tables: {what<Q8_0>, what<Q4_0>, …} and {what<FourQ8_0>, what<FourQ4_0>, …}.
#define FATHOM_PER_FORMAT(what) \
  { FATHOM_INT_FORMATS(FATHOM_INT_FORMAT_ENTRY, what) }
#define FATHOM_PER_FOURS(what) \
  { FATHOM_INT_FORMATS(FATHOM_INT_FORMAT_FOURS, what) }

enum IntFormat : int { FATHOM_INT_FORMATS(FATHOM_INT_FORMAT_NAME, kInt) kIntFormats };

// A row of activations as int8: x[i] ≈ scale[i / 32] * q[i].
struct QuantRow {
  int8_t* q;       // (k)
  float* scale;    // (k / 32); NaN where the block holds one or an infinity
  float* sum;      // (k / 32): scale * Σ q
  int32_t* minus;  // (k / 16): -Σ q of 16 elements, for formats that store q + an offset
  int8_t* twice;   // (2 k): each 8 elements of q twice, for weights in fours; filled by kDotprodRow
};

inline constexpr int kTileRows = 4;  // activation rows in a packed group
inline constexpr int kRowRecord =
    192;  // bytes of a packed group's 32 elements; the layout is the kernels' own
inline constexpr int kTileRecordColumn = 48;  // bytes of a column's 32 elements in an unpacked tile, likewise
inline constexpr int kMaxTileColumns = 32;

// Weight rows as they are, `stride` bytes apart (in fours: on average); each is an output column. A
// product with few rows reads some of them (its kernel's number of streams) together, `step` rows apart: j, j
// + step, j + 2 step, ... for every j < step. Four long streams are read from memory at twice the rate of
// four neighbouring rows, which end before a hardware prefetcher has understood them.
struct Weights {
  const uint8_t* data;
  int64_t stride;
  int64_t columns;
  int64_t step = 1;
  bool fours = false;  // rows in fours (fours.h): `columns` is a multiple of four, `step` counts fours
};

// Block formats, one row: quantise it, multiply with the weights in place.
struct OneRowKernels {
  int streams[kIntFormats];  // weight rows read together: see Weights
  void (*quantize_row)(const float* x, int64_t k, const QuantRow& out);
  void (*dot_row[kIntFormats])(const QuantRow& x, int64_t k, const Weights& weights, float* out);
};

// Block formats, many rows: up to kTileRows rows of x, `stride` elements apart, into k / 32 records; up to
// `columns` weight rows into k / 32 records of columns * kTileRecordColumn bytes; then the product, out
// (rows, columns) with rows `stride` elements apart.
struct TileKernels {
  int columns;
  void (*pack_rows)(const float* x, int64_t stride, int64_t rows, int64_t k, uint8_t* packed);
  void (*unpack[kIntFormats])(const Weights& weights, int64_t k, uint8_t* tile);
  void (*multiply[kIntFormats])(const uint8_t* packed, const uint8_t* tile, int64_t k, int64_t rows,
                                int64_t columns, float* out, int64_t stride);
};

struct StreamCounts {  // see Weights
  int up_to_four_rows, more;
};

// Block formats, up to eight rows packed by pack_rows: weights in place.
struct FewRowsKernels {
  StreamCounts streams[kIntFormats];
  void (*dot_rows[kIntFormats])(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights,
                                float* out, int64_t stride);
};

// The same three with weights in fours; null for formats that have no such layout.
struct FoursKernels {
  StreamCounts streams;
  void (*dot_row[kIntFormats])(const QuantRow& x, int64_t k, const Weights& weights, float* out);
  void (*dot_rows[kIntFormats])(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights,
                                float* out, int64_t stride);
  void (*unpack[kIntFormats])(const Weights& weights, int64_t k, uint8_t* tile);
};

// f32 activations, any number of rows and columns. multiply: x (rows, k) with f32 weights, for many rows.
// dot_rows: for few, weights in place, in the order of multiply on the widened weights; of streams it reads
// four for one or two rows, three for more.
struct FloatKernels {
  void (*multiply)(const float* x, int64_t x_stride, int64_t rows, int64_t k, const Weights& weights,
                   float* out, int64_t out_stride);
  void (*dot_rows_f32)(const float* x, int64_t x_stride, int64_t rows, int64_t k, const Weights& weights,
                       float* out, int64_t out_stride);
  void (*dot_rows_f16)(const float* x, int64_t x_stride, int64_t rows, int64_t k, const Weights& weights,
                       float* out, int64_t out_stride);
  void (*dot_rows_bf16)(const float* x, int64_t x_stride, int64_t rows, int64_t k, const Weights& weights,
                        float* out, int64_t out_stride);
  void (*widen_f16)(const uint8_t* in, int64_t n, float* out);
  void (*widen_bf16)(const uint8_t* in, int64_t n, float* out);
};

// bf16 weights in place, activations rounded to bf16. `packed` is ceil(k / 8) * 8 * kTileRows * 2 bytes for
// every kTileRows rows.
struct Bf16Kernels {
  void (*pack_rows)(const float* x, int64_t stride, int64_t rows, int64_t k, uint8_t* packed);
  void (*multiply)(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights, float* out,
                   int64_t stride);
};

// kDotprodRow's for q4_0, eight streams, and for the formats with blocks of 256, four.
void dot_row_q4_0_dotprod(const QuantRow& x, int64_t k, const Weights& weights, float* out);
void dot_row_q4_k_dotprod(const QuantRow& x, int64_t k, const Weights& weights, float* out);
void dot_row_q5_k_dotprod(const QuantRow& x, int64_t k, const Weights& weights, float* out);
void dot_row_q6_k_dotprod(const QuantRow& x, int64_t k, const Weights& weights, float* out);

// kI8mmFours's for q4_0, and for three or four rows with q8_0.
void dot_row_q4_0_fours_i8mm(const QuantRow& x, int64_t k, const Weights& weights, float* out);
void dot_four_rows_q8_0_fours_i8mm(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights,
                                   float* out, int64_t stride);

extern const OneRowKernels kScalarRow, kDotprodRow, kAvx2Row;
extern const TileKernels kScalarTile, kDotprodTile, kI8mmTile, kAvx2Tile, kAvx512Tile;
extern const FewRowsKernels kI8mmFewRows, kAvx2FewRows, kAvx512FewRows;
extern const FoursKernels kI8mmFours;
extern const FloatKernels kScalarFloat, kDotprodFloat, kAvx2Float;
extern const Bf16Kernels kI8mmBf16;

// What one instruction set uses.
struct MatmulKernels {
  const OneRowKernels* row;
  const TileKernels* tile;
  const FewRowsKernels* few;  // null: few rows go as many do
  const FoursKernels* fours;  // null: weights are never in fours
  const FloatKernels* real;
  const Bf16Kernels* bf16;  // null: bf16 goes as f16 does
};

}  // namespace fathom
