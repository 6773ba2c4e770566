// Rows go through in pieces: the product, one kernel that makes a row's loss and, in a second pass over it,
// the gradient of its logits, and the gradient's products. Only one piece's logits are in memory.
#include <cuda_bf16.h>

#include <algorithm>
#include <optional>

#include "ops/kernels/elementwise.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/linear_kernel.h"
#include "ops/loss/loss_rows.cuh"
#include "ops/loss/output_loss_kernel.h"

namespace fathom {
namespace {

// As many that few rows are worked on at a time: their second pass finds them in the cache.
constexpr int kMostThreads = 1024;
constexpr int64_t kRowTile = 128;

// Logits of a piece's rows: (rows, vocab), before the cap.
struct PieceLogits {
  const float* data;
  int64_t vocab;
  float cap;
  bool whole;  // rows are a multiple of four elements

  __device__ float capped(float x) const { return cap > 0 ? cap * tanhf(x / cap) : x; }
  __device__ float at(int64_t row, int64_t i) const { return capped(data[row * vocab + i]); }
  // Elements i … i + 3 of a row; past the row's end: −∞.
  __device__ float4 four(int64_t row, int64_t i) const {
    const float* from = data + row * vocab + i;
    if (whole) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      return {capped(v.x), capped(v.y), capped(v.z), capped(v.w)};
    }
    const int64_t left = vocab - i;
    const float nothing = -__builtin_huge_valf();
    return {capped(from[0]), left > 1 ? capped(from[1]) : nothing, left > 2 ? capped(from[2]) : nothing,
            left > 3 ? capped(from[3]) : nothing};
  }
  // The gradient of the logits before the cap, from that of the capped ones y: 1 − tanh².
  __device__ float through_cap(float d, float y) const {
    const float t = y / cap;
    return d * (1.0f - t * t);
  }
  __device__ float4 through_cap(float4 d, float4 y) const {
    if (!(cap > 0)) return d;
    return {through_cap(d.x, y.x), through_cap(d.y, y.y), through_cap(d.z, y.z), through_cap(d.w, y.w)};
  }
};

struct alignas(8) FourBf16 {
  __nv_bfloat16 value[4];
};

__device__ void set_whole(float* to, float4 v) {
  *reinterpret_cast<float4*>(to) = v;
}
__device__ void set_whole(__nv_bfloat16* to, float4 v) {
  *reinterpret_cast<FourBf16*>(to) = {__float2bfloat16_rn(v.x), __float2bfloat16_rn(v.y),
                                      __float2bfloat16_rn(v.z), __float2bfloat16_rn(v.w)};
}
__device__ void set_one(float& to, float v) {
  to = v;
}
__device__ void set_one(__nv_bfloat16& to, float v) {
  to = __float2bfloat16_rn(v);
}

// Elements i … i + 3 of a row of the gradient, those past the row's end left out.
template <class Element>
__device__ void set_four(Element* gradient, const PieceLogits& like, int64_t row, int64_t i, float4 v) {
  Element* to = gradient + row * like.vocab + i;
  if (like.whole) return set_whole(to, v);
  const int64_t left = like.vocab - i;
  set_one(to[0], v.x);
  if (left > 1) set_one(to[1], v.y);
  if (left > 2) set_one(to[2], v.z);
  if (left > 3) set_one(to[3], v.w);
}

struct Entropy {
  PieceLogits logits;
  const int32_t* targets;
  int32_t* fault;

  struct Row {
    double loss;
    float log_sum;
    int64_t target;
  };

  // Every thread of the block gets it. The target's logit is read before the threads meet: the gradient may
  // take its place afterwards.
  __device__ Row measure(int64_t row) const {
    int64_t target = targets[row];
    if (target < 0 || target >= logits.vocab) {
      if (threadIdx.x == 0) report_fault(fault, CudaFault::kTarget);
      target = 0;
    }
    const float chosen = logits.at(row, target);
    PowerSum powers;
    for (int64_t i = first_four(); i < logits.vocab; i += next_four()) powers.add(logits.four(row, i));
    powers.join();
    const double log_sum = powers.log();
    return {log_sum - static_cast<double>(chosen), static_cast<float>(log_sum), target};
  }
  // Of elements i … i + 3, where the loss's gradient times the row's weight is `scale`.
  __device__ float4 gradient(const Row& row_sums, int64_t row, int64_t i, float scale) const {
    const float4 y = logits.four(row, i), p = exp_less(y, row_sums.log_sum);
    float4 out{p.x * scale, p.y * scale, p.z * scale, p.w * scale};
    const int64_t target = row_sums.target - i;
    if (target == 0) out.x -= scale;
    if (target == 1) out.y -= scale;
    if (target == 2) out.z -= scale;
    if (target == 3) out.w -= scale;
    return logits.through_cap(out, y);
  }
};

// e (t − s); what the teacher hides adds nothing.
__device__ float distance_of(float power, float t, float s) {
  return power == 0 ? 0.0f : power * (t - s);
}

struct Divergence {
  PieceLogits logits, teacher;

  struct Row {
    double loss;
    float t_log, s_log;
  };

