// What the kernels on tensor cores share: packed rows, and products of a warp with their tiles in shared
// memory. A warp has kParts times 16 rows of the tile that its block keeps (queries, or keys) and goes
// through the other side's tiles; the scores that it computes are, rounded, a factor of its next product
// without leaving its registers.
#pragma once

#include "ops/attention/self_attention_cuda.cuh"
#include "ops/kernels/bf16.cuh"
#include "ops/kernels/warp.cuh"

namespace fathom {

inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kInf = __builtin_huge_valf();
inline constexpr int kOtherTile = 64;  // rows of the other side in shared memory at once; two such tiles

struct MmaCall {
  SelfAttentionShape shape;
  SelfAttentionPlan plan;
  int64_t query_places, key_places;
  // Packed: bf16 (heads or KV heads, places, dim), zeros from the count to the next multiple of kPlaceTile.
  // The 16-byte chunks of a row are exchanged by its number: chunk c of row r lies at c ^ (r % 8). So tiles
  // are copied to shared memory as they are, and eight rows' chunks at one place lie in different banks
  // there.
  const Bf16 *q = nullptr, *k = nullptr, *v = nullptr, *d = nullptr;  // q, d: backward
  // (heads, query places), backward: log Σ exp in units of log 2, and Σ d · out.
  const float *log_sums = nullptr, *dot_sums = nullptr;

  MmaCall(const SelfAttentionCall& call, const SelfAttentionPlan& with)
      : shape(call),
        plan(with),
        query_places(places_for(with.queries.kept.capacity)),
        key_places(places_for(with.keys.kept.capacity)) {}
};

inline Tensor packed_rows(Context& ctx, int64_t heads, int64_t places, int64_t dim) {
  return Tensor::empty(ctx, DType::kBF16, {heads, places, dim});
}

// Rows of a tensor (capacity, heads, dim), f32 or bf16, that may stand apart. Null: not wanted.
template <class Element>
struct HeadRows {
  Element* data = nullptr;
  int64_t step = 0;
  HeadRows() = default;
  explicit HeadRows(const Tensor& t)
      : data(t ? const_cast<Element*>(t.data<Element>()) : nullptr), step(t ? t.stride(0) : 0) {}
  __device__ Element* at(int64_t row, int head, int dim) const { return data + row * step + head * dim; }
};

template <class Element>
struct ForwardCall : MmaCall {
  using MmaCall::MmaCall;
  HeadRows<Element> q_rows, result;
  Bf16* packed_q = nullptr;       // null: not wanted
  float* new_log_sums = nullptr;  // null: not wanted
};

template <class Element>
struct BackwardCall : MmaCall {
  using MmaCall::MmaCall;
  HeadRows<Element> d_rows, out, dq, dk, dv;
  Bf16* packed_d = nullptr;       // where d is packed
  float* new_dot_sums = nullptr;  // and dot_sums come from
  float* bias = nullptr;          // null: not wanted
};

// With wgmma, heads of 64 (self_attention_wgmma_cuda.cu, self_attention_wgmma_gradient_cuda.cu).
template <class Element>
void attend_by_warpgroups(CudaBackend dev, const ForwardCall<Element>& call);
template <class Element>
void attend_by_warpgroups(CudaBackend dev, const BackwardCall<Element>& call);

inline bool has_wgmma(CudaBackend dev) {
  int major = 0;
  cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, dev.handle.device),
             "cudaDeviceGetAttribute");
  return major == 9;
}

// Thread blocks that share a multiprocessor, by what their registers allow.
template <int kDim, int kParts>
inline constexpr int kBlocksAtOnce = kDim == 128 ? 1 : 4 - kParts;

// Two and eight neighbouring elements of a row as bf16.
__device__ inline uint32_t load_pair(const float* from) {
  const float2 x = *reinterpret_cast<const float2*>(from);
  return pack_bf16(x.x, x.y);
}
__device__ inline uint4 load_eight(const float* from) {
  const float4 low = *reinterpret_cast<const float4*>(from),
               high = *reinterpret_cast<const float4*>(from + 4);
  return make_uint4(pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y),
                    pack_bf16(high.z, high.w));
}

