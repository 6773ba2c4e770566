// A block per draw; a warp sums a piece of the vocabulary.
#include "ops/kernels/warp.cuh"
#include "ops/rows/draw_tokens.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kWarps = 16, kThreads = kWarps * kWarp, kPiece = static_cast<int>(kDrawPiece);

struct Drawn {
  const float* logits;  // of the row
  int vocab;
  float temperature, largest;

  __device__ double weight(int id) const {
    return id < vocab ? static_cast<double>(expf((logits[id] - largest) / temperature)) : 0.0;
  }
};

// The token of a piece at which the weights before it and its own exceed `left`, by one warp; the last one
// that can come where rounding leaves nothing.
__device__ int32_t find_token(const Drawn& drawn, int piece, double left) {
  const int lane = static_cast<int>(threadIdx.x);
  int32_t last = -1;
  for (int first = piece * kPiece; first < (piece + 1) * kPiece; first += kWarp) {
    const double weight = drawn.weight(first + lane);
    double up_to = weight;
    for (int step = 1; step < kWarp; step *= 2) {
      const double before = __shfl_up_sync(kAllLanes, up_to, step);
      if (lane >= step) up_to += before;
    }
    const unsigned int possible = __ballot_sync(kAllLanes, weight > 0.0),
                       past = __ballot_sync(kAllLanes, weight > 0.0 && left < up_to);
    if (past != 0) return first + __ffs(static_cast<int>(past)) - 1;
    if (possible != 0) last = first + kWarp - 1 - __clz(static_cast<int>(possible));
    left -= __shfl_sync(kAllLanes, up_to, kWarp - 1);
  }
  return last;
}

__global__ void __launch_bounds__(kThreads)
    draw(const float* logits, int64_t step, int vocab, const int32_t* rows, const float* how, int32_t* out) {
  extern __shared__ double sums[];  // (pieces)
  const float* number = how + 3 * static_cast<int64_t>(blockIdx.x);
  Drawn drawn{logits + rows[blockIdx.x] * step, vocab, number[0], -__builtin_huge_valf()};
  for (int i = static_cast<int>(threadIdx.x); i < vocab; i += kThreads)
    drawn.largest = fmaxf(drawn.largest, drawn.logits[i]);
  drawn.largest = block_max(drawn.largest);
  const int pieces = (vocab + kPiece - 1) / kPiece, lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int piece = static_cast<int>(threadIdx.x) / kWarp; piece < pieces; piece += kWarps) {
    double sum = 0.0;
    for (int i = lane; i < kPiece; i += kWarp) sum += drawn.weight(piece * kPiece + i);
    sum = warp_sum(sum);
    if (lane == 0) sums[piece] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  double total = 0.0;
  for (int piece = 0; piece < pieces; ++piece) total += sums[piece];
  double left = (static_cast<double>(number[1]) + static_cast<double>(number[2])) * total;
  int piece = 0;
  while (piece + 1 < pieces && left >= sums[piece]) left -= sums[piece++];
  const int32_t token = isfinite(total) ? find_token(drawn, piece, left) : -1;
  if (threadIdx.x == 0) out[blockIdx.x] = token;
}

}  // namespace

void draw_tokens_kernel(CudaBackend dev, const Tensor& logits, const Tensor& rows, const Tensor& how,
                        Tensor& out) {
  const int64_t pieces = (logits.dim(1) + kDrawPiece - 1) / kDrawPiece;
  draw<<<blocks_for(rows.dim(0), 1), kThreads, static_cast<size_t>(pieces) * sizeof(double),
         dev.handle.stream>>>(logits.data<float>(), logits.stride(0), static_cast<int>(logits.dim(1)),
                              rows.data<int32_t>(), how.data<float>(), out.data<int32_t>());
  check_launch("draw_tokens");
}

}  // namespace fathom
