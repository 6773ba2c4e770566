// The definition of every kernel, in plain loops: the oracle of the others, and what runs where nothing else
// can.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "quant/block_formats.h"
#include "quant/kernels.h"

namespace fathom {
namespace {

constexpr int kTileColumns = 4;

// A format: how 32 elements are unpacked, how many groups they are, whether it has a minimum.
template <void (*kUnpack)(const uint8_t*, int64_t, IntBlock&), int kGroups_, bool kMin_>
struct Format {
  static constexpr int kGroups = kGroups_;
  static constexpr bool kMin = kMin_;
  static void unpack(const uint8_t* row, int64_t index, IntBlock& out) { kUnpack(row, index, out); }
};
using Q8_0 = Format<unpack_q8_0, 1, false>;
using Q4_0 = Format<unpack_q4_0, 1, false>;
using Q4_1 = Format<unpack_q4_1, 1, true>;
using Q5_0 = Format<unpack_q5_0, 1, false>;
using Q5_1 = Format<unpack_q5_1, 1, true>;
using Q4_K = Format<unpack_q4_k, 1, true>;
using Q5_K = Format<unpack_q5_k, 1, true>;
using Q6_K = Format<unpack_q6_k, 2, false>;

struct Activations {  // 32 elements of one row
  int8_t q[32];
  float scale, sum;
  int32_t minus[2];
};

// The largest magnitude is found among the bits, so that a NaN is never lost: such a block gets a NaN scale
// and its products are NaN. Blocks below 1e-30 are zero (their inverse would overflow).
Activations quantize_block(const float* x) {
  Activations out{};
  uint32_t top = 0;
  for (int i = 0; i < 32; ++i) top = std::max(top, std::bit_cast<uint32_t>(x[i]) & 0x7fffffff);
  const float largest = std::bit_cast<float>(top);
  if (top >= 0x7f800000) {
    out.scale = out.sum = std::bit_cast<float>(0x7fc00000);
    return out;
  }
  if (largest < 1e-30f) return out;
  const float inverse = 127.0f / largest;
  for (int i = 0; i < 32; ++i) {
    out.q[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
    out.minus[i / 16] -= out.q[i];
  }
  out.scale = largest * (1.0f / 127.0f);
  out.sum = out.scale * static_cast<float>(-(out.minus[0] + out.minus[1]));
  return out;
}

void quantize_row(const float* x, int64_t k, const QuantRow& out) {
  for (int64_t b = 0; b < k / 32; ++b) {
    const Activations block = quantize_block(x + 32 * b);
    std::memcpy(out.q + 32 * b, block.q, 32);
    out.scale[b] = block.scale;
    out.sum[b] = block.sum;
    out.minus[2 * b] = block.minus[0];
    out.minus[2 * b + 1] = block.minus[1];
  }
}

template <class F>
float add_block(float acc, const IntBlock& w, const int8_t* q, float scale, float sum) {
  for (int group = 0; group < F::kGroups; ++group) {
    int32_t dot = 0;
    for (int i = 32 / F::kGroups * group; i < 32 / F::kGroups * (group + 1); ++i) dot += w.q[i] * q[i];
    acc = std::fma(static_cast<float>(dot), w.scale[group] * scale, acc);
  }
  return F::kMin ? std::fma(w.min[0], sum, acc) : acc;
}

template <class F>
void dot_row(const QuantRow& x, int64_t k, const Weights& weights, float* out) {
  for (int64_t c = 0; c < weights.columns; ++c) {
    float acc = 0.0f;
    for (int64_t b = 0; b < k / 32; ++b) {
      IntBlock block;
      F::unpack(weights.data + c * weights.stride, b, block);
      acc = add_block<F>(acc, block, x.q + 32 * b, x.scale[b], x.sum[b]);
    }
    out[c] = acc;
  }
}

template <class F>
constexpr int kStreams = 1;

// A record of packed rows: four times 32 bytes, then four scales, then four sums.
void pack_rows(const float* x, int64_t stride, int64_t rows, int64_t k, uint8_t* packed) {
  for (int64_t b = 0; b < k / 32; ++b) {
    uint8_t* record = packed + b * kRowRecord;
    for (int r = 0; r < kTileRows; ++r) {
      const Activations block = r < rows ? quantize_block(x + r * stride + 32 * b) : Activations{};
      std::memcpy(record + 32 * r, block.q, 32);
      std::memcpy(record + 128 + 4 * r, &block.scale, 4);
      std::memcpy(record + 144 + 4 * r, &block.sum, 4);
    }
  }
}

// A record of a tile: one IntBlock per column, its second minimum (never used) left out.
constexpr size_t kColumnBytes = 44;
static_assert(kColumnBytes <= kTileRecordColumn && sizeof(IntBlock) == 48);

template <class F>
void unpack_tile(const Weights& weights, int64_t k, uint8_t* tile) {
  for (int64_t b = 0; b < k / 32; ++b) {
    for (int c = 0; c < kTileColumns; ++c) {
      IntBlock block{};
      if (c < weights.columns) F::unpack(weights.data + c * weights.stride, b, block);
      std::memcpy(tile + (b * kTileColumns + c) * kTileRecordColumn, &block, kColumnBytes);
    }
  }
}

template <class F>
void multiply(const uint8_t* packed, const uint8_t* tile, int64_t k, int64_t rows, int64_t columns,
              float* out, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      float acc = 0.0f;
      for (int64_t b = 0; b < k / 32; ++b) {
        IntBlock block{};
        std::memcpy(&block, tile + (b * kTileColumns + c) * kTileRecordColumn, kColumnBytes);
        const uint8_t* record = packed + b * kRowRecord;
        int8_t q[32];
        float scale, sum;
        std::memcpy(q, record + 32 * r, 32);
        std::memcpy(&scale, record + 128 + 4 * r, 4);
        std::memcpy(&sum, record + 144 + 4 * r, 4);
        acc = add_block<F>(acc, block, q, scale, sum);
      }
      out[r * stride + c] = acc;
    }
  }
}

struct LoadF32 {
  static constexpr int kBytes = 4;
  static float at(const uint8_t* bytes) {
    float value;
    std::memcpy(&value, bytes, 4);
    return value;
  }
};
struct LoadF16 {
  static constexpr int kBytes = 2;
  static float at(const uint8_t* bytes) { return load_f16(bytes); }
};
struct LoadBf16 {
  static constexpr int kBytes = 2;
  static float at(const uint8_t* bytes) {
    uint16_t half;
    std::memcpy(&half, bytes, 2);
    return f32_of_bf16(half);
  }
};

template <class Load>
float dot_float(const float* x, const uint8_t* w, int64_t k) {
  float p[8] = {};
  for (int64_t i = 0; i < k; i += 8) {
    for (int j = 0; j < 8; ++j) {
      const bool inside = i + j < k;
      p[j] = std::fma(inside ? Load::at(w + (i + j) * Load::kBytes) : 0.0f, inside ? x[i + j] : 0.0f, p[j]);
    }
  }
  return ((p[0] + p[4]) + (p[1] + p[5])) + ((p[2] + p[6]) + (p[3] + p[7]));
}

void multiply_f32(const float* x, int64_t x_stride, int64_t rows, int64_t k, const Weights& weights,
                  float* out, int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < weights.columns; ++c) {
      out[r * out_stride + c] = dot_float<LoadF32>(x + r * x_stride, weights.data + c * weights.stride, k);
    }
  }
}

