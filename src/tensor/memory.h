// Device memory: allocation and copies between devices.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "tensor/context.h"

namespace fathom {

// 64-byte aligned, zeroed. More than the machine has is a UserError that names the size.
std::shared_ptr<void> allocate(Device device, size_t bytes);

// For what is written before it is read. (On the CPU zeroed, too: the system hands out large blocks zeroed.)
std::shared_ptr<void> allocate_uninitialised(Device device, size_t bytes);

// A copy to the host is complete when this returns. A copy to a device is complete before the work that is
// queued there next; memory of allocate_staging() is read until then.
void copy_bytes(Context& ctx, void* to, Device to_device, const void* from, Device from_device, size_t bytes);

// Memory of the CPU that copies to a device read, uninitialised. For a GPU it is page-locked: copies run
// beside the host, so that the memory must stay as it is until the device has been waited for.
std::shared_ptr<void> allocate_staging(Device device, size_t bytes);

// Memory of the CPU that a device's results are copied to, again and again. For a GPU it is page-locked: the
// copies are several times as fast.
class HostRoom {
 public:
  // Room for `count` numbers. What an earlier call returned may be gone.
  std::span<float> room(Context& ctx, size_t count);

 private:
  std::shared_ptr<void> memory_;
  size_t count_ = 0;
};

// Memory of the CPU that is about to be written as a whole: large pages, where the system has them, come
// faster than many small ones. Only advice.
void expect_to_fill(void* memory, size_t bytes);

}  // namespace fathom
