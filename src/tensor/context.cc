// Context's own functions: here and not in base/, since they make the arena and the CUDA handle.
#include "tensor/context.h"

#include "tensor/arena.h"
#include "tensor/cuda.h"
#include "tensor/guarded.h"

namespace fathom {

Context::Context(ContextOptions options)
    : device_(options.device),
      isa_(choose_isa()),
      pool_(options.threads > 0 ? options.threads : default_threads()),
      comm_(std::make_unique<Comm>()),
      arena_(std::make_shared<Arena>(options.device)) {
  if (device_ == Device::kGuarded) {
    pool_.run([](int thread) {
      if (thread > 0) open_guarded_for_thread();
    });
  }
  if (device_ != Device::kCuda) return;
  if constexpr (kHasCuda) {
    cuda_ = make_cuda_handle(options.device_index);
    counters_.include([handle = cuda_.get()] { return cuda_work(*handle); });
  } else {
    throw UserError(
        "cuda: this build has no CUDA backend (the CUDA toolkit was not found when it was built)");
  }
}

Context::~Context() = default;

CudaBackend Context::cuda() {
  if constexpr (kHasCuda) cuda_use(*cuda_);
  return {*cuda_, counters_};
}

}  // namespace fathom
