#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "tensor/cuda.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

__global__ void probe_kernel() {}

const char* text_of(CudaFault fault) {
  switch (fault) {
    case CudaFault::kEmbedId:
      return "embed: a token id is outside the table";
    case CudaFault::kTarget:
      return "a target is outside the vocabulary";
    case CudaFault::kSequence:
      return "a row's sequence is outside the cache";
    case CudaFault::kSequenceFull:
      return "append_kv: a sequence is full";
    case CudaFault::kSlot:
      return "append_kv: a page is outside the pool";
    case CudaFault::kNoScores:
      return "quantile: at least one score must count";
    case CudaFault::kScoreWeight:
      return "weighted_quantile: a weight must not be below 0";
    case CudaFault::kNone:
      break;
  }
  return "unknown fault";
}

void require_device() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    cudaGetLastError();  // or a later call would report it again
    throw UserError(std::string("cuda: no usable CUDA device (") +
                    (error != cudaSuccess ? cudaGetErrorString(error) : "none found") + ")");
  }
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, probe_kernel) != cudaSuccess) {
    cudaGetLastError();
    cudaDeviceProp properties;
    cuda_check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    throw UserError(std::string("cuda: this build has no code for ") + properties.name +
                    ", compute capability " + std::to_string(properties.major) + "." +
                    std::to_string(properties.minor));
  }
}

}  // namespace

void cuda_check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

CudaHandle::CudaHandle() {
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  void* word = nullptr;
  const cudaError_t error = cudaHostAlloc(&word, sizeof *fault, cudaHostAllocMapped);
  if (error != cudaSuccess) cudaStreamDestroy(stream);
  cuda_check(error, "cudaHostAlloc");
  fault = static_cast<int32_t*>(word);
  *fault = 0;
}

CudaHandle::~CudaHandle() {
  cudaStreamSynchronize(stream);  // kernels in flight may still write the fault
  cudaFreeHost(fault);
  cudaStreamDestroy(stream);
}

std::shared_ptr<CudaHandle> make_cuda_handle() {
  require_device();
  return std::make_shared<CudaHandle>();
}

std::shared_ptr<void> cuda_allocate(size_t bytes) {
  const size_t size = std::max<size_t>(bytes, 64);  // a tensor without elements is still defined
  void* memory = nullptr;
  if (cudaMalloc(&memory, size) != cudaSuccess) {
    cudaGetLastError();
    throw UserError("out of GPU memory: " + std::to_string(bytes) + " bytes wanted");
  }
  std::shared_ptr<void> owner(memory, [](void* p) { cudaFree(p); });
  cuda_check(cudaMemsetAsync(memory, 0, size, cudaStreamPerThread), "cudaMemset");
  cuda_check(cudaStreamSynchronize(cudaStreamPerThread),
             "cudaMemset");  // handles' streams do not wait for this one
  return owner;
}

void cuda_copy(CudaHandle& handle, void* to, const void* from, size_t bytes) {
  if (bytes > 0) cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle.stream), "cudaMemcpy");
  cuda_check(cudaStreamSynchronize(handle.stream), "a CUDA kernel or copy");
  const auto fault = static_cast<CudaFault>(*handle.fault);
  if (fault == CudaFault::kNone) return;
  *handle.fault = 0;
  throw UserError(text_of(fault));
}

}  // namespace fathom
