// What the CUDA files share: the handle behind the forward declaration, checked calls, and faults found by
// kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/context.h"

namespace fathom {

// What a kernel found wrong in its operands. It cannot throw: it records the first fault, goes on with a
// harmless value, and the next cuda_copy() (the one place where the host waits) throws.
enum class CudaFault : int32_t {
  kNone,
  kEmbedId,       // a token id outside the table
  kTarget,        // token_log_probs, cross_entropy: a target outside the vocabulary
  kSequence,      // a sequence outside the cache
  kSequenceFull,  // append_kv: no entry or page left
  kSlot,          // append_kv: a page outside the pool
  kNoScores,      // quantile, weighted_quantile: no score counts
  kScoreWeight,   // weighted_quantile: a weight below 0
};

struct CudaHandle {
  CudaHandle();
  ~CudaHandle();
  CudaHandle(const CudaHandle&) = delete;
  CudaHandle& operator=(const CudaHandle&) = delete;

  cudaStream_t stream = nullptr;
  int32_t* fault = nullptr;  // page-locked host memory that kernels write in place
};

// std::runtime_error "cudaMalloc: out of memory" unless it succeeded.
void cuda_check(cudaError_t error, const char* call);

// After a launch: its configuration's errors. Those of its run appear at a later call.
inline void check_launch(const char* kernel) {
  cuda_check(cudaGetLastError(), kernel);
}

inline unsigned int blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned int>((count + per_block - 1) / per_block);
}

#if defined(__CUDACC__)
__device__ inline void report_fault(int32_t* fault, CudaFault what) {
  *fault = static_cast<int32_t>(what);
}
#endif

}  // namespace fathom