template <class Load>
void dot_rows_float(const float* x, int64_t x_stride, int64_t rows, int64_t k, const Weights& weights,
                    float* out, int64_t out_stride) {
  for (int64_t c = 0; c < weights.columns; ++c) {
    for (int64_t r = 0; r < rows; ++r)
      out[r * out_stride + c] = dot_float<Load>(x + r * x_stride, weights.data + c * weights.stride, k);
  }
}

template <class Load>
void widen(const uint8_t* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = Load::at(in + i * Load::kBytes);
}

}  // namespace

const OneRowKernels kScalarRow = {
    .streams = FATHOM_PER_FORMAT(kStreams),
    .quantize_row = quantize_row,
    .dot_row = FATHOM_PER_FORMAT(dot_row),
};

const TileKernels kScalarTile = {
    .columns = kTileColumns,
    .pack_rows = pack_rows,
    .unpack = FATHOM_PER_FORMAT(unpack_tile),
    .multiply = FATHOM_PER_FORMAT(multiply),
};

const FloatKernels kScalarFloat = {
    .multiply = multiply_f32,
    .dot_rows_f32 = dot_rows_float<LoadF32>,
    .dot_rows_f16 = dot_rows_float<LoadF16>,
    .dot_rows_bf16 = dot_rows_float<LoadBf16>,
    .widen_f16 = widen<LoadF16>,
    .widen_bf16 = widen<LoadBf16>,
};

}  // namespace fathom
