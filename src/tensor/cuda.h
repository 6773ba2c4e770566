// What other code may use of CUDA, without CUDA types. Implemented in cuda.cu where there is a toolkit.
#pragma once

#include <cstddef>
#include <memory>

namespace fathom {

struct CudaHandle;

std::shared_ptr<CudaHandle> make_cuda_handle();
std::shared_ptr<void> cuda_allocate(size_t bytes);
void cuda_copy(CudaHandle& handle, void* to, const void* from, size_t bytes);

}  // namespace fathom
