// What the CUDA files share: the handle behind the forward declaration, checked calls, faults found by
// kernels, counts that the host learns, and work that kernels count.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/context.h"
#include "tensor/cuda.h"

namespace fathom {

class CountPool;   // cuda_counts.cu
struct GemmPlans;  // ops/linear/gemm_cuda.cu

// What a kernel found wrong in its operands. It cannot throw: it records the first fault, goes on with a
// harmless value, and the next cuda_wait() throws.
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
  CudaHandle() = default;
  ~CudaHandle();
  CudaHandle(const CudaHandle&) = delete;
  CudaHandle& operator=(const CudaHandle&) = delete;

  void open(int index);

  int device = -1;
  cudaStream_t stream = nullptr;
  int32_t* fault = nullptr;           // page-locked host memory that kernels write in place
  std::shared_ptr<Work> work;         // two on the device: what kernels add up, and that inside a PolicyWork
  bool work_changed = false;          // `work` was handed out since it was last read
  Work work_read;                     // as last read
  std::shared_ptr<CountPool> counts;  // made at the first count
  std::shared_ptr<GemmPlans> gemm;    // cuBLASLt's handle, workspace and plans, made at the first product
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

// The calling thread's GPU; the second tells whether it could be had.
void use_device(int device);
cudaError_t try_device(int device);

// Allocations and frees (cuda_memory.cu) are in order with the work of the streams that have joined.
void join_device_memory(int device, cudaStream_t stream);
void leave_device_memory(int device, cudaStream_t stream);

// A count as the kernel that selects sees it.
struct DeviceCount {
  int32_t* count;  // what kernels read
  uint64_t* host;  // page-locked: what the host reads; null: the count is not from cuda_count()
  uint64_t tag;    // in the upper half of *host; says that this selection wrote it
};
DeviceCount device_count(CudaBackend dev, Tensor& count);

// Where a kernel adds up (count_work) what depends on numbers that only the device knows: the rows of a
// compacted tensor, the keys that a query sees. Counters::total() includes it. To be asked for before each
// launch: the answer says whether the work is that of deciding.
Work* device_work(CudaBackend dev);

#if defined(__CUDACC__)
__device__ inline void report_fault(int32_t* fault, CudaFault what) {
  *fault = static_cast<int32_t>(what);
}

// By one thread, once.
__device__ inline void write_count(const DeviceCount& to, int32_t count) {
  *to.count = count;
  if (!to.host) return;
  __threadfence_system();
  *static_cast<volatile uint64_t*>(to.host) = to.tag | static_cast<uint32_t>(count);
}

// Whole numbers: their sum does not depend on the order. One thread for as much work as is at hand.
__device__ inline void count_work(Work* work, const Work& done) {
  const auto add = [](uint64_t& sum, uint64_t more) {
    if (more > 0)
      atomicAdd(reinterpret_cast<unsigned long long*>(&sum), static_cast<unsigned long long>(more));
  };
  add(work->madds, done.madds);
  add(work->weight_bytes, done.weight_bytes);
  add(work->cache_bytes, done.cache_bytes);
  add(work->unit_rows, done.unit_rows);
}
#endif

}  // namespace fathom
