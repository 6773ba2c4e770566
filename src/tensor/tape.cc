#include "tensor/tape.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/format.h"
#include "tensor/memory.h"

namespace fathom {

namespace {

constexpr size_t kSmallest = 256;

// Sixteen sizes between powers of two: what is given back fits what is asked for next, little is wasted.
size_t size_class(size_t bytes) {
  size_t power = kSmallest;
  while (power * 2 <= bytes) power *= 2;
  const size_t step = std::max<size_t>(power / 16, 64);
  return std::max(kSmallest, (bytes + step - 1) / step * step);
}

}  // namespace

struct Tape::Memory {
  std::mutex mutex;
  std::map<size_t, std::vector<std::shared_ptr<void>>> free;
  size_t in_use = 0, peak = 0, held = 0;

  // A block of that size, or the next larger one where it is not twice as large: steps that differ a little
  // share their memory. Undefined: there is none. -> `size`: the block's
  std::shared_ptr<void> take(size_t& size) {
    for (auto found = free.lower_bound(size); found != free.end() && found->first < 2 * size; ++found) {
      if (found->second.empty()) continue;
      std::shared_ptr<void> block = std::move(found->second.back());
      found->second.pop_back();
      size = found->first;
      return block;
    }
    return nullptr;
  }

  // Forgets the blocks that wait to be handed out again. -> bytes
  size_t drop() {
    const std::lock_guard lock(mutex);
    size_t bytes = 0;
    for (const auto& [size, blocks] : free) bytes += size * blocks.size();
    free.clear();
    held -= bytes;
    return bytes;
  }

  // A block from the device. Where that has no room, the blocks that wait (of other sizes) go back first.
  std::shared_ptr<void> fetch(Device device, size_t size) {
    try {
      return allocate_uninitialised(device, size);
    } catch (const UserError&) {
      if (drop() == 0) throw;
    }
    return allocate_uninitialised(device, size);
  }
};

Tape::Tape(Device device) : device_(device), memory_(std::make_shared<Memory>()) {}

std::shared_ptr<void> Tape::allocate(size_t bytes) {
  size_t size = size_class(bytes);
  std::shared_ptr<void> block;
  {
    const std::lock_guard lock(memory_->mutex);
    block = memory_->take(size);
  }
  const bool fresh = !block;
  if (fresh) block = memory_->fetch(device_, size);
  {
    const std::lock_guard lock(memory_->mutex);
    if (fresh) memory_->held += size;
    memory_->in_use += size;
    memory_->peak = std::max(memory_->peak, memory_->in_use);
  }
  void* data = block.get();
  // The handle's end gives the block back; the memory outlives the tape as long as somebody holds a tensor.
  return {data, [block = std::move(block), size, memory = memory_](void*) mutable {
            const std::lock_guard lock(memory->mutex);
            memory->in_use -= size;
            memory->free[size].push_back(std::move(block));
          }};
}

size_t Tape::peak_bytes() const {
  const std::lock_guard lock(memory_->mutex);
  return memory_->peak;
}

size_t Tape::held_bytes() const {
  const std::lock_guard lock(memory_->mutex);
  return memory_->held;
}

void Tape::backward(Context& ctx, const Tensor& loss) {
  expect(loss, DType::kF32, {1}, "backward", "loss");
  if (!loss.gradient()) fail("backward: the loss does not depend on any parameter");
  const float one = 1.0f;
  const RecordingScope quiet(ctx, false);
  loss.gradient()->value = Tensor::from(ctx, std::span(&one, 1), {1});
  while (!notes_.empty()) {
    const Backward note = std::move(notes_.back());
    notes_.pop_back();
    note(ctx);
  }
}

TapeScope::TapeScope(Context& ctx, Tape& tape)
    : ctx_(ctx), outer_(ctx.tape()), outer_recording_(tape.recording_) {
  ctx.set_tape(&tape);
  tape.recording_ = true;
}

TapeScope::~TapeScope() {
  ctx_.tape()->recording_ = outer_recording_;
  ctx_.set_tape(outer_);
}

RecordingScope::RecordingScope(Context& ctx, bool recording)
    : tape_(ctx.tape()), outer_(tape_ && tape_->recording_) {
  if (tape_) tape_->recording_ = recording;
}

RecordingScope::~RecordingScope() {
  if (tape_) tape_->recording_ = outer_;
}

Tensor parameter(const Tensor& value, const Tensor& gradient) {
  if (!gradient || gradient.dtype() != DType::kF32 || gradient.numel() != value.numel())
    fail("parameter: the gradient must be f32 {}, got {} {}", to_string(value.shape()),
         name_of(gradient.dtype()), to_string(gradient.shape()));
  return value.with_gradient(
      std::make_shared<Gradient>(Gradient{gradient.reshape(value.shape()), /*own=*/true}));
}

Tensor detach(const Tensor& x) {
  return x.with_gradient(nullptr);
}

bool differentiable(const Context& ctx, std::initializer_list<const Tensor*> inputs) {
  if (!ctx.tape() || !ctx.tape()->recording()) return false;
  return std::any_of(inputs.begin(), inputs.end(), [](const Tensor* x) { return x->gradient() != nullptr; });
}

}  // namespace fathom
