#include "skip/steering.h"

#include <algorithm>

#include "ops/rows/steer_rows.h"
#include "tensor/memory.h"

namespace fathom {

void SteeringHistory::make_room(Context& ctx, const Batch& batch) {
  int32_t last = 0;
  for (const BatchRow& row : rows_on_host(ctx, batch, room_)) last = std::max(last, row.position);
  const int64_t held = blocks_ ? blocks_.dim(1) : 0, wanted = last / kSteeredRows + 1;
  if (wanted <= held) return;
  constexpr int64_t kFirst = 8;
  const int64_t length = std::max({wanted, 2 * held, kFirst});
  Tensor longer = Tensor::owned(ctx.device(), DType::kI32, {sequences_, length, units_, kSteeringWords});
  for (int64_t s = 0; held > 0 && s < sequences_; ++s) {
    const Tensor old = blocks_.rows(s, 1);
    copy_bytes(ctx, longer.rows(s, 1).raw(), ctx.device(), old.raw(), ctx.device(),
               static_cast<size_t>(old.nbytes()));
  }
  blocks_ = longer;
}

void SteeringHistory::fork(Context& ctx, int32_t from, int32_t to, int64_t position) {
  if (!blocks_ || from == to || position == 0) return;
  const int64_t length = blocks_.dim(1), begun = std::min(length, (position - 1) / kSteeredRows + 1);
  const auto bytes = static_cast<size_t>(blocks_.rows(from, 1).nbytes() / length * begun);
  copy_bytes(ctx, blocks_.rows(to, 1).raw(), ctx.device(), blocks_.rows(from, 1).raw(), ctx.device(), bytes);
}

void SteeringHistory::forget(Context& ctx) {
  if (!blocks_) return;
  const std::vector<char> zeros(static_cast<size_t>(blocks_.nbytes()));
  copy_bytes(ctx, blocks_.raw(), ctx.device(), zeros.data(), Device::kCpu, zeros.size());
}

}  // namespace fathom
