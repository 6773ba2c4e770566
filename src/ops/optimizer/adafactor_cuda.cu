#include "ops/kernels/warp.cuh"
#include "ops/optimizer/adafactor_kernel.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 256, kThreadsOfTotal = 1024;

// What the steps hand on: a tensor's numbers that the host never sees.
struct Numbers {
  double mean_of_rows;
  double rate;        // the learning rate times the tensor's size
  float scale, keep;  // of the update, of the value
};
static_assert(sizeof(Numbers) <= 4 * sizeof(double), "adafactor_scratch() has room for 4");

struct Step {
  float* value;
  const float* gradient;
  float* moments;
  float* mean;  // null: beta1 is 0
  Numbers* numbers;
  double* by_row;    // (rows)
  double* by_chunk;  // (chunks, columns)
  int64_t rows, columns;
  bool factored;
  AdafactorParams p;

  __device__ float g(int64_t i) const { return gradient[i] * p.gradient_factor; }
  __device__ double square(int64_t i) const {
    const auto one = static_cast<double>(g(i));
    return one * one + static_cast<double>(p.eps);
  }
  __device__ void follow(float& mean_square, double now) const {
    mean_square = p.beta2 * mean_square + (1 - p.beta2) * static_cast<float>(now);
  }
  // 1 / sqrt(R_row / mean(R))
  __device__ float row_factor(int64_t row) const {
    if (!factored) return 1.0f;
    return static_cast<float>(1 / sqrt(static_cast<double>(moments[row]) / numbers->mean_of_rows));
  }
  __device__ float column_root(int64_t k) const { return sqrtf(moments[factored ? rows + k : k]); }
};

// A block per row: its mean square (or each element's), and the sum of its values' squares.
__global__ void follow_rows(Step s) {
  const int64_t row = blockIdx.x;
  double sum = 0, size = 0;
  for (int64_t k = threadIdx.x; k < s.columns; k += kThreads) {
    const int64_t i = row * s.columns + k;
    const double square = s.square(i);
    if (s.factored) {
      sum += square;
    } else {
      s.follow(s.moments[i], square);
    }
    const auto value = static_cast<double>(s.value[i]);
    size += value * value;
  }
  sum = block_sum(sum);
  size = block_sum(size);
  if (threadIdx.x != 0) return;
  if (s.factored) s.follow(s.moments[row], sum / static_cast<double>(s.columns));
  s.by_row[row] = size;
}

// A thread per column, a line of blocks per kAdafactorRows rows.
__global__ void sum_columns(Step s) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= s.columns) return;
  const int64_t begin = blockIdx.y * kAdafactorRows;
  const int64_t end = begin + kAdafactorRows < s.rows ? begin + kAdafactorRows : s.rows;
  double sum = 0;
  for (int64_t row = begin; row < end; ++row) sum += s.square(row * s.columns + k);
  s.by_chunk[blockIdx.y * s.columns + k] = sum;
}

__global__ void follow_columns(Step s, int64_t chunks) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= s.columns) return;
  double sum = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += s.by_chunk[chunk * s.columns + k];
  s.follow(s.moments[s.rows + k], sum / static_cast<double>(s.rows));
}

// One block: the mean of the rows' means, and the rate relative to the tensor's size.
__global__ void find_rate(Step s) {
  double means = 0, size = 0;
  for (int64_t row = threadIdx.x; row < s.rows; row += kThreadsOfTotal) {
    if (s.factored) means += static_cast<double>(s.moments[row]);
    size += s.by_row[row];
  }
  means = block_sum(means);
  size = block_sum(size);
  if (threadIdx.x != 0) return;
  s.numbers->mean_of_rows = means / static_cast<double>(s.rows);
  const double root = sqrt(size / static_cast<double>(s.rows * s.columns));
  s.numbers->rate = s.p.rate * (s.p.scale_by_size ? fmax(kSmallestSize, root) : 1.0);
}

// A block per row: the sum of its updates' squares, u = g / sqrt(v), v of row i and column j = R_i · C_j /
// mean(R).
__global__ void square_updates(Step s) {
  const int64_t row = blockIdx.x;
  const float factor = s.row_factor(row);
  double sum = 0;
  for (int64_t k = threadIdx.x; k < s.columns; k += kThreads) {
    const auto u = static_cast<double>(s.g(row * s.columns + k) * factor / s.column_root(k));
    sum += u * u;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) s.by_row[row] = sum;
}

// One block.
__global__ void find_scale(Step s) {
  double total = 0;
  for (int64_t row = threadIdx.x; row < s.rows; row += kThreadsOfTotal) total += s.by_row[row];
  total = block_sum(total);
  if (threadIdx.x != 0) return;
  const double rms = sqrt(total / static_cast<double>(s.rows * s.columns)), rate = s.numbers->rate;
  s.numbers->scale = static_cast<float>(rate / fmax(1.0, rms / static_cast<double>(s.p.update_clip)));
  s.numbers->keep = static_cast<float>(1 - rate * s.p.decay);
}

// A block per row.
__global__ void move_values(Step s) {
  const int64_t row = blockIdx.x;
  const float factor = s.row_factor(row), scale = s.numbers->scale, keep = s.numbers->keep;
  for (int64_t k = threadIdx.x; k < s.columns; k += kThreads) {
    const int64_t i = row * s.columns + k;
    float u = scale * s.g(i) * factor / s.column_root(k);
    if (s.mean) u = s.mean[i] = s.p.beta1 * s.mean[i] + (1 - s.p.beta1) * u;
    s.value[i] = s.value[i] * keep - u;
  }
}

}  // namespace

void adafactor_kernel(CudaBackend dev, AdafactorCall& call) {
  const int64_t chunks = (call.rows + kAdafactorRows - 1) / kAdafactorRows;
  auto* scratch = call.scratch.data<double>();
  const Step step{call.value.data<float>(),
                  call.gradient.data<float>(),
                  call.moments.data<float>(),
                  call.mean ? call.mean.data<float>() : nullptr,
                  reinterpret_cast<Numbers*>(scratch),
                  scratch + 4,
                  scratch + 4 + call.rows,
                  call.rows,
                  call.columns,
                  call.factored,
                  call.params};
  const auto rows = static_cast<unsigned int>(call.rows);
  const unsigned int column_blocks = blocks_for(call.columns, kThreads);
  cudaStream_t stream = dev.handle.stream;
  follow_rows<<<rows, kThreads, 0, stream>>>(step);
  if (call.factored) {
    sum_columns<<<dim3(column_blocks, static_cast<unsigned int>(chunks)), kThreads, 0, stream>>>(step);
    follow_columns<<<column_blocks, kThreads, 0, stream>>>(step, chunks);
  }
  find_rate<<<1, kThreadsOfTotal, 0, stream>>>(step);
  square_updates<<<rows, kThreads, 0, stream>>>(step);
  find_scale<<<1, kThreadsOfTotal, 0, stream>>>(step);
  move_values<<<rows, kThreads, 0, stream>>>(step);
  check_launch("adafactor");
}

}  // namespace fathom
