#include "model/kv_cache.h"

#include <algorithm>

#include "base/format.h"
#include "tensor/memory.h"

namespace fathom {
namespace {

void check_type(DType type, int64_t head_dim, const char* which) {
  const bool known =
      type == DType::kF32 || type == DType::kF16 || type == DType::kBF16 || type == DType::kQ8_0;
  if (!known) fail("the {} cache can be f32, f16, bf16 or q8_0, got {}", which, name_of(type));
  if (head_dim % traits(type).block != 0) {
    fail("a {} cache of q8_0 needs heads of a multiple of 32, this model's have {}", which, head_dim);
  }
}

}  // namespace

KvCache::KvCache(Context& ctx, const ModelConfig& config, const KvCacheOptions& options)
    : options_(options), rows_(static_cast<size_t>(options.sequences)) {
  check_type(options.k_type, config.head_dim, "key");
  check_type(options.v_type, config.head_dim, "value");
  if (options_.context <= 0) options_.context = config.context;
  const int64_t pages_each = (options_.context + kPage - 1) / kPage;
  pages_ = pages_each * options_.sequences * config.layers;
  const Device device = ctx.device();
  const Shape pool{pages_ * kPage, config.kv_heads, config.head_dim};
  Tensor k, v;
  try {
    k = Tensor::owned(device, options_.k_type, pool);
    v = Tensor::owned(device, options_.v_type, pool);
  } catch (const UserError& error) {
    fail("the cache of {} sequences of {} tokens does not fit ({}): choose a smaller context",
         options_.sequences, options_.context, error.what());
  }
  layers_.resize(static_cast<size_t>(config.layers));
  for (Layer& layer : layers_) {
    layer.view.k = k;
    layer.view.v = v;
    layer.view.entries = Tensor::owned(device, DType::kI32, {options_.sequences, options_.context});
    layer.view.positions = Tensor::owned(device, DType::kI32, {options_.sequences, options_.context});
    layer.view.lengths = Tensor::owned(device, DType::kI32, {options_.sequences});
    if (options_.key_bias)
      layer.view.bias = Tensor::owned(device, DType::kF32, {options_.sequences, options_.context});
    layer.page_table = Tensor::owned(device, DType::kI32, {options_.sequences, pages_each});
    layer.pages.resize(static_cast<size_t>(options_.sequences));
    for (auto& pages : layer.pages) pages.reserve(static_cast<size_t>(pages_each));
  }
  free_pages_.reserve(static_cast<size_t>(pages_));
  for (int64_t page = pages_ - 1; page >= 0; --page) free_pages_.push_back(static_cast<int32_t>(page));
}

void KvCache::write_page_entry(Context& ctx, Layer& layer, int32_t sequence, int64_t index, int32_t page) {
  int32_t* entry = layer.page_table.data<int32_t>() + sequence * layer.page_table.dim(1) + index;
  copy_bytes(ctx, entry, ctx.device(), &page, Device::kCpu, sizeof page);
}

void KvCache::reserve(Context& ctx, int32_t sequence, int64_t rows) {
  int64_t& fed = rows_[static_cast<size_t>(sequence)];
  if (fed + rows > options_.context) {
    fail("the context is full: {} tokens are in it, {} more were to come, and it holds {}", fed, rows,
         options_.context);
  }
  const auto pages_needed = static_cast<size_t>((fed + rows + kPage - 1) / kPage);
  for (Layer& layer : layers_) {
    std::vector<int32_t>& pages = layer.pages[static_cast<size_t>(sequence)];
    while (pages.size() < pages_needed) {
      const int32_t page =
          free_pages_.back();  // there is one: each sequence's share was counted when the pool was made
      free_pages_.pop_back();
      write_page_entry(ctx, layer, sequence, static_cast<int64_t>(pages.size()), page);
      pages.push_back(page);
    }
  }
  fed += rows;
}

void KvCache::truncate(Context& ctx, int32_t sequence, int64_t position) {
  int64_t& fed = rows_[static_cast<size_t>(sequence)];
  position = std::clamp<int64_t>(position, 0, fed);
  std::vector<int32_t> positions(static_cast<size_t>(options_.context));
  for (Layer& layer : layers_) {
    int32_t length = 0;
    int32_t* device_length = layer.view.lengths.data<int32_t>() + sequence;
    copy_bytes(ctx, &length, Device::kCpu, device_length, ctx.device(), sizeof length);
    const Tensor row = layer.view.positions.rows(sequence, 1);
    copy_bytes(ctx, positions.data(), Device::kCpu, row.raw(), ctx.device(),
               static_cast<size_t>(length) * sizeof(int32_t));
    const auto kept =
        std::lower_bound(positions.begin(), positions.begin() + length, position) - positions.begin();
    length = static_cast<int32_t>(kept);
    copy_bytes(ctx, device_length, ctx.device(), &length, Device::kCpu, sizeof length);
    std::vector<int32_t>& pages = layer.pages[static_cast<size_t>(sequence)];
    // As many pages as the rows still fed could need: a later pass may append less than it reserved, never
    // more.
    const auto needed = static_cast<size_t>((position + kPage - 1) / kPage);
    while (pages.size() > needed) {
      free_pages_.push_back(pages.back());
      pages.pop_back();
    }
  }
  fed = position;
}

int64_t KvCache::bytes_per_entry() const {
  const Tensor& k = layers_.front().view.k;
  const Tensor& v = layers_.front().view.v;
  return k.dim(1) * (row_bytes(k.dtype(), k.dim(2)) + row_bytes(v.dtype(), v.dim(2)));
}

int64_t KvCache::bytes_held() const {
  return (pages_ - static_cast<int64_t>(free_pages_.size())) * kPage * bytes_per_entry();
}

}  // namespace fathom
