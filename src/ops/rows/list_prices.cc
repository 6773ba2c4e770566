#include "ops/rows/list_prices.h"

#include "base/format.h"

namespace fathom {

void list_prices_kernel(CpuBackend dev, const Tensor& predicted, const Tensor& mean, const Tensor& positions,
                        const ListRules& rules, ListPrices& out);
void list_prices_kernel(CudaBackend dev, const Tensor& predicted, const Tensor& mean, const Tensor& positions,
                        const ListRules& rules, ListPrices& out);
void level_prices_kernel(CpuBackend dev, const Tensor& level, const Tensor& positions, int32_t protect_rows,
                         ListPrices& out);
void level_prices_kernel(CudaBackend dev, const Tensor& level, const Tensor& positions, int32_t protect_rows,
                         ListPrices& out);
void chosen_lists_kernel(CpuBackend dev, const Tensor& prices, Tensor& out);
void chosen_lists_kernel(CudaBackend dev, const Tensor& prices, Tensor& out);

namespace {

ListPrices room_for(Context& ctx, int64_t lists, int64_t rows) {
  return {Tensor::empty(ctx, DType::kF32, {lists, rows}), Tensor::empty(ctx, DType::kF32, {lists, rows})};
}

void check_lists(int64_t lists, const char* op) {
  if (lists < 1 || lists > kMostLists)
    fail("{}: there must be from 1 to {} lists, got {}", op, kMostLists, lists);
}

}  // namespace

ListPrices list_prices(Context& ctx, const Tensor& predicted, const Tensor& mean, const Tensor& positions,
                       const ListRules& rules) {
  const int64_t lists = rules.costs.lists;
  check_lists(lists, "list_prices");
  if (!predicted.defined() || predicted.rank() != 2 || !predicted.is_contiguous() || predicted.row_count())
    fail("list_prices: predicted must be dense (rows, {}), got {}", lists, to_string(predicted.shape()));
  expect(predicted, DType::kF32, {predicted.dim(0), lists}, "list_prices", "predicted");
  expect(mean, DType::kF32, {lists}, "list_prices", "mean");
  expect(positions, DType::kI32, {predicted.dim(0)}, "list_prices", "positions");
  ListPrices out = room_for(ctx, lists, predicted.dim(0));
  on_device(ctx, [&](auto dev) { list_prices_kernel(dev, predicted, mean, positions, rules, out); });
  return out;
}

ListPrices level_prices(Context& ctx, const Tensor& level, const Tensor& positions, int32_t lists,
                        int32_t protect_rows) {
  check_lists(lists, "level_prices");
  expect(level, DType::kF32, positions.shape(), "level_prices", "level");
  expect(positions, DType::kI32, {level.dim(0)}, "level_prices", "positions");
  ListPrices out = room_for(ctx, lists, level.dim(0));
  on_device(ctx, [&](auto dev) { level_prices_kernel(dev, level, positions, protect_rows, out); });
  return out;
}

Tensor chosen_lists(Context& ctx, const Tensor& prices) {
  if (!prices.defined() || prices.rank() != 2 || !prices.is_contiguous())
    fail("chosen_lists: prices must be dense (lists, rows), got {}", to_string(prices.shape()));
  expect(prices, DType::kF32, prices.shape(), "chosen_lists", "prices");
  Tensor out = Tensor::empty(ctx, DType::kF32, {prices.dim(1), prices.dim(0)});
  on_device(ctx, [&](auto dev) { chosen_lists_kernel(dev, prices, out); });
  return out;
}

}  // namespace fathom
