// Rows go through in pieces: the product, one kernel that makes a row's loss and then the gradient of its
// logits, which it keeps in shared memory meanwhile, and the gradient's products. Only one piece's logits are
// in memory.
#include <cuda_bf16.h>

#include <algorithm>
#include <optional>
#include <type_traits>

#include "ops/kernels/bf16.cuh"
#include "ops/kernels/elementwise.cuh"
#include "ops/kernels/tensor_core.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/linear_kernel.h"
#include "ops/loss/loss_rows.cuh"
#include "ops/loss/output_loss_kernel.h"

namespace fathom {
namespace {

constexpr int kMostThreads = 1024;
constexpr int64_t kRowTile = 128;
constexpr int kReduceBytes = 2048;  // of a block's memory, more than its sums take

// 16 bytes of a row are read and written together.
template <class T>
inline constexpr int kPack = 16 / sizeof(T);

__device__ Floats<4> unpack(const float* from) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  return {{v.x, v.y, v.z, v.w}};
}
__device__ Floats<8> unpack(const Bf16* from) {
  Floats<8> out;
  const EightFloats v = load_eight_floats(from);
#pragma unroll
  for (int i = 0; i < 8; ++i) out.at[i] = v.at[i];
  return out;
}
__device__ void pack(float* to, const Floats<4>& v) {
  *reinterpret_cast<float4*>(to) = {v.at[0], v.at[1], v.at[2], v.at[3]};
}
__device__ void pack(Bf16* to, const Floats<4>& v) {
  store_four(to, {v.at[0], v.at[1], v.at[2], v.at[3]});
}
__device__ void pack(Bf16* to, const Floats<8>& v) {
  EightFloats out;
#pragma unroll
  for (int i = 0; i < 8; ++i) out.at[i] = v.at[i];
  store_eight(to, out);
}

// A block's rows in shared memory.
extern __shared__ uint4 near_rows[];

// Logits of a piece's rows: (rows, vocab), before the cap. The first `near` elements of the block's row are
// in shared memory, where each thread fetches those that it reads itself; the others are read where they are,
// and again for the gradient.
template <class Element>
struct PieceLogits {
  using T = Element;
  static constexpr int kCount = kPack<T>;
  using Pack = Floats<kCount>;
  const T* data;
  int64_t vocab;
  float cap;
  bool whole;     // rows are a multiple of kCount elements
  int near = 0;   // a multiple of kCount
  int place = 0;  // of the first, in near_rows

  __device__ float capped(float x) const { return cap > 0 ? cap * tanhf(x / cap) : x; }
  __device__ float at(int64_t row, int64_t i) const { return capped(to_float(data[row * vocab + i])); }
  __device__ T* near_pack(int64_t i) const {
    return reinterpret_cast<T*>(near_rows + place + static_cast<unsigned int>(i) / kCount);
  }
  // Begins to fetch kCount elements of a row, which the thread has read of the row before it.
  __device__ void fetch(int64_t row, int64_t i) const {
    if (i < near) copy_async(shared_address(near_pack(i)), data + row * vocab + i);
  }
  // kCount elements of a row, from i on; past the row's end: −∞.
  __device__ Pack pack_at(int64_t row, int64_t i) const {
    const T* from = data + row * vocab + i;
    Pack out;
    if (whole) {
      out = unpack(i < near ? near_pack(i) : from);
    } else {
#pragma unroll
      for (int j = 0; j < kCount; ++j) out.at[j] = i + j < vocab ? to_float(from[j]) : 0.0f;
    }
    if (cap > 0) {
#pragma unroll
      for (float& each : out.at) each = capped(each);
    }
    if (!whole) {  // after the cap, which would make −∞ finite
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        if (i + j >= vocab) out.at[j] = -__builtin_huge_valf();
    }
    return out;
  }
  // The gradient of the logits before the cap, from that of the capped ones y: 1 − tanh².
  __device__ void go_through_cap(Pack& d, const Pack& y) const {
    if (!(cap > 0)) return;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float t = y.at[j] / cap;
      d.at[j] *= 1.0f - t * t;
    }
  }
  // Those of the gradient, in its own type; past the row's end nothing.
  template <class Gradient>
  __device__ void set_pack(Gradient* gradient, int64_t row, int64_t i, const Pack& v) const {
    Gradient* to = gradient + row * vocab + i;
    if (whole) return pack(to, v);
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      if (i + j < vocab) store(to + j, v.at[j]);
  }
};

