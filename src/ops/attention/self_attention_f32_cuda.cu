// The exact way. 16 × 16 threads; a thread has the rows r, r + 16, … of a tile, against the other tile's rows
// c, c + 16, … in products of rows, and against dimensions 4c … 4c + 3, 4c + 64 … in weighted sums of rows.
#include "ops/attention/self_attention_cuda.cuh"
#include "ops/kernels/warp.cuh"

namespace fathom {
namespace {

constexpr int kSide = 16, kThreads = kSide * kSide;
constexpr float kInfinity = __builtin_huge_valf();

struct F32Call {
  SelfAttentionShape shape;
  SelfAttentionPlan plan;
  int64_t query_places, key_places;
  const float *q, *k, *v;                         // (capacity, heads or KV heads, dim)
  float* out = nullptr;                           // (capacity, heads, dim)
  float* log_sums = nullptr;                      // (heads, places); forward: null where not wanted
  const float *d = nullptr, *dot_sums = nullptr;  // backward: as out, as log_sums
  float *dq = nullptr, *dk = nullptr, *dv = nullptr, *bias = nullptr;  // null: not wanted
};

// Tiles of kTile rows with up to kDim dimensions, in shared memory.
template <int kDim, int kTile>
struct Tiles {
  static constexpr int kRows = kTile / kSide;  // of a thread
  static constexpr int kSums = kDim / kSide;   // dimensions of a thread
  static constexpr int kPitch = kDim + 4, kWeightPitch = kTile + 4;
  static constexpr int kRowFloats = kTile * kPitch, kWeightFloats = kTile * kWeightPitch;
  static constexpr size_t bytes(int row_tiles) {
    return sizeof(float) * static_cast<size_t>(row_tiles * kRowFloats + kWeightFloats);
  }
  using Products = float[kRows][kRows];
  using Sums = float[kRows][kSums];

  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / kSide + i * kSide; }
  __device__ static int column(int j) { return static_cast<int>(threadIdx.x) % kSide + j * kSide; }

  // The rows at the places [first, end), one head of them; zeros up to the tile's end.
  __device__ static void load(const float* from, const PlanSide& side, int64_t first, int64_t end, int heads,
                              int head, int dim, float* to) {
    const int quads = dim / 4;
    for (int e = static_cast<int>(threadIdx.x); e < kTile * quads; e += kThreads) {
      const int r = e / quads, d = e % quads * 4;
      float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (first + r < end) {
        const int64_t row = side.rows[first + r];
        value = *reinterpret_cast<const float4*>(from + (row * heads + head) * dim + d);
      }
      *reinterpret_cast<float4*>(to + r * kPitch + d) = value;
    }
  }

  // a's rows times b's
  __device__ static void multiply(const float* a, const float* b, int dim, Products& out) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) out[i][j] = 0.0f;
    }
#pragma unroll 2
    for (int d = 0; d < dim; d += 4) {
      float4 x[kRows], y[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        x[i] = *reinterpret_cast<const float4*>(a + row(i) * kPitch + d);
        y[i] = *reinterpret_cast<const float4*>(b + column(i) * kPitch + d);
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
          out[i][j] = fmaf(x[i].x, y[j].x, out[i][j]);
          out[i][j] = fmaf(x[i].y, y[j].y, out[i][j]);
          out[i][j] = fmaf(x[i].z, y[j].z, out[i][j]);
          out[i][j] = fmaf(x[i].w, y[j].w, out[i][j]);
        }
      }
    }
  }

  __device__ static void store_weights(const Products& from, float* weights) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) weights[row(i) * kWeightPitch + column(j)] = from[i][j];
    }
  }

  // sums += weights · rows
  __device__ static void weigh(const float* weights, const float* rows, Sums& sums) {
    const int d = column(0) * 4;
#pragma unroll 1
    for (int j = 0; j < kTile; j += 4) {
      float w[kRows][4];
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        *reinterpret_cast<float4*>(w[i]) =
            *reinterpret_cast<const float4*>(weights + row(i) * kWeightPitch + j);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int c = 0; c < kSums; c += 4) {
          const float4 x = *reinterpret_cast<const float4*>(rows + (j + e) * kPitch + c * kSide + d);
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            sums[i][c] = fmaf(w[i][e], x.x, sums[i][c]);
            sums[i][c + 1] = fmaf(w[i][e], x.y, sums[i][c + 1]);
            sums[i][c + 2] = fmaf(w[i][e], x.z, sums[i][c + 2]);
            sums[i][c + 3] = fmaf(w[i][e], x.w, sums[i][c + 3]);
          }
        }
      }
    }
  }

  // factor · sums[i] into one head of the row.
  __device__ static void store(const float (&sums)[kSums], float factor, int dim, float* to) {
#pragma unroll
    for (int c = 0; c < kSums; c += 4) {
      const int d = column(0) * 4 + c * kSide;
      if (d < dim)
        *reinterpret_cast<float4*>(to + d) =
            make_float4(factor * sums[c], factor * sums[c + 1], factor * sums[c + 2], factor * sums[c + 3]);
    }
  }
};

