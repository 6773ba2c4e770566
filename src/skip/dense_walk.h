// A pass over new sequences, one unit at a time, dense or without some units. Callers measure between units.
#pragma once

#include <span>

#include "model/batch.h"
#include "model/model.h"

namespace fathom {

class DenseWalk {
 public:
  // gone: (2L), 1: the unit does not run, its output is its input; empty: all run. It outlives the walk.
  DenseWalk(Context& ctx, const Model& model, const Batch& batch, std::span<const uint8_t> gone = {})
      : ctx_(ctx), model_(model), batch_(batch), gone_(gone) {}

  int64_t units() const { return 2 * model_.config.layers; }
  bool is_gone(int64_t unit) const { return !gone_.empty() && gone_[static_cast<size_t>(unit)]; }
  Tensor start() const;  // the input of unit 0. f32 (rows, width)
  // h, the input of `unit` (2 · layer + (0: attention, 1: FFN)), becomes its output: in place.
  void run(int64_t unit, Tensor& h) const;
  // From the input of `unit` to the logits of the rows that want them. h stays as it is.
  Tensor finish(int64_t unit, const Tensor& h) const;
  Tensor copy(const Tensor& h) const;

 private:
  Context& ctx_;
  const Model& model_;
  const Batch& batch_;
  std::span<const uint8_t> gone_;
};

}  // namespace fathom
