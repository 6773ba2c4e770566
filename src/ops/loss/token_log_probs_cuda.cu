#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/loss/token_log_probs.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 512;

// A block per row: exponentials in f32, their sum in f64.
__global__ void log_probs(DeviceFloatRows logits, const int32_t* targets, float* out, int32_t* fault) {
  const int64_t row = blockIdx.x;
  if (!logits.has(row)) return;
  const float* x = logits.data + row * logits.step;
  float largest = -__builtin_huge_valf();
  for (int64_t i = threadIdx.x; i < logits.width; i += kThreads) largest = fmaxf(largest, x[i]);
  largest = block_max(largest);
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < logits.width; i += kThreads) sum += expf(x[i] - largest);
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  int64_t target = targets[row];
  if (target < 0 || target >= logits.width) {
    report_fault(fault, CudaFault::kTarget);
    target = 0;
  }
  out[row] = static_cast<float>(static_cast<double>(x[target]) - static_cast<double>(largest) - log(sum));
}

}  // namespace

void token_log_probs_kernel(CudaBackend dev, const Tensor& logits, const Tensor& targets, Tensor& out) {
  const DeviceFloatRows rows(logits);
  if (rows.rows == 0) return;
  log_probs<<<blocks_for(rows.rows, 1), kThreads, 0, dev.handle.stream>>>(
      rows, targets.data<int32_t>(), out.data<float>(), dev.handle.fault);
  check_launch("token_log_probs");
}

}  // namespace fathom