template <class Logits>
__device__ int64_t first_pack() {
  return Logits::kCount * static_cast<int64_t>(threadIdx.x);
}
template <class Logits>
__device__ int64_t next_pack() {
  return Logits::kCount * static_cast<int64_t>(blockDim.x);
}

template <class T>
struct Entropy {
  using Logits = PieceLogits<T>;
  using Pack = typename Logits::Pack;
  Logits logits;
  const int32_t* targets;
  int32_t* fault;

  struct Row {
    double loss;  // thread 0 alone has it
    float log_sum;
    int64_t target;
  };

  __device__ void fetch(int64_t row, int64_t i) const { logits.fetch(row, i); }
  // The target's logit is read before the threads meet: the gradient may take its place afterwards.
  __device__ Row measure(int64_t row) const {
    int64_t target = targets[row];
    if (target < 0 || target >= logits.vocab) {
      if (threadIdx.x == 0) report_fault(fault, CudaFault::kTarget);
      target = 0;
    }
    const float chosen = logits.at(row, target);
    PowerSum powers;
    for (int64_t i = first_pack<Logits>(); i < logits.vocab; i += next_pack<Logits>())
      powers.add(logits.pack_at(row, i));
    powers.join();
    const double loss = threadIdx.x == 0 ? powers.log() - static_cast<double>(chosen) : 0.0;
    return {loss, powers.log_f32(), target};
  }
  // Of a pack, where the loss's gradient times the row's weight is `scale`.
  __device__ Pack gradient(const Row& sums, int64_t row, int64_t i, float scale) const {
    const Pack y = logits.pack_at(row, i);
    Pack out = exp_less(y, sums.log_sum);
    const int64_t target = sums.target - i;
#pragma unroll
    for (int j = 0; j < Logits::kCount; ++j) out.at[j] = out.at[j] * scale - (j == target ? scale : 0.0f);
    logits.go_through_cap(out, y);
    return out;
  }
};

template <class T>
struct Divergence {
  using Logits = PieceLogits<T>;
  using Pack = typename Logits::Pack;
  Logits logits, teacher;

  struct Row {
    double loss;  // thread 0 alone has it
    float t_log, s_log;
  };

  __device__ void fetch(int64_t row, int64_t i) const {
    logits.fetch(row, i);
    teacher.fetch(row, i);
  }
  // One pass: Σ e^t (t − s) grows with the teacher's Σ e^t. What the teacher hides adds nothing.
  __device__ Row measure(int64_t row) const {
    PowerSum t_sum, s_sum;
    float part = 0;
    for (int64_t i = first_pack<Logits>(); i < logits.vocab; i += next_pack<Logits>()) {
      const Pack t = teacher.pack_at(row, i), s = logits.pack_at(row, i);
      part *= t_sum.raise(t);
      const Pack e = exp_less(t, t_sum.largest);
      t_sum.sum += sum_of(e);
      Pack distance;
#pragma unroll
      for (int j = 0; j < Logits::kCount; ++j)
        distance.at[j] = e.at[j] == 0 ? 0.0f : e.at[j] * (t.at[j] - s.at[j]);
      part += sum_of(distance);
      s_sum.add(s);
    }
    const float factor = t_sum.join();
    const double distance = block_sum(static_cast<double>(part * factor));
    s_sum.join();
    const double loss = threadIdx.x == 0 ? distance / t_sum.whole - t_sum.log() + s_sum.log() : 0.0;
    return {loss, t_sum.log_f32(), s_sum.log_f32()};
  }
  __device__ Pack gradient(const Row& sums, int64_t row, int64_t i, float scale) const {
    const Pack y = logits.pack_at(row, i), p = exp_less(teacher.pack_at(row, i), sums.t_log);
    Pack out = exp_less(y, sums.s_log);
#pragma unroll
    for (int j = 0; j < Logits::kCount; ++j) out.at[j] = scale * (out.at[j] - p.at[j]);
    logits.go_through_cap(out, y);
    return out;
  }
};

