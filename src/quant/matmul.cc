#include "quant/matmul.h"

#include <algorithm>

#include "quant/formats.h"

namespace fathom {
namespace {

// What a strip of unpacked weights may take of the second-level cache.
constexpr int64_t kStripBytes = 256 << 10;

// The same of weights that few rows are multiplied with as they are: long strips are read from memory faster.
constexpr int64_t kFewStripBytes = 768 << 10;

// Up to this many rows, weights are read from memory more slowly than they are multiplied.
constexpr int64_t kFewRows = 16;

int64_t groups_of(int64_t rows) {
  return (rows + kTileRows - 1) / kTileRows;
}

static_assert(kIntFormats + 7 == kDTypes,
              "every type but f32, f16, bf16, i32, u8, q2_k and q3_k is in FATHOM_INT_FORMATS");

bool int_format(DType dtype, IntFormat* format) {
#define FATHOM_CASE(unused, F) \
  case DType::k##F:            \
    *format = kInt##F;         \
    return true;
  switch (dtype) {
    FATHOM_INT_FORMATS(FATHOM_CASE, )
    default:
      return false;
  }
#undef FATHOM_CASE
}

QuantRow quant_row(void* memory, int64_t k) {
  auto* scale = static_cast<float*>(memory);
  float* sum = scale + k / 32;
  auto* minus = reinterpret_cast<int32_t*>(sum + k / 32);
  auto* q = reinterpret_cast<int8_t*>(minus + k / 16);
  return {q, scale, sum, minus, q + k};
}

int64_t group_bytes(Prepared form, int64_t k) {
  return form == Prepared::kBf16Rows ? (k + 7) / 8 * 8 * kTileRows * 2 : k / 32 * kRowRecord;
}

int64_t tile_bytes(const TileKernels& kernels, int64_t k) {
  return k / 32 * kernels.columns * kTileRecordColumn;
}

// Tiles unpacked together: as many as the strip holds, so that each group of rows is read once per strip.
int64_t strip_tiles(const TileKernels& kernels, int64_t k) {
  return std::clamp<int64_t>(kStripBytes / std::max<int64_t>(tile_bytes(kernels, k), 1), 1, 16);
}

// Columns of f32 weights in a strip; a multiple of what the kernels take at once.
int64_t strip_columns(int64_t k) {
  return std::max<int64_t>(kStripBytes / 4 / std::max<int64_t>(k, 1) / 12 * 12, 12);
}

// The weights as `streams` streams. An odd number of rows from one to the next: the same lines of several
// streams should not compete for the same places of a cache. (Two streams of fours do not.)
Weights in_streams(Weights weights, int64_t streams) {
  const int64_t rows = weights.fours ? weights.columns / 4 : weights.columns;
  const int64_t even_share = (rows + streams - 1) / streams;
  weights.step = even_share > 16 && !weights.fours ? even_share | 1 : even_share;
  return weights;
}

Weights part(Weights weights, int64_t begin, int64_t columns) {
  weights.data += begin * weights.stride;
  weights.columns = std::min(columns, weights.columns - begin);
  return weights;
}

void multiply_tiles(const MatmulKernels& all, IntFormat format, const RowsView& x, const uint8_t* packed,
                    const Weights& weights, float* out, int64_t out_stride, uint8_t* scratch) {
  const TileKernels& kernels = *all.tile;
  const auto unpack = weights.fours ? all.fours->unpack[format] : kernels.unpack[format];
  const int64_t width = kernels.columns, tile = tile_bytes(kernels, x.k),
                strip = strip_tiles(kernels, x.k) * width;
  for (int64_t first = 0; first < weights.columns; first += strip) {
    const int64_t end = std::min(first + strip, weights.columns);
    for (int64_t c = first; c < end; c += width) {
      unpack(part(weights, c, width), x.k, scratch + (c - first) / width * tile);
    }
    for (int64_t r = 0; r < x.count; r += kTileRows) {
      const uint8_t* group = packed + r / kTileRows * group_bytes(Prepared::kQuantRows, x.k);
      const int64_t rows = std::min<int64_t>(kTileRows, x.count - r);
      for (int64_t c = first; c < end; c += width) {
        kernels.multiply[format](group, scratch + (c - first) / width * tile, x.k, rows,
                                 std::min(width, end - c), out + r * out_stride + c, out_stride);
      }
    }
  }
}

// The same for few rows, where reading the weights is what takes time: a tile's columns are those of as many
// streams.
void multiply_streams(const MatmulKernels& all, IntFormat format, const RowsView& x, const uint8_t* packed,
                      const Weights& weights, float* out, int64_t out_stride, uint8_t* tile) {
  const TileKernels& kernels = *all.tile;
  const int64_t step = in_streams(weights, kernels.columns).step;
  float result[kTileRows * kMaxTileColumns];
  for (int64_t c = 0; c < step && c < weights.columns; ++c) {
    const int64_t columns = (weights.columns - c + step - 1) / step;
    kernels.unpack[format]({weights.data + c * weights.stride, weights.stride * step, columns}, x.k, tile);
    for (int64_t r = 0; r < x.count; r += kTileRows) {
      const uint8_t* group = packed + r / kTileRows * group_bytes(Prepared::kQuantRows, x.k);
      const int64_t rows = std::min<int64_t>(kTileRows, x.count - r);
      kernels.multiply[format](group, tile, x.k, rows, columns, result, kMaxTileColumns);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j)
          out[(r + i) * out_stride + c + j * step] = result[i * kMaxTileColumns + j];
      }
    }
  }
}