  // One pass: Σ e^t (t − s) grows with the teacher's Σ e^t.
  __device__ Row measure(int64_t row) const {
    PowerSum t_sum, s_sum;
    double distance = 0;
    for (int64_t i = first_four(); i < logits.vocab; i += next_four()) {
      const float4 t = teacher.four(row, i), s = logits.four(row, i);
      distance *= t_sum.raise(t);
      const float4 e = exp_less(t, t_sum.largest);
      t_sum.sum += sum_of_four(e);
      distance += sum_of_four({distance_of(e.x, t.x, s.x), distance_of(e.y, t.y, s.y),
                               distance_of(e.z, t.z, s.z), distance_of(e.w, t.w, s.w)});
      s_sum.add(s);
    }
    distance = block_sum(distance * t_sum.join());
    s_sum.join();
    const double t_log = t_sum.log(), s_log = s_sum.log();
    return {distance / t_sum.sum - t_log + s_log, static_cast<float>(t_log), static_cast<float>(s_log)};
  }
  __device__ float4 gradient(const Row& row_sums, int64_t row, int64_t i, float scale) const {
    const float4 y = logits.four(row, i), q = exp_less(y, row_sums.s_log),
                 p = exp_less(teacher.four(row, i), row_sums.t_log);
    const float4 out{scale * (q.x - p.x), scale * (q.y - p.y), scale * (q.z - p.z), scale * (q.w - p.w)};
    return logits.through_cap(out, y);
  }
};

// losses[row] = w · loss of a piece's row; and the gradient of its logits, null: not wanted. It may be the
// logits: a thread reads no elements but those it writes, once all have their sums. Rows of weight 0 and
// those from `present` on are not read; their gradients are zeros.
template <class Loss, class Element>
__global__ void __launch_bounds__(kMostThreads)
    piece_rows(Loss loss, const float* weights, int64_t present, double* losses, Element* gradient) {
  const int64_t row = blockIdx.x, vocab = loss.logits.vocab;
  const float weight = row < present ? weights[row] : 0.0f;
  if (weight == 0) {
    if (threadIdx.x == 0 && row < present) losses[row] = 0;
    if (!gradient) return;
    for (int64_t i = first_four(); i < vocab; i += next_four())
      set_four(gradient, loss.logits, row, i, {0, 0, 0, 0});
    return;
  }
  const typename Loss::Row sums = loss.measure(row);
  if (threadIdx.x == 0) losses[row] = static_cast<double>(weight) * sums.loss;
  if (!gradient || first_four() >= vocab) return;
  // Backwards: what was read last is still near.
  const int64_t last = first_four() + (vocab - 1 - first_four()) / next_four() * next_four();
  for (int64_t i = last; i >= 0; i -= next_four())
    set_four(gradient, loss.logits, row, i, loss.gradient(sums, row, i, weight));
}

GemmMatrix matrix(const Tensor& t, int64_t first = 0) {
  return {t.data<std::byte>() + first * row_bytes(t.dtype(), t.stride(0)), t.stride(0),
          t.dtype() == DType::kBF16};
}

// A product with an output matrix: its factors as cuda_gemm() takes them, and room for a piece's logits.
struct Product {
  Product(CudaBackend cuda, Context& ctx, const OutputRows& rows, int64_t piece)
      : x(dy_factor(cuda, ctx, rows.x, rows.weight.dtype())),
        weight(weight_factor(cuda, ctx, rows.weight)),
        logits(Tensor::empty(ctx, DType::kF32, {piece, rows.weight.dim(0)})),
        cap(rows.soft_cap) {}

  // The logits of rows first … first + count − 1.
  PieceLogits of(CudaBackend cuda, int64_t first, int64_t count) {
    cuda_gemm(cuda, {.layout = GemmLayout::kNT,
                     .m = count,
                     .n = weight.dim(0),
                     .k = weight.dim(1),
                     .a = matrix(x, first),
                     .b = matrix(weight),
                     .c = logits.raw(),
                     .c_stride = weight.dim(0)});
    return {logits.data<float>(), weight.dim(0), cap, weight.dim(0) % 4 == 0};
  }

