// What the kernels on Hopper's tensor cores share (head dimension 64). A block is a warpgroup and keeps one
// tile, 64 rows of queries or keys. It goes through the other side's tiles, which come by bulk copies into a
// ring of stages. No warp waits for another one: the last warp that leaves a tile fetches the one that takes
// its place.
#pragma once

#include "ops/attention/self_attention_softmax.cuh"
#include "ops/kernels/wgmma.cuh"

namespace fathom {

inline constexpr int kTile = 64;
inline constexpr uint32_t kTileBytes = kTile * kTileRowBytes, kNumberBytes = kTile * sizeof(float);
static_assert(kPlaceTile % kTile == 0);

// Forward and dq: a block takes a tile of queries and a head. The tiles at the end of a sequence take
// longest: they come first.
struct HeadTile {
  int head, first;
  static unsigned int blocks(const MmaCall& call) {
    return blocks_for(call.query_places, kTile) * static_cast<unsigned int>(call.shape.heads);
  }
  __device__ explicit HeadTile(const MmaCall& call)
      : head(static_cast<int>(blockIdx.x) % call.shape.heads),
        first(static_cast<int>((gridDim.x - 1 - blockIdx.x) / call.shape.heads) * kTile) {}
};

// Place p is in tile p / kTile: the tiles of the other side that a tile's rows reach, by their spans.
struct Tiles {
  int begin, count;
  __device__ explicit Tiles(const Reach& reach)
      : begin(reach.first.begin / kTile), count(max(0, (reach.last.end + kTile - 1) / kTile - begin)) {}
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// memory: 16 bytes for every stage.
template <int kStages>
struct Ring {
  SharedAddress memory;
  int tiles;  // that pass through it

  // By one thread. fetch(tile, stage, barrier) starts its copies.
  template <class Fetch>
  __device__ void start(Fetch fetch) const {
    for (int i = 0; i < kStages; ++i) {
      prepare_arrival(barrier(i));
      store_shared(counter(i), 0);
    }
    arrivals_prepared();
    for (int i = 0; i < min(kStages, tiles); ++i) fetch(i, i, barrier(i));
  }
  // Every warp waits for each tile and leaves it.
  __device__ void wait(int tile) const { wait_for_arrival(barrier(tile % kStages), tile / kStages % 2); }
  template <class Fetch>
  __device__ void leave(int tile, Fetch fetch) const {
    const int stage = tile % kStages;
    __syncwarp();
    if (lane_id() == 0 && is_last(counter(stage), kWarpgroup / kWarp) && tile + kStages < tiles)
      fetch(tile + kStages, stage, barrier(stage));
  }
  __device__ SharedAddress barrier(int stage) const { return memory + static_cast<uint32_t>(stage) * 16; }
  __device__ SharedAddress counter(int stage) const { return barrier(stage) + 8; }
};

// sums = the tile's 64 rows · the other tile's rows from `first` on, as many as sums has columns.
template <int kColumns>
__device__ inline void multiply_tiles(SharedAddress tile, SharedAddress other, int first,
                                      float (&sums)[kColumns][4]) {
  other += static_cast<uint32_t>(first) * kTileRowBytes;
  multiply_across<false>(sums, across(tile, 0), across(other, 0));
#pragma unroll
  for (int k = 16; k < kTile; k += 16) multiply_across<true>(sums, across(tile, k), across(other, k));
}
// sums += weights (64, 16 · kSteps) · the tile's rows from `first` on
template <int kSteps>
__device__ inline void add_weighted_tile(const uint32_t (&weights)[kSteps][4], SharedAddress tile, int first,
                                         float (&sums)[kTile / 8][4]) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) add_down(sums, weights[k], down(tile, first + k * 16));
}

template <int kSteps>
__device__ inline void pack_all(const float (&scores)[2 * kSteps][4], uint32_t (&weights)[kSteps][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) pack_scores(scores, step, weights[step]);
}

// A tile of keys and the values' behind it: from place `at` of packed rows.
__device__ inline void fetch_keys(const MmaCall& call, int64_t at, SharedAddress to, SharedAddress barrier) {
  expect_bytes(barrier, 2 * kTileBytes);
  copy_bulk(to, call.k + at * kTile, kTileBytes, barrier);
  copy_bulk(to + kTileBytes, call.v + at * kTile, kTileBytes, barrier);
}

#endif

}  // namespace fathom
