// A policy that a long pass can be stopped through.
#pragma once

#include <atomic>

#include "infer/calibration_run.h"

namespace fathom {

// Asks before every unit whether the pass is to stop, and then throws CalibrationCancelled: a pass over
// thousands of rows takes seconds.
class StoppablePolicy final : public ForwardingPolicy {
 public:
  // cancel: may be null.
  StoppablePolicy(const SkipPolicy& inner, const std::atomic<bool>* cancel)
      : ForwardingPolicy(inner), cancel_(cancel) {}

  Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const override {
    if (cancel_ && cancel_->load(std::memory_order_relaxed)) throw CalibrationCancelled();
    return ForwardingPolicy::decide(ctx, input, state);
  }

 private:
  const std::atomic<bool>* cancel_;
};

}  // namespace fathom
