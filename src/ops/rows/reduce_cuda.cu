#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/rows/reduce.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

// A block per row: thread t adds elements t, t + threads, ….
__global__ void mean_of_rows(DeviceFloatRows x, float* out) {
  const int64_t row = blockIdx.x;
  if (!x.has(row)) return;
  const float* in = x.data + row * x.step;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < x.width; i += blockDim.x) sum += in[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[row] = sum / static_cast<float>(x.width);
}

// A block per row.
__global__ void spread_means(const float* d, const int32_t* count, int64_t width, float* dx) {
  const int64_t row = blockIdx.x;
  if (count && row >= *count) return;
  const float share = d[row] / static_cast<float>(width);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) dx[row * width + i] = share;
}

// The numbers of a tensor (rows), as many as are there.
struct Numbers {
  const float* data;
  int64_t rows;
  const int32_t* count_ptr;
  explicit Numbers(const Tensor& t) : data(t.data<float>()), rows(t.dim(0)), count_ptr(t.row_count()) {}
  __device__ int64_t count() const { return count_ptr ? *count_ptr : rows; }
};

__device__ double weight_of(const float* weights, int64_t row) {
  return weights ? static_cast<double>(weights[row]) : 1.0;
}

// Sums over all rows are one block's, in f64: thread t adds rows t, t + kSumThreads, ….
constexpr int kSumThreads = 1024;

// Loads that do not wait for each other: a single block's time is theirs.
constexpr int kAtOnce = 8;

__global__ void mean_of_all(Numbers x, const float* weights, double* total_of, float* out) {
  const int64_t rows = x.count();
  double sum = 0.0, total = 0.0;
  for (int64_t first = threadIdx.x; first < rows; first += kAtOnce * kSumThreads) {
    float value[kAtOnce], weight[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t r = first + i * kSumThreads;
      value[i] = r < rows ? x.data[r] : 0.0f;
      weight[i] = r >= rows ? 0.0f : weights ? weights[r] : 1.0f;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (weight[i] == 0.0f) continue;  // whatever x is there
      sum += static_cast<double>(weight[i]) * static_cast<double>(value[i]);
      total += static_cast<double>(weight[i]);
    }
  }
  sum = block_sum(sum);
  total = block_sum(total);
  if (threadIdx.x != 0) return;
  *out = total == 0.0 ? 0.0f : static_cast<float>(sum / total);
  *total_of = total;
}

// One thread.
__global__ void share_of_kept(DeviceRows kept, int64_t rows, double* total_of, float* out) {
  const auto total = static_cast<double>(rows);
  *out = rows == 0 ? 0.0f : static_cast<float>(static_cast<double>(kept.count()) / total);
  *total_of = total;
}

__global__ void mean_gradients(const float* weights, const double* total_of, const float* d, Numbers dx,
                               float* out) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (r >= dx.count()) return;
  const double total = *total_of, share = total == 0.0 ? 0.0 : static_cast<double>(*d) / total;
  out[r] = static_cast<float>(share * weight_of(weights, r));
}

__global__ void variance_of_all(Numbers x, double* mean_of, float* out) {
  const int64_t rows = x.count();
  double sum = 0.0, squares = 0.0;
  for (int64_t r = threadIdx.x; r < rows; r += kSumThreads) sum += static_cast<double>(x.data[r]);
  sum = block_sum(sum);
  const double mean = rows > 0 ? sum / static_cast<double>(rows) : 0.0;
  for (int64_t r = threadIdx.x; r < rows; r += kSumThreads) {
    const double distance = static_cast<double>(x.data[r]) - mean;
    squares += distance * distance;
  }
  squares = block_sum(squares);
  if (threadIdx.x != 0) return;
  *out = rows > 0 ? static_cast<float>(squares / static_cast<double>(rows)) : 0.0f;
  *mean_of = mean;
}

__global__ void variance_gradients(Numbers x, const double* mean_of, const float* d, float* dx) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, rows = x.count();
  if (r >= rows) return;
  const double distance = static_cast<double>(x.data[r]) - *mean_of;
  dx[r] = static_cast<float>(2.0 * distance / static_cast<double>(rows) * static_cast<double>(*d));
}

