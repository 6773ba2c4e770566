#include "ops/rows/write_numbers.h"

#include <algorithm>
#include <vector>

#include "base/format.h"
#include "tensor/arena.h"

namespace fathom {

// pairs: i32 (writes, 2), the index and the value; every index once.
void write_numbers_kernel(CpuBackend dev, const Tensor& pairs, Tensor& list);
void write_numbers_kernel(CudaBackend dev, const Tensor& pairs, Tensor& list);

namespace {

// One write an index, the last: a GPU's threads write in any order.
std::vector<NumberWrite> once_each(std::span<const NumberWrite> writes) {
  std::vector<NumberWrite> sorted(writes.rbegin(), writes.rend());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const NumberWrite& a, const NumberWrite& b) { return a.index < b.index; });
  const auto same = [](const NumberWrite& a, const NumberWrite& b) { return a.index == b.index; };
  sorted.erase(std::unique(sorted.begin(), sorted.end(), same), sorted.end());
  return sorted;
}

}  // namespace

void write_numbers(Context& ctx, Tensor& list, std::span<const NumberWrite> writes) {
  if (writes.empty()) return;
  if (list.dtype() != DType::kI32 || !list.is_contiguous())
    fail("write_numbers: the list must be dense i32, got {}{} {}", list.is_contiguous() ? "" : "strided ",
         name_of(list.dtype()), to_string(list.shape()));
  std::vector<int32_t> pairs;
  for (const NumberWrite& write : once_each(writes)) {
    if (write.index < 0 || write.index >= list.numel())
      fail("write_numbers: index {} is not one of {}", write.index, list.numel());
    pairs.insert(pairs.end(), {write.index, write.value});
  }
  const ArenaScope scope(ctx);
  const Tensor there = Tensor::from(ctx, pairs, {std::ssize(pairs) / 2, 2});
  on_device(ctx, [&](auto dev) { write_numbers_kernel(dev, there, list); });
}

}  // namespace fathom
