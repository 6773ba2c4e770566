#include "model/check_weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/format.h"
#include "quant/scales.h"

namespace fathom {
namespace {

constexpr int64_t kGrain = 64;  // rows

// The first row with a scale that is not finite; -1: none.
int64_t first_bad_row(Context& ctx, const Tensor& weight) {
  const int64_t n = weight.shape().last(), rows = weight.numel() / n, bytes = row_bytes(weight.dtype(), n);
  std::atomic<int64_t> first{INT64_MAX};
  ctx.pool().parallel_for(rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (scales_are_finite(weight.dtype(), weight.data<std::byte>() + row * bytes, n)) continue;
      for (int64_t seen = first; row < seen && !first.compare_exchange_weak(seen, row);) {
      }
      return;
    }
  });
  return first == INT64_MAX ? -1 : first.load();
}

}  // namespace

void check_finite(Context& ctx, const Tensor& weight, const std::string& name, const std::string& where) {
  if (is_block_format(weight.dtype())) {
    const int64_t row = first_bad_row(ctx, weight);
    if (row >= 0)
      fail("{}: tensor '{}' has a scale that is not finite, in row {}", where, printable(name), row);
    return;
  }
  if (weight.dtype() != DType::kF32 || weight.shape().rank() != 1) return;
  const auto* values = weight.data<float>();
  const auto* bad =
      std::find_if(values, values + weight.numel(), [](float value) { return !std::isfinite(value); });
  if (bad != values + weight.numel())
    fail("{}: tensor '{}' holds {} at {}: every number of it must be finite", where, printable(name), *bad,
         bad - values);
}

}  // namespace fathom
