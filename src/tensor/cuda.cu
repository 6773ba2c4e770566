#include <stdexcept>
#include <string>

#include "base/error.h"
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

std::string version_text(int version) {  // 13020 -> "13.2"
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Why there is no device, in one line.
std::string missing_device(cudaError_t error) {
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (error == cudaErrorInsufficientDriver && driver == 0) return "cuda: no NVIDIA driver is installed";
  if (error == cudaErrorInsufficientDriver)
    return "cuda: the NVIDIA driver is too old: it has CUDA " + version_text(driver) + ", this build needs " +
           version_text(CUDART_VERSION);
  if (error == cudaErrorNoDevice || error == cudaSuccess)
    return "cuda: the NVIDIA driver finds no device (CUDA_VISIBLE_DEVICES may hide them)";
  return std::string("cuda: no usable CUDA device (") + cudaGetErrorString(error) + ")";
}

void require_device(int index) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    cudaGetLastError();  // or a later call would report it again
    throw UserError(missing_device(error));
  }
  const std::string name = "cuda:" + std::to_string(index);
  if (index < 0 || index >= devices)
    throw UserError(name + ": there " +
                    (devices == 1 ? "is 1 CUDA device, number 0"
                                  : "are " + std::to_string(devices) + " CUDA devices, numbered from 0"));
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  const cudaError_t chosen = try_device(index);
  if (chosen != cudaSuccess) {
    cudaGetLastError();
    throw UserError(name + ": " + properties.name + " cannot be used (" + cudaGetErrorString(chosen) + ")");
  }
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, probe_kernel) != cudaSuccess) {
    cudaGetLastError();
    throw UserError(name + ": this build has no code for " + properties.name + ", compute capability " +
                    std::to_string(properties.major) + "." + std::to_string(properties.minor));
  }
  if (!properties.memoryPoolsSupported)
    throw UserError(name + ": " + properties.name + " has no memory pools, which this build needs");
}

// Is the device gone for this process? Every later call fails alike.
bool lost(cudaError_t error) {
  switch (error) {
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorMisalignedAddress:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorSystemNotReady:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

// Waits for what is queued.
void finish(CudaHandle& handle) {
  cuda_check(cudaStreamSynchronize(handle.stream), "a CUDA kernel or copy");
}

}  // namespace

void cuda_check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  const std::string what = std::string(call) + ": " + cudaGetErrorString(error);
  if (lost(error))
    throw UserError(
        "cuda: the device is lost (" + what +
        "); this process can no longer use it. What was written before is whole: a training goes on "
        "from its last checkpoint");
  throw std::runtime_error(what);
}

void CudaHandle::open(int index) {
  device = index;
  use_device(index);
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  join_device_memory(index, stream);
  void* word = nullptr;
  cuda_check(cudaHostAlloc(&word, sizeof *fault, cudaHostAllocMapped), "cudaHostAlloc");
  fault = static_cast<int32_t*>(word);
  *fault = 0;
  work = std::static_pointer_cast<Work>(cuda_allocate(2 * sizeof(Work)));
}

CudaHandle::~CudaHandle() {
  if (!stream) return;
  cudaStreamSynchronize(stream);  // kernels in flight may still write the fault or a count
  gemm.reset();
  leave_device_memory(device, stream);
  cudaFreeHost(fault);
  cudaStreamDestroy(stream);
}

std::shared_ptr<CudaHandle> make_cuda_handle(int index) {
  require_device(index);
  auto handle = std::make_shared<CudaHandle>();
  handle->open(index);
  return handle;
}

void cuda_use(CudaHandle& handle) {
  use_device(handle.device);
}

// Bytes of the host that are not page-locked are in CUDA's own memory when cudaMemcpyAsync returns: the
// caller may change them.
void cuda_copy(CudaHandle& handle, void* to, const void* from, size_t bytes) {
  if (bytes > 0) cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle.stream), "cudaMemcpy");
}

void cuda_wait(CudaHandle& handle) {
  finish(handle);
  const auto fault = static_cast<CudaFault>(*handle.fault);
  if (fault == CudaFault::kNone) return;
  *handle.fault = 0;
  throw UserError(text_of(fault));
}

Work* device_work(CudaBackend dev) {
  dev.handle.work_changed = true;
  return dev.handle.work.get() + (dev.counters.deciding() ? 1 : 0);
}

Work cuda_work(CudaHandle& handle) {
  if (!handle.work_changed) return handle.work_read;
  Work sums[2];
  cuda_check(cudaMemcpyAsync(sums, handle.work.get(), sizeof sums, cudaMemcpyDefault, handle.stream),
             "cudaMemcpy");
  finish(handle);
  handle.work_changed = false;
  handle.work_read = sums[0] + sums[1];
  handle.work_read.policy_madds = sums[1].madds;
  return handle.work_read;
}

}  // namespace fathom