// Weights as they are, eight rows at a time; of more rows than that, a strip of weights at a time, so that
// the next eight find it in a cache.
void multiply_few(const MatmulKernels& kernels, IntFormat format, const RowsView& x, const uint8_t* packed,
                  const Weights& weights, float* out, int64_t out_stride) {
  constexpr int64_t kRows = 8;
  const StreamCounts& streams = weights.fours ? kernels.fours->streams : kernels.few->streams[format];
  const auto dot_rows = weights.fours ? kernels.fours->dot_rows[format] : kernels.few->dot_rows[format];
  const int64_t strip =
      x.count <= kRows ? weights.columns : std::max<int64_t>(kFewStripBytes / weights.stride / 4 * 4, 64);
  for (int64_t first = 0; first < weights.columns; first += strip) {
    for (int64_t r = 0; r < x.count; r += kRows) {
      const int64_t rows = std::min(kRows, x.count - r);
      const Weights now =
          in_streams(part(weights, first, strip), rows <= kTileRows ? streams.up_to_four_rows : streams.more);
      dot_rows(packed + r / kTileRows * group_bytes(Prepared::kQuantRows, x.k), rows, x.k, now,
               out + r * out_stride + first, out_stride);
    }
  }
}

// f32 weights in place; others widened to f32, a strip at a time.
void multiply_float(const FloatKernels& kernels, DType dtype, const RowsView& x, const Weights& weights,
                    float* out, int64_t out_stride, float* scratch) {
  const int64_t strip = strip_columns(x.k);
  for (int64_t first = 0; first < weights.columns; first += strip) {
    Weights now = part(weights, first, strip);
    if (dtype != DType::kF32) {
      for (int64_t c = 0; c < now.columns; ++c) {
        const uint8_t* row = now.data + c * now.stride;
        float* to = scratch + c * x.k;
        if (dtype == DType::kF16)
          kernels.widen_f16(row, x.k, to);
        else if (dtype == DType::kBF16)
          kernels.widen_bf16(row, x.k, to);
        else
          decode_row(dtype, row, to, x.k);
      }
      now = {reinterpret_cast<const uint8_t*>(scratch), 4 * x.k, now.columns};
    }
    kernels.multiply(x.data, x.stride, x.count, x.k, now, out + first, out_stride);
  }
}

}  // namespace

bool takes_fours(const MatmulKernels& kernels, DType dtype) {
  IntFormat format;
  return kernels.fours && int_format(dtype, &format) && kernels.fours->dot_row[format];
}