// losses[row] = w · loss of a piece's row; and the gradient of its logits, null: not wanted. It may be the
// logits: a thread reads no elements but those it writes, once all have their sums. Rows of weight 0 and
// those from `present` on have zeros. A block takes rows in turn, and fetches the next one while it writes
// the gradient of the one before.
template <class Loss, class Gradient>
__global__ void __launch_bounds__(kMostThreads)
    piece_rows(Loss loss, int64_t rows, const float* weights, int64_t present, double* losses,
               Gradient* gradient) {
  using Logits = typename Loss::Logits;
  const int64_t vocab = loss.logits.vocab, begin = first_pack<Logits>(), step = next_pack<Logits>();
  // The last of the thread's packs. They go backwards: what was read last is still near.
  const int64_t last = begin + (vocab - 1 - begin) / step * step;
  for (int64_t i = begin; i < vocab; i += step) loss.fetch(blockIdx.x, i);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t next = row + gridDim.x;
    const float weight = row < present ? weights[row] : 0.0f;
    typename Loss::Row sums{};
    commit_copies();
    wait_for_copies<0>();
    if (weight != 0) sums = loss.measure(row);
    if (threadIdx.x == 0 && row < present) losses[row] = static_cast<double>(weight) * sums.loss;
    if (begin >= vocab) continue;
    for (int64_t i = last; i >= 0; i -= step) {
      if (gradient)
        loss.logits.set_pack(gradient, row, i,
                             weight == 0 ? typename Loss::Pack{} : loss.gradient(sums, row, i, weight));
      if (next < rows) loss.fetch(next, i);
    }
  }
}

GemmMatrix matrix(const Tensor& t, int64_t first = 0) {
  return {t.data<std::byte>() + first * row_bytes(t.dtype(), t.stride(0)), t.stride(0),
          t.dtype() == DType::kBF16};
}

// A product with an output matrix: its factors as cuda_gemm() takes them, and room for a piece's logits.
struct Product {
  Product(CudaBackend cuda, Context& ctx, const OutputRows& rows)
      : x(zeroed_factor(cuda, ctx, rows.x, rows.weight.dtype())),
        weight(weight_factor(cuda, ctx, rows.weight)),
        cap(rows.soft_cap) {}

  // The logits of rows first … first + count − 1.
  template <class T>
  PieceLogits<T> of(CudaBackend cuda, int64_t first, int64_t count) {
    cuda_gemm(cuda, {.layout = GemmLayout::kNT,
                     .m = count,
                     .n = weight.dim(0),
                     .k = weight.dim(1),
                     .a = matrix(x, first),
                     .b = matrix(weight),
                     .c = logits.raw(),
                     .c_stride = weight.dim(0),
                     .c_bf16 = logits.dtype() == DType::kBF16});
    return {logits.data<T>(), weight.dim(0), cap, weight.dim(0) % kPack<T> == 0};
  }

  Tensor x, weight, logits;
  float cap;
};

// Shares a block's memory between the rows of `all`, and returns how many bytes of it they take.
template <class T>
int share_near_rows(std::initializer_list<PieceLogits<T>*> all, int bytes) {
  const int packs = bytes / static_cast<int>(sizeof(uint4) * all.size());
  int place = 0;
  for (PieceLogits<T>* logits : all) {
    if (logits->whole) logits->near = static_cast<int>(std::min(int64_t{packs} * kPack<T>, logits->vocab));
    logits->place = place;
    place += logits->near / kPack<T>;
  }
  return place * static_cast<int>(sizeof(uint4));
}
template <class T>
int share_near_rows(Entropy<T>& loss, int bytes) {
  return share_near_rows<T>({&loss.logits}, bytes);
}
template <class T>
int share_near_rows(Divergence<T>& loss, int bytes) {
  return share_near_rows<T>({&loss.logits, &loss.teacher}, bytes);
}

