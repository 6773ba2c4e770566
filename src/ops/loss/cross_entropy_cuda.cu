#include <cstdint>
#include <initializer_list>

#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/loss/cross_entropy.h"
#include "ops/loss/loss_rows.cuh"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int64_t kMostThreads = 512;

struct LossRows {
  DeviceFloatRows rows;
  const float* weights;
  bool whole;  // rows are a multiple of four elements and start on 16 bytes, in every operand

  LossRows(const Tensor& x, const Tensor& w, std::initializer_list<const Tensor*> operands)
      : rows(x), weights(w.data<float>()), whole(x.dim(1) % 4 == 0) {
    for (const Tensor* each : operands)
      whole = whole && reinterpret_cast<uintptr_t>(each->raw()) % sizeof(float4) == 0;
  }

  unsigned int threads() const { return loss_threads(rows.width, kMostThreads); }
  // Elements i … i + 3 of a row of x; past the row's end: `fill`.
  __device__ float4 four(const float* x, int64_t row, int64_t i, float fill) const {
    const float* at = x + row * rows.width + i;
    if (whole) return *reinterpret_cast<const float4*>(at);
    const int64_t left = rows.width - i;
    return {at[0], left > 1 ? at[1] : fill, left > 2 ? at[2] : fill, left > 3 ? at[3] : fill};
  }
  __device__ Floats<4> floats(const float* x, int64_t row, int64_t i, float fill) const {
    const float4 v = four(x, row, i, fill);
    return {{v.x, v.y, v.z, v.w}};
  }
  __device__ void set_four(float* x, int64_t row, int64_t i, float4 values) const {
    float* at = x + row * rows.width + i;
    if (whole) {
      *reinterpret_cast<float4*>(at) = values;
      return;
    }
    const int64_t left = rows.width - i;
    at[0] = values.x;
    if (left > 1) at[1] = values.y;
    if (left > 2) at[2] = values.z;
    if (left > 3) at[3] = values.w;
  }
};

// log Σ eˣ of a row in one pass. Every thread of the block gets it.
__device__ double log_sum_exp(const LossRows& call, const float* x, int64_t row) {
  PowerSum powers;
  for (int64_t i = first_four(); i < call.rows.width; i += next_four())
    powers.add(call.floats(x, row, i, -__builtin_huge_valf()));
  powers.join();
  return powers.log();
}

// losses[row] = w · loss(call, row); 0 where the weight is 0. loss() gives thread 0 the row's.
template <class Fn>
__global__ void weigh_rows(LossRows call, Fn loss, double* losses) {
  const int64_t row = blockIdx.x;
  if (!call.rows.has(row)) return;
  const float weight = call.weights[row];
  const double value = weight == 0 ? 0.0 : static_cast<double>(weight) * loss(call, row);
  if (threadIdx.x == 0) losses[row] = value;
}

template <class Fn>
void add_rows_up(CudaBackend dev, const char* op, const LossRows& call, Fn loss, Tensor& losses,
                 Tensor& out) {
  double* each = losses.data<double>();
  if (call.rows.rows > 0) {
    weigh_rows<<<blocks_for(call.rows.rows, 1), call.threads(), 0, dev.handle.stream>>>(call, loss, each);
    check_launch(op);
  }
  sum_of_rows<<<1, kLossSumThreads, 0, dev.handle.stream>>>(each, call.rows.rows, call.rows.count_ptr,
                                                            out.data<float>());
  check_launch(op);
}

// dx[row] = gradient(call, row, i, w · d) for its elements i … i + 3; zeros where the weight is 0. dx may be
// an operand: a thread reads no elements but those it writes.
template <class Fn>
__global__ void gradient_of_rows(LossRows call, Fn gradient, const float* d, float* dx) {
  const int64_t row = blockIdx.x;
  if (!call.rows.has(row)) return;
  const float weight = call.weights[row], scale = weight * *d;
  for (int64_t i = first_four(); i < call.rows.width; i += next_four()) {
    const float4 zeros{0, 0, 0, 0};
    call.set_four(dx, row, i, weight == 0 ? zeros : gradient(call, row, i, scale));
  }
}