constexpr size_t kMostTerms = 32;

struct Terms {
  const float* scalars[kMostTerms];
  float weights[kMostTerms];
  int count;
};

// One thread, in order.
__global__ void add_terms(Terms terms, bool first, float* out) {
  double sum = first ? 0.0 : static_cast<double>(*out);
  for (int i = 0; i < terms.count; ++i)
    sum += static_cast<double>(terms.weights[i]) * static_cast<double>(*terms.scalars[i]);
  *out = static_cast<float>(sum);
}

}  // namespace

void mean_columns_kernel(CudaBackend dev, const Tensor& x, Tensor& out) {
  const DeviceFloatRows rows(x);
  if (rows.rows == 0) return;
  mean_of_rows<<<blocks_for(rows.rows, 1), row_sum_threads(rows.width), 0, dev.handle.stream>>>(
      rows, out.data<float>());
  check_launch("mean_columns");
}

void mean_columns_gradient_kernel(CudaBackend dev, const Tensor& d, Tensor& dx) {
  if (dx.numel() == 0) return;
  spread_means<<<blocks_for(dx.dim(0), 1), kThreads, 0, dev.handle.stream>>>(d.data<float>(), dx.row_count(),
                                                                             dx.dim(1), dx.data<float>());
  check_launch("the gradient of mean_columns");
}

void mean_rows_kernel(CudaBackend dev, const Tensor& x, const Tensor& weights, Tensor& total, Tensor& out) {
  mean_of_all<<<1, kSumThreads, 0, dev.handle.stream>>>(Numbers(x), weights ? weights.data<float>() : nullptr,
                                                        total.data<double>(), out.data<float>());
  check_launch("mean_rows");
}

void mean_rows_gradient_kernel(CudaBackend dev, const Tensor& weights, const Tensor& total, const Tensor& d,
                               Tensor& dx) {
  if (dx.numel() == 0) return;
  mean_gradients<<<blocks_for(dx.dim(0), kThreads), kThreads, 0, dev.handle.stream>>>(
      weights ? weights.data<float>() : nullptr, total.data<double>(), d.data<float>(), Numbers(dx),
      dx.data<float>());
  check_launch("the gradient of mean_rows");
}

void kept_share_kernel(CudaBackend dev, const RowSet& kept, int64_t rows, Tensor& total, Tensor& out) {
  share_of_kept<<<1, 1, 0, dev.handle.stream>>>(DeviceRows(kept), rows, total.data<double>(),
                                                out.data<float>());
  check_launch("kept_share");
}

void variance_rows_kernel(CudaBackend dev, const Tensor& x, Tensor& mean, Tensor& out) {
  variance_of_all<<<1, kSumThreads, 0, dev.handle.stream>>>(Numbers(x), mean.data<double>(),
                                                            out.data<float>());
  check_launch("variance_rows");
}

void variance_rows_gradient_kernel(CudaBackend dev, const Tensor& x, const Tensor& mean, const Tensor& d,
                                   Tensor& dx) {
  if (x.numel() == 0) return;
  variance_gradients<<<blocks_for(x.dim(0), kThreads), kThreads, 0, dev.handle.stream>>>(
      Numbers(x), mean.data<double>(), d.data<float>(), dx.data<float>());
  check_launch("the gradient of variance_rows");
}

void weighted_sum_kernel(CudaBackend dev, std::span<const Tensor> scalars, std::span<const float> weights,
                         Tensor& out) {
  size_t at = 0;
  do {
    Terms terms{};
    for (; at < scalars.size() && static_cast<size_t>(terms.count) < kMostTerms; ++at, ++terms.count) {
      terms.scalars[terms.count] = scalars[at].data<float>();
      terms.weights[terms.count] = weights[at];
    }
    add_terms<<<1, 1, 0, dev.handle.stream>>>(terms, at <= kMostTerms, out.data<float>());
  } while (at < scalars.size());
  check_launch("weighted_sum");
}

}  // namespace fathom