Prepared prepared_form(const MatmulKernels& kernels, DType weights, int64_t rows) {
  IntFormat format;
  if (int_format(weights, &format)) return rows == 1 ? Prepared::kQuantRow : Prepared::kQuantRows;
  return weights == DType::kBF16 && kernels.bf16 ? Prepared::kBf16Rows : Prepared::kNothing;
}

size_t prepared_bytes(Prepared form, int64_t rows, int64_t k) {
  switch (form) {
    case Prepared::kNothing:
      return 0;
    case Prepared::kQuantRow:
      return static_cast<size_t>(3 * k + k / 32 * 16);
    default:
      return static_cast<size_t>(groups_of(rows) * group_bytes(form, k));
  }
}

int64_t prepared_pieces(Prepared form, int64_t rows) {
  if (form == Prepared::kNothing) return 0;
  return form == Prepared::kQuantRow ? 1 : groups_of(rows);
}

void prepare(const MatmulKernels& kernels, Prepared form, const RowsView& x, int64_t begin, int64_t end,
             void* prepared) {
  if (form == Prepared::kQuantRow && begin < end)
    kernels.row->quantize_row(x.data, x.k, quant_row(prepared, x.k));
  if (form == Prepared::kNothing || form == Prepared::kQuantRow) return;
  const auto pack = form == Prepared::kBf16Rows ? kernels.bf16->pack_rows : kernels.tile->pack_rows;
  for (int64_t group = begin; group < end; ++group) {
    const int64_t row = group * kTileRows;
    pack(x.data + row * x.stride, x.stride, std::min<int64_t>(kTileRows, x.count - row), x.k,
         static_cast<uint8_t*>(prepared) + group * group_bytes(form, x.k));
  }
}

size_t multiply_scratch_bytes(const MatmulKernels& kernels, DType dtype, int64_t rows, int64_t k) {
  const Prepared form = prepared_form(kernels, dtype, rows);
  if (form == Prepared::kQuantRows)
    return static_cast<size_t>(strip_tiles(*kernels.tile, k) * tile_bytes(*kernels.tile, k));
  if (form != Prepared::kNothing || dtype == DType::kF32) return 0;
  if (rows <= kFewRows && (dtype == DType::kF16 || dtype == DType::kBF16)) return 0;
  return static_cast<size_t>(4 * k * strip_columns(k));
}

void multiply(const MatmulKernels& kernels, DType dtype, const RowsView& x, const void* prepared,
              const Weights& weights, float* out, int64_t out_stride, void* scratch) {
  if (x.count == 0 || weights.columns == 0) return;
  const auto* packed = static_cast<const uint8_t*>(prepared);
  IntFormat format;
  if (int_format(dtype, &format) && x.count == 1) {
    const QuantRow row = quant_row(const_cast<void*>(prepared), x.k);
    if (weights.fours)
      kernels.fours->dot_row[format](row, x.k, in_streams(weights, kernels.fours->streams.up_to_four_rows),
                                     out);
    else
      kernels.row->dot_row[format](row, x.k, in_streams(weights, kernels.row->streams[format]), out);
  } else if (int_format(dtype, &format)) {
    if (kernels.few && x.count <= kFewRows)
      return multiply_few(kernels, format, x, packed, weights, out, out_stride);
    const auto run = x.count <= kFewRows ? multiply_streams : multiply_tiles;
    run(kernels, format, x, packed, weights, out, out_stride, static_cast<uint8_t*>(scratch));
  } else if (dtype == DType::kBF16 && kernels.bf16) {
    kernels.bf16->multiply(packed, x.count, x.k, in_streams(weights, 8), out, out_stride);
  } else if (x.count <= kFewRows && !is_block_format(dtype)) {
    const auto dot_rows = dtype == DType::kF32   ? kernels.real->dot_rows_f32
                          : dtype == DType::kF16 ? kernels.real->dot_rows_f16
                                                 : kernels.real->dot_rows_bf16;
    dot_rows(x.data, x.stride, x.count, x.k, in_streams(weights, x.count <= 2 ? 4 : 3), out, out_stride);
  } else {
    multiply_float(*kernels.real, dtype, x, weights, out, out_stride, static_cast<float*>(scratch));
  }
}

}  // namespace fathom