// Over the 16 threads that share rows.
__device__ inline float row_sum(float value) {
  for (int step = kSide / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
__device__ inline float row_max(float value) {
  for (int step = kSide / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

struct Logit {
  float value, slope;  // slope: d value / d (scale · product)
};
__device__ inline Logit logit_of(const SelfAttentionShape& shape, float product, float bias) {
  const float x = product * shape.scale;
  if (shape.soft_cap <= 0) return {x + bias, 1.0f};
  const float t = tanhf(x / shape.soft_cap);
  return {shape.soft_cap * t + bias, 1.0f - t * t};
}

// The tile of rows that a block takes, and its head.
struct TileWork {
  int head;
  int64_t first, count;  // count: of the places that are there
  __device__ TileWork(const PlanSide& side, int heads, int tile)
      : head(static_cast<int>(blockIdx.x) % heads),
        first(static_cast<int64_t>(blockIdx.x) / heads * tile),
        count(side.kept.count()) {}
  // What the tile's rows see, or are seen by.
  __device__ Span span(const PlanSide& side, int tile) const {
    return {side.spans[first].begin, side.span_up_to(first + tile - 1, count).end};
  }
};

template <int kDim, int kTile>
__global__ void __launch_bounds__(kThreads) attend(F32Call call) {
  using T = Tiles<kDim, kTile>;
  extern __shared__ __align__(16) float memory[];
  float *queries = memory, *rows = queries + T::kRowFloats, *weights = rows + T::kRowFloats;
  const SelfAttentionShape& shape = call.shape;
  const PlanSide &side = call.plan.queries, &keys = call.plan.keys;
  const TileWork work(side, shape.heads, kTile);
  if (work.first >= work.count) return;
  const int kv_head = work.head / shape.group;
  T::load(call.q, side, work.first, work.count, shape.heads, work.head, shape.dim, queries);
  float most[T::kRows], total[T::kRows];
  typename T::Sums sums = {};
#pragma unroll
  for (int i = 0; i < T::kRows; ++i) most[i] = -kInfinity, total[i] = 0.0f;

  const Span seen = work.span(side, kTile);
  for (int32_t first = seen.begin; first < seen.end; first += kTile) {
    __syncthreads();  // the tile before is read
    T::load(call.k, keys, first, seen.end, shape.kv_heads, kv_head, shape.dim, rows);
    __syncthreads();
    typename T::Products p;
    T::multiply(queries, rows, shape.dim, p);
    float correction[T::kRows];
#pragma unroll
    for (int i = 0; i < T::kRows; ++i) {
      const Span span = side.span_up_to(work.first + T::row(i), work.count);
      float top = most[i];
#pragma unroll
      for (int j = 0; j < T::kRows; ++j) {
        const int32_t key = first + T::column(j);
        const float bias = call.plan.key_bias && span.has(key) ? call.plan.key_bias[key] : 0.0f;
        p[i][j] = span.has(key) ? logit_of(shape, p[i][j], bias).value : -kInfinity;
        top = fmaxf(top, p[i][j]);
      }
      top = row_max(top);
      const float base = top == -kInfinity ? 0.0f : top;
      correction[i] = expf(most[i] - base);
      most[i] = top;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < T::kRows; ++j) {
        p[i][j] = expf(p[i][j] - base);
        sum += p[i][j];
      }
      total[i] = fmaf(total[i], correction[i], sum);
    }
    T::store_weights(p, weights);
    __syncthreads();
    T::load(call.v, keys, first, seen.end, shape.kv_heads, kv_head, shape.dim, rows);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < T::kRows; ++i) {
#pragma unroll
      for (int c = 0; c < T::kSums; ++c) sums[i][c] *= correction[i];
    }
    T::weigh(weights, rows, sums);
  }

#pragma unroll
  for (int i = 0; i < T::kRows; ++i) {
    const int64_t place = work.first + T::row(i);
    const float sum = row_sum(total[i]);
    if (place >= work.count) continue;
    const int64_t row = side.rows[place];
    T::store(sums[i], sum > 0 ? 1.0f / sum : 0.0f, shape.dim,
             call.out + (row * shape.heads + work.head) * shape.dim);
    if (call.log_sums && T::column(0) == 0)
      call.log_sums[work.head * call.query_places + place] = sum > 0 ? most[i] + logf(sum) : kInfinity;
  }
}

// sums (heads, places) = Σ d · out over a head's dimensions, a warp for each.
__global__ void multiply_rows(F32Call call, float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, heads = call.shape.heads, dim = call.shape.dim;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int64_t place = unit / heads, head = unit % heads;
  if (place >= call.plan.queries.kept.count()) return;
  const int64_t at = (call.plan.queries.rows[place] * heads + head) * dim;
  float sum = 0.0f;
  for (int d = lane; d < dim; d += kWarp) sum = fmaf(call.d[at + d], call.out[at + d], sum);
  sum = warp_sum(sum);
  if (lane == 0) sums[head * call.query_places + place] = sum;
}

template <int kDim, int kTile>
__global__ void __launch_bounds__(kThreads) attend_dq(F32Call call) {
  using T = Tiles<kDim, kTile>;
  extern __shared__ __align__(16) float memory[];
  float *queries = memory, *d = queries + T::kRowFloats, *rows = d + T::kRowFloats,
        *weights = rows + T::kRowFloats;
  const SelfAttentionShape& shape = call.shape;
  const PlanSide &side = call.plan.queries, &keys = call.plan.keys;
  const TileWork work(side, shape.heads, kTile);
  if (work.first >= work.count) return;
  const int kv_head = work.head / shape.group;
  T::load(call.q, side, work.first, work.count, shape.heads, work.head, shape.dim, queries);
  T::load(call.d, side, work.first, work.count, shape.heads, work.head, shape.dim, d);
  typename T::Sums sums = {};

  const Span seen = work.span(side, kTile);
  for (int32_t first = seen.begin; first < seen.end; first += kTile) {
    __syncthreads();  // the tile before is read
    T::load(call.v, keys, first, seen.end, shape.kv_heads, kv_head, shape.dim, rows);
    __syncthreads();
    typename T::Products dp, p;
    T::multiply(d, rows, shape.dim, dp);
    __syncthreads();
    T::load(call.k, keys, first, seen.end, shape.kv_heads, kv_head, shape.dim, rows);
    __syncthreads();
    T::multiply(queries, rows, shape.dim, p);
#pragma unroll
    for (int i = 0; i < T::kRows; ++i) {
      const int64_t place = work.first + T::row(i), at = work.head * call.query_places + place;
      const Span span = side.span_up_to(place, work.count);
      const bool there = place < work.count;
      const float log_sum = there ? call.log_sums[at] : kInfinity, dot = there ? call.dot_sums[at] : 0.0f;
#pragma unroll
      for (int j = 0; j < T::kRows; ++j) {
        const int32_t key = first + T::column(j);
        const bool visible = span.has(key);
        const float bias = call.plan.key_bias && visible ? call.plan.key_bias[key] : 0.0f;
        const Logit logit = logit_of(shape, p[i][j], bias);
        p[i][j] = visible ? expf(logit.value - log_sum) * (dp[i][j] - dot) * logit.slope : 0.0f;
      }
    }
    T::store_weights(p, weights);
    __syncthreads();
    T::weigh(weights, rows, sums);
  }

#pragma unroll
  for (int i = 0; i < T::kRows; ++i) {
    const int64_t place = work.first + T::row(i);
    if (place < work.count)
      T::store(sums[i], shape.scale, shape.dim,
               call.dq + (side.rows[place] * shape.heads + work.head) * shape.dim);
  }
}

template <int kDim, int kTile>
__global__ void __launch_bounds__(kThreads) attend_dkv(F32Call call) {
  using T = Tiles<kDim, kTile>;
  extern __shared__ __align__(16) float memory[];
  float *keys = memory, *values = keys + T::kRowFloats, *queries = values + T::kRowFloats,
        *d = queries + T::kRowFloats, *weights = d + T::kRowFloats;
  const SelfAttentionShape& shape = call.shape;
  const PlanSide &side = call.plan.keys, &others = call.plan.queries;
  const TileWork work(side, shape.kv_heads, kTile);
  if (work.first >= work.count) return;
  T::load(call.k, side, work.first, work.count, shape.kv_heads, work.head, shape.dim, keys);
  T::load(call.v, side, work.first, work.count, shape.kv_heads, work.head, shape.dim, values);
  typename T::Sums dk = {}, dv = {};
  float d_bias[T::kRows] = {};

  const Span seen = work.span(side, kTile);
  for (int head = work.head * shape.group; head < (work.head + 1) * shape.group; ++head) {
    const int64_t at = head * call.query_places;
    for (int32_t first = seen.begin; first < seen.end; first += kTile) {
      __syncthreads();  // the tile before is read
      T::load(call.q, others, first, seen.end, shape.heads, head, shape.dim, queries);
      T::load(call.d, others, first, seen.end, shape.heads, head, shape.dim, d);
      __syncthreads();
      typename T::Products p, ds, dp;
      T::multiply(keys, queries, shape.dim, p);
#pragma unroll
      for (int i = 0; i < T::kRows; ++i) {
        const int64_t place = work.first + T::row(i);
        const Span span = side.span_up_to(place, work.count);
        const float bias = call.plan.key_bias && place < work.count ? call.plan.key_bias[place] : 0.0f;
#pragma unroll
        for (int j = 0; j < T::kRows; ++j) {
          const int32_t query = first + T::column(j);
          const Logit logit = logit_of(shape, p[i][j], bias);
          p[i][j] = span.has(query) ? expf(logit.value - call.log_sums[at + query]) : 0.0f;
          ds[i][j] = logit.slope;
        }
      }
      T::store_weights(p, weights);
      __syncthreads();
      T::weigh(weights, d, dv);
      if (!call.dk && !call.bias) continue;
      T::multiply(values, d, shape.dim, dp);
#pragma unroll
      for (int i = 0; i < T::kRows; ++i) {
#pragma unroll
        for (int j = 0; j < T::kRows; ++j) {
          const int32_t query = first + T::column(j);
          const float dot = query < seen.end ? call.dot_sums[at + query] : 0.0f;
          const float x = p[i][j] * (dp[i][j] - dot);
          d_bias[i] += x;
          ds[i][j] *= x;
        }
      }
      __syncthreads();  // the weights of dv are read
      T::store_weights(ds, weights);
      __syncthreads();
      T::weigh(weights, queries, dk);
    }
  }

#pragma unroll
  for (int i = 0; i < T::kRows; ++i) {
    const int64_t place = work.first + T::row(i);
    const float sum = row_sum(d_bias[i]);
    if (place >= work.count) continue;
    const int64_t to = (side.rows[place] * shape.kv_heads + work.head) * shape.dim;
    if (call.dk) T::store(dk[i], shape.scale, shape.dim, call.dk + to);
    if (call.dv) T::store(dv[i], 1.0f, shape.dim, call.dv + to);
    if (call.bias && T::column(0) == 0) call.bias[work.head * call.key_places + place] = sum;
  }
}

// A block for every tile of the side's capacity and each of its heads.
template <int kTile>
void launch(CudaBackend dev, void (*kernel)(F32Call), const PlanSide& side, int heads, size_t bytes,
            const F32Call& call) {
  const unsigned int blocks = blocks_for(side.kept.capacity, kTile) * static_cast<unsigned int>(heads);
  if (blocks == 0) return;
  allow_shared(kernel, bytes);
  kernel<<<blocks, kThreads, bytes, dev.handle.stream>>>(call);
  check_launch("self_attention");
}

template <int kDim, int kTile>
void launch_forward(CudaBackend dev, const F32Call& call) {
  launch<kTile>(dev, attend<kDim, kTile>, call.plan.queries, call.shape.heads, Tiles<kDim, kTile>::bytes(2),
                call);
}

template <int kDim, int kTile>
void launch_gradient(CudaBackend dev, const F32Call& call) {
  using T = Tiles<kDim, kTile>;
  if (call.dq)
    launch<kTile>(dev, attend_dq<kDim, kTile>, call.plan.queries, call.shape.heads, T::bytes(3), call);
  if (call.dk || call.dv || call.bias)
    launch<kTile>(dev, attend_dkv<kDim, kTile>, call.plan.keys, call.shape.kv_heads, T::bytes(4), call);
}

F32Call call_of(const SelfAttentionCall& call, const SelfAttentionPlan& plan) {
  return {SelfAttentionShape(call),
          plan,
          places_for(plan.queries.kept.capacity),
          places_for(plan.keys.kept.capacity),
          call.q.data<float>(),
          call.k.data<float>(),
          call.v.data<float>()};
}

float* wanted(Tensor& t) {
  return t ? t.data<float>() : nullptr;
}

}  // namespace

void self_attention_f32(CudaBackend dev, const SelfAttentionCall& call, const SelfAttentionPlan& plan,
                        SelfAttentionKept& kept, Tensor& out) {
  F32Call f32 = call_of(call, plan);
  f32.out = out.data<float>();
  f32.log_sums = wanted(kept.log_sums);
  if (f32.shape.dim <= 64) return launch_forward<64, 64>(dev, f32);
  if (f32.shape.dim <= 128) return launch_forward<128, 64>(dev, f32);
  return launch_forward<256, 32>(dev, f32);
}

void self_attention_f32_gradient(CudaBackend dev, Context& ctx, const SelfAttentionCall& call,
                                 const SelfAttentionPlan& plan, const SelfAttentionKept& kept,
                                 const Tensor& d, SelfAttentionGradients& gradients, Tensor& bias) {
  F32Call f32 = call_of(call, plan);
  Tensor out = kept.out, log_sums = kept.log_sums;
  Tensor dot_sums = Tensor::empty(ctx, DType::kF32, log_sums.shape());
  f32.out = out.data<float>();
  f32.log_sums = log_sums.data<float>();
  f32.d = d.data<float>();
  f32.dot_sums = dot_sums.data<float>();
  f32.dq = wanted(gradients.q);
  f32.dk = wanted(gradients.k);
  f32.dv = wanted(gradients.v);
  f32.bias = wanted(bias);
  const unsigned int blocks = blocks_for(plan.queries.kept.capacity * f32.shape.heads, kThreads / kWarp);
  if (blocks > 0) {
    multiply_rows<<<blocks, kThreads, 0, dev.handle.stream>>>(f32, dot_sums.data<float>());
    check_launch("self_attention (d · out)");
  }
  if (f32.shape.dim <= 64) return launch_gradient<64, 64>(dev, f32);
  if (f32.shape.dim <= 128) return launch_gradient<128, 64>(dev, f32);
  return launch_gradient<256, 32>(dev, f32);
}

}  // namespace fathom