// As many blocks as run at once.
template <class Loss, class Gradient>
void start_rows(CudaBackend cuda, Loss loss, int64_t count, const float* weights, int64_t present,
                double* losses, Gradient* gradient) {
  constexpr const char* kOp = "output loss";
  const auto kernel = piece_rows<Loss, Gradient>;
  using T = typename Loss::Logits::T;
  const auto threads =
      static_cast<int>(loss_threads(loss.logits.vocab, kMostThreads * sizeof(T) / sizeof(float)));
  int processors = 0, most = 0, blocks = 0;
  const int device = cuda.handle.device;
  cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), kOp);
  cuda_check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), kOp);
  const int bytes = share_near_rows(loss, most - kReduceBytes);
  const auto size = static_cast<size_t>(bytes);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), kOp);
  cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, size), kOp);
  const auto grid = static_cast<unsigned int>(std::min<int64_t>(count, int64_t{blocks} * processors));
  kernel<<<grid, threads, size, cuda.handle.stream>>>(loss, count, weights, present, losses, gradient);
  check_launch(kOp);
}

template <class Loss>
void start_rows(CudaBackend cuda, const Loss& loss, int64_t count, const float* weights, int64_t present,
                double* losses, Tensor& gradient) {
  using T = typename Loss::Logits::T;
  if constexpr (std::is_same_v<T, float>) {
    if (gradient && gradient.dtype() == DType::kF32)
      return start_rows(cuda, loss, count, weights, present, losses, gradient.data<float>());
  }
  start_rows(cuda, loss, count, weights, present, losses,
             gradient ? gradient.data<Bf16>() : static_cast<Bf16*>(nullptr));
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

namespace {

template <class T>
void each_piece(CudaBackend cuda, OutputLossCall& call, int64_t piece, Product& student, Product* teacher,
                Tensor& gradient, double* losses) {
  const int64_t present = present_rows(cuda, call.rows.x), launched = bound(cuda, call.rows.x);
  for (int64_t first = 0; first < launched; first += piece) {
    const int64_t count = std::min(piece, launched - first), there = std::min(count, present - first);
    const PieceLogits<T> logits = student.of<T>(cuda, first, count);
    const float* weights = call.weights.data<float>() + first;
    if (teacher) {
      const Divergence<T> loss{logits, teacher->of<T>(cuda, first, count)};
      start_rows(cuda, loss, count, weights, there, losses + first, gradient);
    } else {
      const Entropy<T> loss{logits, call.targets.data<int32_t>() + first, cuda.handle.fault};
      start_rows(cuda, loss, count, weights, there, losses + first, gradient);
    }
    add_products(cuda, call, student, gradient, first, count);
  }
  if (launched == 0) add_products(cuda, call, student, gradient, 0, 0);
}

}  // namespace

void output_loss_kernel(CudaBackend cuda, Context& ctx, OutputLossCall& call, Tensor& out) {
  const int64_t present = present_rows(cuda, call.rows.x), launched = bound(cuda, call.rows.x);
  const int64_t vocab = call.rows.weight.dim(0);
  const int64_t piece =
      std::min(std::max(call.logits_at_once / vocab / kRowTile * kRowTile, kRowTile), launched);
  Tensor losses = Tensor::empty(ctx, DType::kU8, {launched * static_cast<int64_t>(sizeof(double))});
  Product student(cuda, ctx, call.rows);
  std::optional<Product> teacher;
  if (call.teacher.x) teacher.emplace(cuda, ctx, call.teacher);
  // bf16 where all products are, and rows are whole packs of them.
  const DType factors = student.weight.dtype();
  const bool f32 = (teacher && teacher->weight.dtype() == DType::kF32) || vocab % kPack<Bf16> != 0;
  const DType type = f32 ? DType::kF32 : factors;
  student.logits = Tensor::empty(ctx, type, {piece, vocab});
  if (teacher) teacher->logits = Tensor::empty(ctx, type, {piece, vocab});
  Tensor gradient;
  if (call.dx || call.dw)
    gradient = type == factors ? student.logits : Tensor::empty(ctx, factors, {piece, vocab});
  count_products(cuda, call, present);
  const auto run = type == DType::kBF16 ? each_piece<Bf16> : each_piece<float>;
  run(cuda, call, piece, student, teacher ? &*teacher : nullptr, gradient, losses.data<double>());
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