__device__ inline uint32_t load_pair(const Bf16* from) {
  return *reinterpret_cast<const uint32_t*>(from);
}
__device__ inline uint4 load_eight(const Bf16* from) {
  return *reinterpret_cast<const uint4*>(from);
}

// Where a column of a row lies in packed rows.
__device__ inline int packed_column(int64_t row, int column) {
  return column ^ static_cast<int>(row % 8) * 8;
}

// Packing: a thread takes eight neighbouring elements of a row's head, a row after the other.
inline constexpr int kPackThreads = 256;
struct Eight {
  int64_t place;
  int head, column;
  __device__ Eight(uint32_t unit, int heads, int dim) {
    const uint32_t per_head = static_cast<uint32_t>(dim) / 8,
                   per_row = per_head * static_cast<uint32_t>(heads);
    place = unit / per_row;
    head = static_cast<int>(unit % per_row / per_head);
    column = static_cast<int>(unit % per_head) * 8;
  }
};

__device__ inline int lane_id() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ inline int warp_id() {
  return static_cast<int>(threadIdx.x) / kWarp;
}

// Packed rows of kDim bf16 in shared memory.
template <int kDim>
struct Rows {
  static constexpr uint32_t kPitch = 2 * kDim;  // bytes
  static constexpr int kChunks = kDim / 8;

  // kRows rows, by the whole block.
  template <int kRows, int kThreads>
  __device__ static void copy(SharedAddress to, const Bf16* from) {
    static_assert(kRows * kChunks % kThreads == 0);
#pragma unroll
    for (uint32_t i = threadIdx.x; i < kRows * kChunks; i += kThreads) copy_async(to + i * 16, from + i * 8);
  }

  // Where a lane reads its part of 16 rows × 16 columns, columns 16 · step and up. Tiles begin at multiples
  // of kPitch: then one exclusive or does it.
  struct Lane {
    uint32_t offset;
    __device__ Lane(int row, int upper_half)
        : offset(static_cast<uint32_t>(row) * kPitch + static_cast<uint32_t>((upper_half ^ (row & 7)) << 4)) {
    }
    __device__ SharedAddress at(SharedAddress tile, int first_row, int step) const {
      return ((tile + offset) ^ static_cast<uint32_t>(step * 32)) + static_cast<uint32_t>(first_row) * kPitch;
    }
  };
  // As factor A; or, transposed, as B of a product along the rows.
  __device__ static Lane lane_down() {
    return Lane(lane_id() & 15, lane_id() >> 4);
  }
  // As B of a product along the columns: registers 0 and 1 for the first eight rows, 2 and 3 for the others.
  __device__ static Lane lane_across() {
    return Lane((lane_id() >> 4) * 8 + (lane_id() & 7), (lane_id() >> 3) & 1);
  }
};

// A warp's rows as factor A, in registers.
template <int kDim, int kParts>
struct HeldRows {
  static constexpr int kUnroll = kDim / 16;
  uint32_t at[kParts][kDim / 16][4];

  // element(row, column) -> two packed elements
  template <class Fn>
  __device__ void fill(Fn element) {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int m = 0; m < kParts; ++m) {
#pragma unroll
      for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          at[m][step][i] = element(m * 16 + g + i % 2 * 8, step * 16 + 2 * t + i / 2 * 8);
      }
    }
  }
  // From packed rows.
  __device__ void load(const Bf16* rows) {
    fill([&](int row, int column) {
      return *reinterpret_cast<const uint32_t*>(rows + row * kDim + packed_column(row, column));
    });
  }
  __device__ void part(int m, int step, uint32_t (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = at[m][step][i];
  }
};

// The same, read from shared memory when they are needed.
template <int kDim, int kParts>
struct SharedRows {
  static constexpr int kUnroll = 2;  // more of them read ahead would not fit the registers
  SharedAddress tile;                // the warp's first row
  __device__ void part(int m, int step, uint32_t (&a)[4]) const {
    load_matrices(a, Rows<kDim>::lane_down().at(tile, m * 16, step));
  }
};

