// CUB's radix sort, stable and ascending, with its working memory from the context.
#pragma once

#include <cub/device/device_radix_sort.cuh>

#include "tensor/cuda_util.cuh"
#include "tensor/tensor.h"

namespace fathom {

// run(memory, bytes): asked without memory it says how many bytes it needs.
template <class Fn>
void with_room(Context& ctx, Fn run) {
  size_t bytes = 0;
  cuda_check(run(nullptr, bytes), "cub::DeviceRadixSort");
  Tensor room = Tensor::empty(ctx, DType::kU8, {static_cast<int64_t>(bytes)});
  cuda_check(run(room.raw(), bytes), "cub::DeviceRadixSort");
}

template <class Key>
void sort_keys(CudaBackend dev, Context& ctx, const Key* keys, Key* sorted, int64_t count) {
  with_room(ctx, [&](void* memory, size_t& bytes) {
    return cub::DeviceRadixSort::SortKeys(memory, bytes, keys, sorted, static_cast<int32_t>(count), 0,
                                          static_cast<int>(8 * sizeof(Key)), dev.handle.stream);
  });
}

// Sorts by the lowest `bits` of the keys, which hold all that differs.
template <class Key, class Value>
void sort_pairs(CudaBackend dev, Context& ctx, const Key* keys, Key* sorted_keys, const Value* values,
                Value* sorted_values, int64_t count, int bits = static_cast<int>(8 * sizeof(Key))) {
  with_room(ctx, [&](void* memory, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(memory, bytes, keys, sorted_keys, values, sorted_values,
                                           static_cast<int32_t>(count), 0, bits, dev.handle.stream);
  });
}

}  // namespace fathom