  Tensor x, weight, logits;
  float cap;
};

template <class Loss>
void start_rows(CudaBackend cuda, const Loss& loss, int64_t count, const float* weights, int64_t present,
                double* losses, Tensor& gradient) {
  const unsigned int threads = loss_threads(loss.logits.vocab, kMostThreads);
  const auto start = [&](auto* to) {
    piece_rows<<<blocks_for(count, 1), threads, 0, cuda.handle.stream>>>(loss, weights, present, losses, to);
  };
  if (gradient && gradient.dtype() == DType::kBF16) {
    start(gradient.data<__nv_bfloat16>());
  } else {
    start(gradient ? gradient.data<float>() : static_cast<float*>(nullptr));
  }
  check_launch("output loss");
}

// dx of the piece, and its part of dW.
void add_products(CudaBackend cuda, OutputLossCall& call, const Product& product, const Tensor& gradient,
                  int64_t first, int64_t count) {
  const int64_t vocab = product.weight.dim(0), width = product.weight.dim(1);
  if (call.dx)
    cuda_gemm(cuda, {.layout = GemmLayout::kNN,
                     .m = count,
                     .n = width,
                     .k = vocab,
                     .a = matrix(gradient),
                     .b = matrix(product.weight),
                     .c = call.dx.data<std::byte>() + first * row_bytes(call.dx.dtype(), width),
                     .c_stride = width,
                     .c_bf16 = call.dx.dtype() == DType::kBF16});
  if (call.dw)
    cuda_gemm(cuda, {.layout = GemmLayout::kTN,
                     .m = vocab,
                     .n = width,
                     .k = count,  // 0 where there is no row at all: zeros
                     .a = matrix(gradient),
                     .b = matrix(product.x, first),
                     .c = call.dw.raw(),
                     .c_stride = width,
                     .beta = first > 0 ? 1.0f : 0.0f});
}

// As linear() and its gradient count.
void count_products(CudaBackend cuda, const OutputLossCall& call, int64_t present) {
  if (present == 0) return;
  const auto count = [&](const Tensor& weight, bool reads) {
    cuda.counters.add({.madds = static_cast<uint64_t>(present * weight.numel()),
                       .weight_bytes = reads ? static_cast<uint64_t>(weight.nbytes()) : 0});
  };
  count(call.rows.weight, true);
  if (call.teacher.x) count(call.teacher.weight, true);
  if (call.dx) count(call.rows.weight, true);
  if (call.dw) count(call.rows.weight, false);
}

struct TimesFactor {
  const float* factor;
  __device__ float operator()(float x) const { return *factor * x; }
  __device__ __nv_bfloat16 operator()(__nv_bfloat16 x) const {
    return __float2bfloat16_rn(*factor * __bfloat162float(x));
  }
};
struct PlusTimesFactor {
  const float* factor;
  __device__ float operator()(float sum, float x) const { return sum + *factor * x; }
  __device__ __nv_bfloat16 operator()(__nv_bfloat16 sum, __nv_bfloat16 x) const {
    return __float2bfloat16_rn(__bfloat162float(sum) + *factor * __bfloat162float(x));
  }
};

// out = fn(operands…), all of one type.
template <class Fn, class... Operands>
void map_gradients(CudaBackend cuda, Tensor& out, Fn fn, const Operands&... operands) {
  constexpr const char* kOp = "the gradient of an output loss";
  if (out.dtype() == DType::kBF16) return map_elements<__nv_bfloat16>(cuda, kOp, out, fn, operands...);
  map_elements(cuda, kOp, out, fn, operands...);
}

}  // namespace

void output_loss_kernel(CudaBackend cuda, Context& ctx, OutputLossCall& call, Tensor& out) {
  const int64_t present = present_rows(cuda, call.rows.x), launched = bound(cuda, call.rows.x);
  const int64_t vocab = call.rows.weight.dim(0);
  const int64_t piece =
      std::min(std::max(call.logits_at_once / vocab / kRowTile * kRowTile, kRowTile), launched);
  Tensor losses = Tensor::empty(ctx, DType::kU8, {launched * static_cast<int64_t>(sizeof(double))});
  Product student(cuda, ctx, call.rows, piece);
  std::optional<Product> teacher;
  if (call.teacher.x) teacher.emplace(cuda, ctx, call.teacher, piece);
  Tensor gradient;
  if (call.dx || call.dw) {
    const bool bf16 = student.weight.dtype() == DType::kBF16;
    gradient = bf16 ? Tensor::empty(ctx, DType::kBF16, {piece, vocab}) : student.logits;
  }
  count_products(cuda, call, present);
  for (int64_t first = 0; first < launched; first += piece) {
    const int64_t count = std::min(piece, launched - first), there = std::min(count, present - first);
    const PieceLogits logits = student.of(cuda, first, count);
    const float* weights = call.weights.data<float>() + first;
    double* each = losses.data<double>() + first;
    if (teacher) {
      const Divergence loss{logits, teacher->of(cuda, first, count)};
      start_rows(cuda, loss, count, weights, there, each, gradient);
    } else {
      const Entropy loss{logits, call.targets.data<int32_t>() + first, cuda.handle.fault};
      start_rows(cuda, loss, count, weights, there, each, gradient);
    }
    add_products(cuda, call, student, gradient, first, count);
  }
  if (launched == 0) add_products(cuda, call, student, gradient, 0, 0);
  sum_of_rows<<<1, kLossSumThreads, 0, cuda.handle.stream>>>(losses.data<double>(), present, nullptr,
                                                             out.data<float>());
  check_launch("output loss");
}

void times_scalar_kernel(CudaBackend cuda, const Tensor& x, const Tensor& factor, Tensor& out) {
  map_gradients(cuda, out, TimesFactor{factor.data<float>()}, x);
}

void add_times_scalar_kernel(CudaBackend cuda, const Tensor& x, const Tensor& factor, Tensor& out) {
  map_gradients(cuda, out, PlusTimesFactor{factor.data<float>()}, out, x);
}

}  // namespace fathom
