#include "ops/rows/list_prices_row.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

__device__ int64_t this_row() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

__global__ void price_rows(PlainListRules rules, const float* predicted, const float* mean,
                           const int32_t* positions, int64_t rows, float* prices_out, float* most_out) {
  const int64_t r = this_row();
  if (r >= rows) return;
  float mean_prices[kMostLists], prices[kMostLists], most[kMostLists];
  critical_prices(rules, mean, mean_prices);
  critical_prices(rules, predicted + r * rules.lists, prices);
  press_into_band(rules, mean_prices, prices, most);
  const bool stays = positions[r] < rules.protect_rows;
  for (int g = 0; g < rules.lists; ++g) {
    prices_out[g * rows + r] = stays ? __builtin_huge_valf() : prices[g];
    most_out[g * rows + r] = stays ? __builtin_huge_valf() : most[g];
  }
}

__global__ void level_rows(const float* level, const int32_t* positions, int64_t rows, int lists,
                           int protect_rows, float* prices_out, float* most_out) {
  const int64_t r = this_row();
  if (r >= rows) return;
  const bool stays = positions[r] < protect_rows;
  for (int g = 0; g < lists; ++g) {
    const auto list = static_cast<float>(g + 1);
    prices_out[g * rows + r] = stays ? __builtin_huge_valf() : list - level[r];
    most_out[g * rows + r] = stays ? __builtin_huge_valf() : list;
  }
}

__global__ void choose_rows(const float* prices, int64_t rows, int lists, float* out) {
  const int64_t r = this_row();
  if (r >= rows) return;
  for (int g = 0; g < lists; ++g) {
    const bool here = prices[g * rows + r] <= 0 && (g + 1 == lists || prices[(g + 1) * rows + r] > 0);
    out[r * lists + g] = here ? 1.0f : 0.0f;
  }
}

}  // namespace

void list_prices_kernel(CudaBackend dev, const Tensor& predicted, const Tensor& mean, const Tensor& positions,
                        const ListRules& rules, ListPrices& out) {
  const int64_t rows = predicted.dim(0);
  if (rows == 0) return;
  price_rows<<<blocks_for(rows, kThreads), kThreads, 0, dev.handle.stream>>>(
      plain(rules), predicted.data<float>(), mean.data<float>(), positions.data<int32_t>(), rows,
      out.prices.data<float>(), out.most.data<float>());
  check_launch("list_prices");
}

void level_prices_kernel(CudaBackend dev, const Tensor& level, const Tensor& positions, int32_t protect_rows,
                         ListPrices& out) {
  const int64_t rows = level.dim(0);
  if (rows == 0) return;
  level_rows<<<blocks_for(rows, kThreads), kThreads, 0, dev.handle.stream>>>(
      level.data<float>(), positions.data<int32_t>(), rows, static_cast<int>(out.prices.dim(0)), protect_rows,
      out.prices.data<float>(), out.most.data<float>());
  check_launch("level_prices");
}

void chosen_lists_kernel(CudaBackend dev, const Tensor& prices, Tensor& out) {
  const int64_t rows = prices.dim(1);
  if (rows == 0) return;
  choose_rows<<<blocks_for(rows, kThreads), kThreads, 0, dev.handle.stream>>>(
      prices.data<float>(), rows, static_cast<int>(prices.dim(0)), out.data<float>());
  check_launch("chosen_lists");
}

}  // namespace fathom