template <int kParts, int kColumns>
__device__ void clear(float (&c)[kParts][kColumns][4]) {
#pragma unroll
  for (int m = 0; m < kParts; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0.0f;
    }
  }
}

// scores (kParts · 16, kCount) += a · the rows from `first` on of a tile
template <int kDim, int kParts, int kCount, class A>
__device__ void multiply_rows(const A& a, SharedAddress tile, int first,
                              float (&scores)[kParts][kCount / 8][4]) {
  const auto lane = Rows<kDim>::lane_across();
  const SharedAddress start = tile + static_cast<uint32_t>(first) * Rows<kDim>::kPitch;
#pragma unroll A::kUnroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t mine[kParts][4];
#pragma unroll
    for (int m = 0; m < kParts; ++m) a.part(m, step, mine[m]);
#pragma unroll
    for (int n = 0; n < kCount / 8; n += 2) {
      uint32_t b[4];
      load_matrices(b, lane.at(start, n * 8, step));
#pragma unroll
      for (int m = 0; m < kParts; ++m) {
        multiply_add(scores[m][n], mine[m], b[0], b[1]);
        multiply_add(scores[m][n + 1], mine[m], b[2], b[3]);
      }
    }
  }
}

// Columns 16 · step and up of the scores as factor A.
template <int kColumns>
__device__ void pack_scores(const float (&scores)[kColumns][4], int step, uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    a[2 * i] = pack_bf16(scores[2 * step + i][0], scores[2 * step + i][1]);
    a[2 * i + 1] = pack_bf16(scores[2 * step + i][2], scores[2 * step + i][3]);
  }
}

// sums (kParts · 16, kDim) += weights (kParts · 16, 16) · 16 rows of a tile from `first` on
template <int kDim, int kParts>
__device__ void add_weighted(const uint32_t (&weights)[kParts][4], SharedAddress tile, int first,
                             float (&sums)[kParts][kDim / 8][4]) {
  const auto lane = Rows<kDim>::lane_down();
  const SharedAddress start = tile + static_cast<uint32_t>(first) * Rows<kDim>::kPitch;
#pragma unroll
  for (int n = 0; n < kDim / 8; n += 2) {
    uint32_t b[4];
    load_transposed(b, lane.at(start, 0, n / 2));
#pragma unroll
    for (int m = 0; m < kParts; ++m) {
      multiply_add(sums[m][n], weights[m], b[0], b[1]);
      multiply_add(sums[m][n + 1], weights[m], b[2], b[3]);
    }
  }
}

// Sums and maxima over the four lanes that share a row of scores.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

// How far a warp's rows reach into the other side, by the spans of its first and its last row.
struct Reach {
  Span first, last;
  __device__ bool any(int32_t begin, int32_t end) const { return last.end > begin && first.begin < end; }
  __device__ bool all(int32_t begin, int32_t end) const { return last.begin <= begin && first.end >= end; }
};

// −inf where a column, a place of the other side from `first` on, is outside the row's span.
template <int kParts, int kColumns>
__device__ void hide(const Span* spans, int32_t first, float (&s)[kParts][kColumns][4]) {
  const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
  for (int m = 0; m < kParts; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Span span = spans[m * 16 + half * 8 + g];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!span.has(first + n * 8 + 2 * t + i)) s[m][n][2 * half + i] = -kInf;
        }
      }
    }
  }
}

__device__ inline void store_pair(float* to, float first, float second) {
  *reinterpret_cast<float2*>(to) = make_float2(first, second);
}
__device__ inline void store_pair(Bf16* to, float first, float second) {
  *reinterpret_cast<uint32_t*>(to) = pack_bf16(first, second);
}

// A head's part of a row, factor · sums: `half` 0 for row g, 1 for row g + 8.
template <int kDim, class Element>
__device__ void store_row(const float (&sums)[kDim / 8][4], int half, float factor, Element* to) {
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n)
    store_pair(to + n * 8 + 2 * (lane_id() % 4), factor * sums[n][2 * half], factor * sums[n][2 * half + 1]);
}

}  // namespace fathom