template <class Fn>
void fill_gradient(CudaBackend dev, const char* op, const LossRows& call, Fn gradient, const Tensor& d,
                   Tensor& dx) {
  if (call.rows.rows == 0) return;
  gradient_of_rows<<<blocks_for(call.rows.rows, 1), call.threads(), 0, dev.handle.stream>>>(
      call, gradient, d.data<float>(), dx.data<float>());
  check_launch(op);
}

__global__ void narrow(const double* losses, int64_t rows, float* out) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row < rows) out[row] = static_cast<float>(losses[row]);
}

struct Entropy {
  const float* logits;
  const int32_t* targets;
  float* log_sums;
  int32_t* fault;

  __device__ double operator()(const LossRows& call, int64_t row) const {
    const double log_sum = log_sum_exp(call, logits, row);
    int64_t target = targets[row];
    if (threadIdx.x == 0) log_sums[row] = static_cast<float>(log_sum);
    if (target < 0 || target >= call.rows.width) {
      if (threadIdx.x == 0) report_fault(fault, CudaFault::kTarget);
      target = 0;
    }
    return log_sum - static_cast<double>(logits[row * call.rows.width + target]);
  }
};

struct EntropyGradient {
  const float* logits;
  const int32_t* targets;
  const float* log_sums;

  __device__ float4 operator()(const LossRows& call, int64_t row, int64_t i, float scale) const {
    const auto [p] = exp_less(call.floats(logits, row, i, 0.0f), log_sums[row]);
    float4 out{p[0] * scale, p[1] * scale, p[2] * scale, p[3] * scale};
    const int64_t target = targets[row] - i;
    if (target == 0) out.x -= scale;
    if (target == 1) out.y -= scale;
    if (target == 2) out.z -= scale;
    if (target == 3) out.w -= scale;
    return out;
  }
};

// p (t − s); what the teacher hides adds nothing.
__device__ double distance_of(float t, float s, float t_sum) {
  const float p = exp_less(t, t_sum);
  return p == 0 ? 0.0 : static_cast<double>(p) * (static_cast<double>(t) - static_cast<double>(s));
}

struct Divergence {
  const float *teacher, *student;
  float *t_sums, *s_sums;

  __device__ double operator()(const LossRows& call, int64_t row) const {
    const double t_sum = log_sum_exp(call, teacher, row), s_sum = log_sum_exp(call, student, row);
    const auto t_log = static_cast<float>(t_sum);
    if (threadIdx.x == 0) {
      t_sums[row] = t_log;
      s_sums[row] = static_cast<float>(s_sum);
    }
    double distance = 0;
    for (int64_t i = first_four(); i < call.rows.width; i += next_four()) {
      const float4 t = call.four(teacher, row, i, -__builtin_huge_valf()),
                   s = call.four(student, row, i, 0.0f);
      distance += (distance_of(t.x, s.x, t_log) + distance_of(t.y, s.y, t_log)) +
                  (distance_of(t.z, s.z, t_log) + distance_of(t.w, s.w, t_log));
    }
    return block_sum(distance) - t_sum + s_sum;
  }
};

struct DivergenceGradient {
  const float *teacher, *student;
  const float *t_sums, *s_sums;

  __device__ float4 operator()(const LossRows& call, int64_t row, int64_t i, float scale) const {
    const auto [p] = exp_less(call.floats(teacher, row, i, 0.0f), t_sums[row]);
    const auto [q] = exp_less(call.floats(student, row, i, 0.0f), s_sums[row]);
    return {scale * (q[0] - p[0]), scale * (q[1] - p[1]), scale * (q[2] - p[2]), scale * (q[3] - p[3])};
  }
};

__device__ double squared(float a, float b) {
  const double apart = static_cast<double>(a) - static_cast<double>(b);
  return apart * apart;
}

struct Squares {
  const float *left, *right;

