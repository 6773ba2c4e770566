// Reverse-mode differentiation. While a tape is attached to a context and records, every op whose inputs are
// differentiable marks its output so and notes how gradients go back; backward() runs those notes newest
// first. Without a tape nothing of this is paid.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#include "tensor/tensor.h"

namespace fathom {

// Memory in which the gradients of several tensors lie side by side, each in some columns of one matrix, so
// that the outputs of one product need one product for their gradients. Made when the first gradient arrives.
struct GradientRoom {
  DType dtype;
  Shape shape;  // (rows, columns of all)
  Tensor memory;
};

// Calls that wait for a tensor's values. The op that made the tensor keeps none: it computes them again when
// its own gradient runs, and then these calls get them.
using AwaitValues = std::vector<std::function<void(Context&, const Tensor& values)>>;

// d loss / d tensor, summed so far. Undefined: no gradient has arrived.
struct Gradient {
  Tensor value;
  bool own = false;                         // may be added to in place: no other tensor shares its memory
  std::shared_ptr<GradientRoom> room = {};  // null: it gets memory for itself
  int64_t column = 0;                       // its first one in the room
  bool rounds = false;                      // what made the tensor multiplies its gradient in bf16
  Tensor rounded = {};  // then `value` in bf16, where the last to add to it wrote that too
  std::shared_ptr<AwaitValues> await = {};  // null: the tensor's values are kept for those that need them
};

class Tape {
 public:
  using Backward = std::function<void(Context&)>;

  explicit Tape(Device device);

  bool recording() const { return recording_; }
  void record(Backward backward) { notes_.push_back(std::move(backward)); }
  // loss: f32 (1), its gradient 1. Each note is forgotten, with the activations it held, as soon as it has
  // run.
  void backward(Context& ctx, const Tensor& loss);
  void clear() { notes_.clear(); }

  // Memory for op outputs while a tape is attached: it goes back when the last handle is gone, and is handed
  // out again. Not initialised.
  std::shared_ptr<void> allocate(size_t bytes);
  size_t peak_bytes() const;  // most that was in use at once
  size_t held_bytes() const;  // in use, or kept to be handed out again

 private:
  friend class TapeScope;
  friend class RecordingScope;
  struct Memory;
  Device device_;
  bool recording_ = false;
  std::vector<Backward> notes_;
  std::shared_ptr<Memory> memory_;
};

// Attaches a tape to the context, recording, for the scope.
class TapeScope {
 public:
  TapeScope(Context& ctx, Tape& tape);
  ~TapeScope();
  TapeScope(const TapeScope&) = delete;
  TapeScope& operator=(const TapeScope&) = delete;

 private:
  Context& ctx_;
  Tape* outer_;
  bool outer_recording_;
};

// Ops inside the scope are recorded or not: a frozen teacher is not, nor what will be computed again. Does
// nothing without a tape.
class RecordingScope {
 public:
  RecordingScope(Context& ctx, bool recording);
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

 private:
  Tape* tape_;
  bool outer_;
};

// A tensor whose gradient adds up in `gradient` (f32, same number of elements, zeroed by its owner): a
// parameter.
Tensor parameter(const Tensor& value, const Tensor& gradient);

// The same values, through which no gradient goes.
Tensor detach(const Tensor& x);

bool differentiable(const Context& ctx, std::initializer_list<const Tensor*> inputs);

// For an op to call on its output. backward(ctx, d) with d = d loss / d out (out's shape) runs if anything
// arrived there; it calls accumulate() (ops/rows/accumulate.h) for each input. What it captures lives until
// then.
template <class Fn>
void differentiate(Context& ctx, std::initializer_list<const Tensor*> inputs, Tensor& out, Fn backward);

template <class Fn>
void differentiate(Context& ctx, std::initializer_list<const Tensor*> inputs, Tensor& out, Fn backward) {
  if (!differentiable(ctx, inputs)) return;
  out = out.with_gradient(std::make_shared<Gradient>());
  ctx.tape()->record(
      [gradient = out.gradient(), shape = out.shape(), backward = std::move(backward)](Context& c) {
        if (!gradient->value) return;
        const Tensor d = gradient->value.reshape(shape);
        gradient->value = {};
        backward(c, d);
      });
}

}  // namespace fathom
