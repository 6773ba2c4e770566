// What other code may use of CUDA, without CUDA types. Implemented in cuda*.cu where there is a toolkit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/counters.h"

namespace fathom {

class Tensor;
struct CudaBackend;
struct CudaHandle;

// index: of the GPU, as CUDA numbers them. What stands in the way of using it is a UserError.
std::shared_ptr<CudaHandle> make_cuda_handle(int index);
// The calling thread works on the handle's GPU from now on.
void cuda_use(CudaHandle& handle);

// On the GPU of the handle that the thread used last (of the newest handle, where it used none). Work that is
// queued later, on any handle, may use the memory; work that was queued before the owner's end still may.
// More than there is: a UserError that says how much is free.
std::shared_ptr<void> cuda_allocate(size_t bytes);  // zeroed
std::shared_ptr<void> cuda_allocate_uninitialised(size_t bytes);

// Page-locked memory of the host. More than there is: a UserError.
std::shared_ptr<void> cuda_host_memory(size_t bytes);

// In the order of the handle's stream. The host's bytes are read at once; those that go to the host are there
// after cuda_wait().
void cuda_copy(CudaHandle& handle, void* to, const void* from, size_t bytes);
// Waits for all that was started, and throws what kernels found wrong (CudaFault).
void cuda_wait(CudaHandle& handle);

// What kernels have added up on the device (device_work); waits for it.
Work cuda_work(CudaHandle& handle);

// Memory for the count of a RowSet, i32 (1), which the host can learn without a synchronisation
// (present_rows). The first knows nothing yet: a kernel must write it (write_count). The second is known.
std::shared_ptr<int32_t> cuda_count(CudaHandle& handle);
std::shared_ptr<int32_t> cuda_count(CudaHandle& handle, int32_t known);

// Rows of dimension 0 that are there: all of them, unless the tensor is compacted. Waits until the selection
// has said how many. Training's products alone ask: at inference kernels launch over the capacity.
int64_t present_rows(CudaBackend dev, const Tensor& t);
// Rows to launch over: present_rows, rounded up to 128, at most the capacity.
int64_t bound(CudaBackend dev, const Tensor& t);

}  // namespace fathom