  __device__ double operator()(const LossRows& call, int64_t row) const {
    double sum = 0;
    for (int64_t i = first_four(); i < call.rows.width; i += next_four()) {
      const float4 a = call.four(left, row, i, 0.0f), b = call.four(right, row, i, 0.0f);
      sum += (squared(a.x, b.x) + squared(a.y, b.y)) + (squared(a.z, b.z) + squared(a.w, b.w));
    }
    return block_sum(sum) / static_cast<double>(call.rows.width);
  }
};

struct SquaresGradient {
  const float *left, *right;
  float sign;

  __device__ float4 operator()(const LossRows& call, int64_t row, int64_t i, float scale) const {
    const float factor = sign * scale * 2.0f / static_cast<float>(call.rows.width);
    const float4 a = call.four(left, row, i, 0.0f), b = call.four(right, row, i, 0.0f);
    return {factor * (a.x - b.x), factor * (a.y - b.y), factor * (a.z - b.z), factor * (a.w - b.w)};
  }
};

}  // namespace

void cross_entropy_kernel(CudaBackend dev, const Tensor& logits, const Tensor& targets, const Tensor& weights,
                          Tensor& log_sums, Tensor& losses, Tensor& out) {
  const Entropy loss{logits.data<float>(), targets.data<int32_t>(), log_sums.data<float>(), dev.handle.fault};
  add_rows_up(dev, "cross_entropy", {logits, weights, {&logits}}, loss, losses, out);
}

void cross_entropy_gradient_kernel(CudaBackend dev, const Tensor& logits, const Tensor& targets,
                                   const Tensor& weights, const Tensor& log_sums, const Tensor& d,
                                   Tensor& d_logits) {
  const EntropyGradient gradient{logits.data<float>(), targets.data<int32_t>(), log_sums.data<float>()};
  fill_gradient(dev, "the gradient of cross_entropy", {logits, weights, {&logits, &d_logits}}, gradient, d,
                d_logits);
}

void kl_divergence_kernel(CudaBackend dev, const Tensor& teacher, const Tensor& student,
                          const Tensor& weights, Tensor& log_sums, Tensor& losses, Tensor& out) {
  float* sums = log_sums.data<float>();
  const Divergence loss{teacher.data<float>(), student.data<float>(), sums, sums + student.dim(0)};
  add_rows_up(dev, "kl_divergence", {student, weights, {&teacher, &student}}, loss, losses, out);
}

void kl_divergence_gradient_kernel(CudaBackend dev, const Tensor& teacher, const Tensor& student,
                                   const Tensor& weights, const Tensor& log_sums, const Tensor& d,
                                   Tensor& d_student) {
  const float* sums = log_sums.data<float>();
  const DivergenceGradient gradient{teacher.data<float>(), student.data<float>(), sums,
                                    sums + student.dim(0)};
  fill_gradient(dev, "the gradient of kl_divergence", {student, weights, {&teacher, &student, &d_student}},
                gradient, d, d_student);
}

void narrow_losses_kernel(CudaBackend dev, const Tensor& losses, Tensor& out) {
  constexpr int kThreads = 256;
  if (out.dim(0) == 0) return;
  narrow<<<blocks_for(out.dim(0), kThreads), kThreads, 0, dev.handle.stream>>>(losses.data<double>(),
                                                                               out.dim(0), out.data<float>());
  check_launch("kl_of_rows");
}

void mean_squared_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, const Tensor& weights,
                         Tensor& losses, Tensor& out) {
  const Squares loss{a.data<float>(), b.data<float>()};
  add_rows_up(dev, "mean_squared", {a, weights, {&a, &b}}, loss, losses, out);
}

void mean_squared_gradient_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, const Tensor& weights,
                                  const Tensor& d, float sign, Tensor& dx) {
  const SquaresGradient gradient{a.data<float>(), b.data<float>(), sign};
  fill_gradient(dev, "the gradient of mean_squared", {a, weights, {&a, &b, &dx}}, gradient, d, dx);
}

}  // namespace fathom
