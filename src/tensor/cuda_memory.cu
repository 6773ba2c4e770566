// GPU memory: CUDA's stream-ordered pool, which keeps what is given back. An allocation does not know which
// handle will use it, so each GPU has one stream for allocating and freeing; the streams of the handles wait
// for it after an allocation, and it waits for them before a free. The host never waits.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/out_of_memory.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

struct DeviceMemory {
  explicit DeviceMemory(int device) {
    uint64_t keep = UINT64_MAX;  // nothing goes back to the system while the process lives
    cuda_check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
    cuda_check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
               "cudaMemPoolSetAttribute");
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  }

  // What `later` gets from now on runs after what `earlier` has.
  cudaError_t order(cudaStream_t earlier, cudaStream_t later) {
    const cudaError_t error = cudaEventRecord(event, earlier);
    return error == cudaSuccess ? cudaStreamWaitEvent(later, event, 0) : error;
  }

  std::mutex mutex;
  cudaMemPool_t pool = nullptr;
  cudaStream_t stream = nullptr;  // allocations and frees
  cudaEvent_t event = nullptr;
  std::vector<cudaStream_t> users;
};

// Never destroyed: tensors may outlive everything else. The thread's current GPU must be `device`.
DeviceMemory& memory_of(int device) {
  static std::mutex mutex;
  static auto* memories = new std::map<int, std::unique_ptr<DeviceMemory>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<DeviceMemory>& memory = (*memories)[device];
  if (!memory) memory = std::make_unique<DeviceMemory>(device);
  return *memory;
}

thread_local int thread_device = -1;  // -1: not chosen yet
std::atomic<int> newest_device{0};    // what a thread without a choice takes

int current_device() {
  if (thread_device < 0) use_device(newest_device);
  return thread_device;
}

[[noreturn]] void out_of_memory(size_t bytes) {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  throw OutOfMemory("GPU", bytes, free, total);
}

void* take(DeviceMemory& memory, size_t bytes) {
  void* taken = nullptr;
  cudaError_t error = cudaMallocAsync(&taken, bytes, memory.stream);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or a later call would report it again
    // Blocks that are free, or will be, may have the wrong sizes: they go back to the system first.
    cuda_check(cudaStreamSynchronize(memory.stream), "a CUDA kernel before an allocation");
    cuda_check(cudaMemPoolTrimTo(memory.pool, 0), "cudaMemPoolTrimTo");
    error = cudaMallocAsync(&taken, bytes, memory.stream);
  }
  if (error == cudaErrorMemoryAllocation || error == cudaErrorInvalidValue) {  // the latter: absurdly much
    cudaGetLastError();
    out_of_memory(bytes);
  }
  cuda_check(error, "cudaMallocAsync");
  return taken;
}

// Errors are left to those that can throw: at the end of the process CUDA may be gone already.
void give_back(DeviceMemory& memory, void* taken) {
  const std::lock_guard lock(memory.mutex);
  cudaError_t error = cudaSuccess;
  for (const cudaStream_t user : memory.users) {
    if (error == cudaSuccess) error = memory.order(user, memory.stream);
  }
  if (error == cudaSuccess) error = cudaFreeAsync(taken, memory.stream);
  if (error != cudaSuccess) cudaGetLastError();
}

std::shared_ptr<void> allocate_on_gpu(size_t bytes, bool zeroed) {
  const size_t size = std::max<size_t>(bytes, 64);  // a tensor without elements is still defined
  DeviceMemory& memory = memory_of(current_device());
  void* taken = nullptr;
  {
    const std::lock_guard lock(memory.mutex);
    taken = take(memory, size);
    cudaError_t error = zeroed ? cudaMemsetAsync(taken, 0, size, memory.stream) : cudaSuccess;
    for (const cudaStream_t user : memory.users) {
      if (error == cudaSuccess) error = memory.order(memory.stream, user);
    }
    if (error != cudaSuccess) cudaFreeAsync(taken, memory.stream);
    cuda_check(error, "cudaMemset");
  }
  return {taken, [&memory](void* p) { give_back(memory, p); }};
}

}  // namespace

void use_device(int device) {
  if (thread_device != device) cuda_check(try_device(device), "cudaSetDevice");
}

cudaError_t try_device(int device) {
  const cudaError_t error = cudaSetDevice(device);
  thread_device = error == cudaSuccess ? device : -1;
  return error;
}

void join_device_memory(int device, cudaStream_t stream) {
  DeviceMemory& memory = memory_of(device);
  const std::lock_guard lock(memory.mutex);
  cuda_check(memory.order(memory.stream, stream), "cudaStreamWaitEvent");
  memory.users.push_back(stream);
  newest_device = device;
}

void leave_device_memory(int device, cudaStream_t stream) {
  DeviceMemory& memory = memory_of(device);
  const std::lock_guard lock(memory.mutex);
  std::erase(memory.users, stream);
}

std::shared_ptr<void> cuda_allocate(size_t bytes) {
  return allocate_on_gpu(bytes, true);
}

std::shared_ptr<void> cuda_allocate_uninitialised(size_t bytes) {
  return allocate_on_gpu(bytes, false);
}

std::shared_ptr<void> cuda_host_memory(size_t bytes) {
  void* memory = nullptr;
  current_device();  // of a thread that has used no handle: not always the first
  const cudaError_t error = cudaHostAlloc(&memory, std::max<size_t>(bytes, 1), cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or a later call would report it again
    throw OutOfMemory("page-locked", bytes);
  }
  cuda_check(error, "cudaHostAlloc");
  return {memory, [](void* p) { cudaFreeHost(p); }};
}

}  // namespace fathom
