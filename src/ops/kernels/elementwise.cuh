// out[i] = fn(inputs[i]…) over rows that may be strided.
#pragma once

#include "ops/kernels/row_set_cuda.cuh"
#include "tensor/cuda_util.cuh"

namespace fathom {

inline constexpr int kMapThreads = 256;

// A block per kMapThreads elements of a row.
template <class Fn, class... Rows>
__global__ void map_rows_kernel(DeviceFloatRows first, unsigned int pieces, Fn fn, float* out, Rows... more) {
  const int64_t row = blockIdx.x / pieces;
  const int64_t i = static_cast<int64_t>(blockIdx.x % pieces) * kMapThreads + threadIdx.x;
  if (i >= first.width || !first.has(row)) return;
  out[row * first.width + i] = fn(first.data[row * first.step + i], more.data[row * more.step + i]...);
}

template <class Fn, class... Rows>
void map_rows(CudaBackend dev, const char* op, float* out, Fn fn, const DeviceFloatRows& first,
              const Rows&... more) {
  if (first.rows == 0 || first.width == 0) return;
  const unsigned int pieces = blocks_for(first.width, kMapThreads);
  map_rows_kernel<<<static_cast<unsigned int>(first.rows) * pieces, kMapThreads, 0, dev.handle.stream>>>(
      first, pieces, fn, out, more...);
  check_launch(op);
}

// fn(inputs[i]…) is (out_a[i], out_b[i]): the gradients of two operands.
template <class Fn, class... Rows>
__global__ void map_rows_to_two_kernel(DeviceFloatRows first, unsigned int pieces, Fn fn, float* out_a,
                                       float* out_b, Rows... more) {
  const int64_t row = blockIdx.x / pieces;
  const int64_t i = static_cast<int64_t>(blockIdx.x % pieces) * kMapThreads + threadIdx.x;
  if (i >= first.width || !first.has(row)) return;
  const float2 both = fn(first.data[row * first.step + i], more.data[row * more.step + i]...);
  out_a[row * first.width + i] = both.x;
  out_b[row * first.width + i] = both.y;
}

template <class Fn, class... Rows>
void map_rows_to_two(CudaBackend dev, const char* op, float* out_a, float* out_b, Fn fn,
                     const DeviceFloatRows& first, const Rows&... more) {
  if (first.rows == 0 || first.width == 0) return;
  const unsigned int pieces = blocks_for(first.width, kMapThreads);
  map_rows_to_two_kernel<<<static_cast<unsigned int>(first.rows) * pieces, kMapThreads, 0,
                           dev.handle.stream>>>(first, pieces, fn, out_a, out_b, more...);
  check_launch(op);
}

// out[i] = fn(inputs[i]…) over the elements that are there of dense tensors of one shape, any rank.
template <class T, class Fn, class... More>
__global__ void map_elements_kernel(const T* first, int64_t elements, const int32_t* count, int64_t per_row,
                                    Fn fn, T* out, const More*... more) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x;
  if (i >= elements || (count && i >= *count * per_row)) return;
  out[i] = fn(first[i], more[i]...);
}

template <class T = float, class Fn, class... More>
void map_elements(CudaBackend dev, const char* op, Tensor& out, Fn fn, const Tensor& first,
                  const More&... more) {
  const int64_t elements = out.numel();
  if (elements == 0) return;
  map_elements_kernel<<<blocks_for(elements, kMapThreads), kMapThreads, 0, dev.handle.stream>>>(
      first.template data<T>(), elements, out.row_count(), elements / out.dim(0), fn, out.data<T>(),
      more.template data<T>()...);
  check_launch(op);
}

}  // namespace fathom
