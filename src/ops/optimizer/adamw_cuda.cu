#include "ops/optimizer/adamw.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 256, kEach = 4, kPerBlock = kThreads * kEach;
constexpr int kPieces = 96;  // segments that one launch takes as its argument: below its 4 KB

struct Piece {
  AdamWSegment segment;
  unsigned int first_block;
};
struct Pieces {
  Piece at[kPieces];
  int count;
};
struct Pointers {
  float* value;
  const float* gradient;
  float *mean, *square;
};

// The last piece that begins at this block or before it.
__device__ const Piece& piece_of_block(const Pieces& pieces) {
  int low = 0, high = pieces.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (pieces.at[middle].first_block <= blockIdx.x) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return pieces.at[low];
}

__device__ void move(const AdamWSegment& segment, const AdamWParams& p, float gradient, float& mean,
                     float& square, float& value) {
  const float g = gradient * p.gradient_factor;
  mean = p.beta1 * mean + (1 - p.beta1) * g;
  square = p.beta2 * square + (1 - p.beta2) * g * g;
  value = value * segment.keep - segment.rate * mean / (sqrtf(square) * p.root + p.eps);
}

// A block per kPerBlock elements of a segment, four of them to a thread.
__global__ void adamw_elements(const __grid_constant__ Pieces pieces, Pointers p, AdamWParams params) {
  const Piece& piece = piece_of_block(pieces);
  const AdamWSegment& segment = piece.segment;
  const int64_t block = blockIdx.x - piece.first_block;
  const int64_t first = segment.begin + block * kPerBlock + static_cast<int64_t>(threadIdx.x) * kEach;
  if (first + kEach <= segment.end) {
    const float4 g = *reinterpret_cast<const float4*>(p.gradient + first);
    float4 mean = *reinterpret_cast<const float4*>(p.mean + first);
    float4 square = *reinterpret_cast<const float4*>(p.square + first);
    float4 value = *reinterpret_cast<const float4*>(p.value + first);
    move(segment, params, g.x, mean.x, square.x, value.x);
    move(segment, params, g.y, mean.y, square.y, value.y);
    move(segment, params, g.z, mean.z, square.z, value.z);
    move(segment, params, g.w, mean.w, square.w, value.w);
    *reinterpret_cast<float4*>(p.mean + first) = mean;
    *reinterpret_cast<float4*>(p.square + first) = square;
    *reinterpret_cast<float4*>(p.value + first) = value;
    return;
  }
  for (int64_t i = first; i < segment.end; ++i)
    move(segment, params, p.gradient[i], p.mean[i], p.square[i], p.value[i]);
}

}  // namespace

void adamw_kernel(CudaBackend dev, AdamWBuffers& buffers, std::span<const AdamWSegment> segments,
                  const AdamWParams& params) {
  const Pointers pointers{buffers.value.data<float>(), buffers.gradient.data<float>(),
                          buffers.mean.data<float>(), buffers.square.data<float>()};
  Pieces pieces{};
  unsigned int blocks = 0;
  const auto launch = [&] {
    if (pieces.count == 0) return;
    adamw_elements<<<blocks, kThreads, 0, dev.handle.stream>>>(pieces, pointers, params);
    check_launch("adamw");
    pieces.count = 0;
    blocks = 0;
  };
  for (const AdamWSegment& segment : segments) {
    if (segment.begin == segment.end) continue;
    pieces.at[pieces.count++] = {segment, blocks};
    blocks += blocks_for(segment.end - segment.begin, kPerBlock);
    if (pieces.count == kPieces) launch();
  }
  launch();
}

}  // namespace fathom
