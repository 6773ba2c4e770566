#include "tensor/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/format.h"
#include "base/system_memory.h"
#include "tensor/cuda.h"

namespace fathom {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

std::shared_ptr<void> allocate(Device device, size_t bytes) {
  if (device == Device::kCuda) {
    if constexpr (kHasCuda) return cuda_allocate(bytes);
    throw UserError("this build has no CUDA backend");
  }
  if (device == Device::kGuarded) return guarded_allocate(bytes);
  // calloc: large blocks come zeroed from the system and cost nothing until they are touched (a cache's
  // unused pages).
  void* memory = bytes + kAlignment < bytes ? nullptr : std::calloc(1, bytes + kAlignment);
  if (!memory) fail("out of memory: {} bytes wanted", bytes);
  const std::shared_ptr<void> owner(memory, std::free);
  const auto aligned = (reinterpret_cast<uintptr_t>(memory) + kAlignment - 1) / kAlignment * kAlignment;
  return {owner, reinterpret_cast<void*>(aligned)};
}

std::shared_ptr<void> allocate_uninitialised(Device device, size_t bytes) {
  if constexpr (kHasCuda) {
    if (device == Device::kCuda) return cuda_allocate_uninitialised(bytes);
  }
  return allocate(device, bytes);
}

std::shared_ptr<void> allocate_staging(Device device, size_t bytes) {
  if constexpr (kHasCuda) {
    if (device == Device::kCuda) return cuda_host_memory(bytes);
  }
  return allocate(Device::kCpu, bytes);
}

std::span<float> HostRoom::room(Context& ctx, size_t count) {
  if (count > count_) {
    const size_t bytes = count * sizeof(float);
    memory_.reset();
    count_ = 0;
    memory_ = allocate_staging(ctx.device(), bytes);
    count_ = count;
  }
  return {static_cast<float*>(memory_.get()), count};
}

void expect_to_fill(void* memory, size_t bytes) {
  const std::span<const std::byte> pages = whole_pages({static_cast<const std::byte*>(memory), bytes});
  if (!pages.empty()) madvise(const_cast<std::byte*>(pages.data()), pages.size(), MADV_HUGEPAGE);
}

void copy_bytes(Context& ctx, void* to, Device to_device, const void* from, Device from_device,
                size_t bytes) {
  if (bytes == 0) return;  // an empty span's pointer may be null
  if (to_device == Device::kCpu && from_device == Device::kCpu) {
    std::memcpy(to, from, bytes);
    return;
  }
  Transfers& transfers = ctx.transfers();
  ++(to_device == Device::kCpu     ? transfers.to_host
     : from_device == Device::kCpu ? transfers.to_device
                                   : transfers.on_device);
  if (to_device == Device::kGuarded || from_device == Device::kGuarded) {
    const GuardedAccess open;
    std::memcpy(to, from, bytes);
    return;
  }
  if constexpr (kHasCuda) {
    cuda_copy(ctx.cuda().handle, to, from, bytes);
    if (to_device == Device::kCpu) cuda_wait(ctx.cuda().handle);
    return;
  }
  throw UserError("this build has no CUDA backend");
}

}  // namespace fathom
