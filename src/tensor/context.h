// Everything an op needs besides its operands. No globals: two contexts in one process are
// independent.
#pragma once

#include <memory>

#include "base/build_info.h"
#include "base/comm.h"
#include "base/counters.h"
#include "base/device.h"
#include "base/error.h"
#include "base/isa.h"
#include "base/thread_pool.h"
#include "tensor/guarded.h"

namespace fathom {

class Arena;        // tensor/arena.h
class Tape;         // tensor/tape.h
struct CudaHandle;  // tensor/cuda.h: stream and libraries' handles

// The tags that ops dispatch on: what a kernel of that device may use.
struct CpuBackend {
  ThreadPool& pool;
  Counters& counters;
  Isa isa;
};
struct CudaBackend {
  CudaHandle& handle;
  Counters& counters;
};

// Copies between the host and the device. One to the host waits for all that was started before it.
struct Transfers {
  uint64_t to_device = 0, to_host = 0, on_device = 0;
};

struct ContextOptions {
  Device device = Device::kCpu;
  int threads = 0;       // 0: default_threads()
  int device_index = 0;  // which GPU: 1 is "cuda:1"
};

class Context {
 public:
  explicit Context(ContextOptions options = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Device device() const { return device_; }
  CpuBackend cpu() { return {pool_, counters_, isa_}; }
  CudaBackend cuda();
  ThreadPool& pool() { return pool_; }
  Counters& counters() { return counters_; }
  Comm& comm() { return *comm_; }
  Transfers& transfers() { return transfers_; }
  Isa isa() const { return isa_; }

  // Where op outputs live until the step ends; see ArenaScope.
  Arena& arena() { return *arena_; }

  // The tape that records the ops for their gradients; null outside a TapeScope.
  Tape* tape() const { return tape_; }
  void set_tape(Tape* tape) { tape_ = tape; }

 private:
  Device device_;
  Isa isa_;
  ThreadPool pool_;
  Counters counters_;
  Transfers transfers_;
  std::unique_ptr<Comm> comm_;
  std::shared_ptr<Arena> arena_;
  Tape* tape_ = nullptr;
  std::shared_ptr<CudaHandle> cuda_;
};

// Calls fn with the tag of the context's device: on_device(ctx, [&](auto dev) { rms_norm_kernel(dev, x, out);
// });
template <class Fn>
void on_device(Context& ctx, Fn&& fn) {
  if (ctx.device() == Device::kCpu) return fn(ctx.cpu());
  if (ctx.device() == Device::kGuarded) {
    const GuardedAccess open;
    return fn(ctx.cpu());
  }
  if constexpr (kHasCuda) {
    return fn(ctx.cuda());
  } else {
    throw UserError("this build has no CUDA backend");
  }
}

}  // namespace fathom
