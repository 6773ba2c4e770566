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

KvCacheOptions complete(KvCacheOptions options, const ModelConfig& config) {
  check_type(options.k_type, config.head_dim, "key");
  check_type(options.v_type, config.head_dim, "value");
  if (options.context <= 0) options.context = config.context;
  if (options.pages <= 0)
    options.pages = KvCache::pages_for_rows(config, options.context, options.pass_rows) * options.sequences;
  if (options.pages < config.layers)
    fail("a cache of {} pages cannot hold one row in each of {} layers", options.pages, config.layers);
  return options;
}

// Entries before a window that stay: drafts are taken back, and conversations go on a few tokens earlier.
constexpr int64_t kSlack = KvCache::kPage;

// Pages of a layer that a sequence holds at most.
int64_t most_pages(int32_t window, int64_t pass_rows) {
  if (window <= 0 || pass_rows <= 0) return INT64_MAX;
  return KvCache::pages_for(window + kSlack + pass_rows) + 1;  // the window begins anywhere in a page
}

std::vector<int32_t> windows_of(const ModelConfig& config) {
  std::vector<int32_t> windows = config.windows;
  windows.resize(static_cast<size_t>(config.layers));
  return windows;
}

int64_t slot_bytes(const Tensor& pool) {
  return pool.dim(1) * row_bytes(pool.dtype(), pool.dim(2));
}

}  // namespace

KvCache::KvCache(Context& ctx, const ModelConfig& config, const KvCacheOptions& options)
    : options_(complete(options, config)),
      windows_(windows_of(config)),
      pool_(options_.pages),
      rows_(static_cast<size_t>(options.sequences)) {
  const int64_t pages_each = pages_for(options_.context);
  const Device device = ctx.device();
  const Shape pool{options_.pages * kPage, config.kv_heads, config.head_dim};
  Tensor k, v;
  try {
    k = Tensor::owned(device, options_.k_type, pool);
    v = Tensor::owned(device, options_.v_type, pool);
  } catch (const UserError& error) {
    fail("the cache of {} sequences of {} tokens does not fit ({}): choose a smaller context",
         options_.sequences, options_.context, error.what());
  }
  const Shape lists{options_.sequences, options_.context};
  const int64_t each = config.layers * options_.sequences;
  numbers_ = Tensor::owned(device, DType::kI32, {(2 + pages_each) * each});
  lengths_ = numbers_.rows(0, each).reshape({config.layers, options_.sequences});
  taken_ = numbers_.rows(each, each).reshape({config.layers, options_.sequences});
  const Tensor tables = numbers_.rows(2 * each, pages_each * each).reshape({each, pages_each});
  layers_.resize(static_cast<size_t>(config.layers));
  for (int64_t index = 0; index < config.layers; ++index) {
    copied_.push_back(copied_layer(config, index));
    Layer& layer = layers_[static_cast<size_t>(index)];
    layer.view.k = k;
    layer.view.v = v;
    layer.view.entries = Tensor::owned(device, DType::kI32, lists);
    layer.view.positions = Tensor::owned(device, DType::kI32, lists);
    layer.view.lengths = lengths_.rows(index, 1).reshape({options_.sequences});
    if (options_.key_bias) layer.view.bias = Tensor::owned(device, DType::kF32, lists);
    layer.pages = {.table = tables.rows(index * options_.sequences, options_.sequences),
                   .taken = taken_.rows(index, 1).reshape({options_.sequences}),
                   .page = kPage};
    layer.held.resize(static_cast<size_t>(options_.sequences));
    for (Held& held : layer.held) held.pages.reserve(static_cast<size_t>(pages_each));
  }
}

void KvCache::check_sequence(int32_t sequence) const {
  if (sequence < 0 || sequence >= options_.sequences)
    fail("the cache has sequences 0 to {}, got {}", options_.sequences - 1, sequence);
}

int64_t KvCache::pages_for_rows(const ModelConfig& config, int64_t rows, int64_t pass_rows) {
  int64_t pages = 0;
  for (const int32_t window : windows_of(config))
    pages += std::min(pages_for(rows), most_pages(window, pass_rows));
  return pages;
}

int64_t KvCache::pages_between(int64_t held, int64_t rows) const {
  int64_t pages = 0;
  for (const int32_t window : windows_) {
    const int64_t most = most_pages(window, options_.pass_rows);
    pages += std::max<int64_t>(0, std::min(pages_for(rows), most) - std::min(held / kPage, most));
  }
  return pages;
}

int64_t KvCache::longest() const {
  int64_t rows = options_.context;
  if (pages_between(0, rows) <= pool_.size()) return rows;
  for (rows = rows / kPage * kPage; rows > 0 && pages_between(0, rows) > pool_.size();) rows -= kPage;
  return rows;
}

// The first position that a row at `rows` or after can see, less the slack.
int64_t KvCache::first_seen(int64_t layer, int64_t rows) const {
  const int32_t window = windows_[static_cast<size_t>(layer)];
  return window > 0 ? std::max<int64_t>(0, rows - window - kSlack) : 0;
}

// Full pages that release_passed() gives back, as far as the host knows: where no row has skipped, entries
// are numbered as their positions are. Of those that other sequences hold as well, none comes back.
int64_t KvCache::passed_pages(int64_t layer, const Held& held) const {
  if (skips_ || shares_) return 0;
  const int64_t end = std::min(first_seen(layer, held.rows), held.slots) / kPage;
  int64_t pages = 0;
  for (int64_t i = held.gone; i < end; ++i) pages += !pool_.shared(held.pages[static_cast<size_t>(i)]);
  return pages;
}

// Where layers list each other's slots every page stays.
void KvCache::release_passed(Context& ctx, int64_t layer, int32_t sequence) {
  Held& mine = held(layer, sequence);
  const int64_t limit = first_seen(layer, mine.rows);
  if (limit == 0 || shares_) return;
  const int64_t entries = skips_ ? entries_before(ctx, layer, sequence, limit) : limit;
  const int64_t end = std::min(entries, mine.slots) / kPage;
  if (mine.gone >= end) return;
  for (; mine.gone < end; ++mine.gone) {
    int32_t& page = mine.pages[static_cast<size_t>(mine.gone)];
    pool_.release(page);
    page = kNoPage;
  }
  mine.gone_rows = skips_ ? limit : mine.gone * kPage;
}

bool KvCache::keeps(int32_t sequence, int64_t position) const {
  check_sequence(sequence);
  for (size_t layer = 0; layer < layers_.size() && position > 0; ++layer) {
    const Held& held = layers_[layer].held[static_cast<size_t>(sequence)];
    if (held.gone > 0 && position - windows_[layer] + 1 < held.gone_rows) return false;
  }
  return true;
}

void KvCache::check_kept(int32_t sequence, int64_t position) const {
  if (!keeps(sequence, position))
    fail("sequence {} cannot go back to row {}: what a window showed it there is no longer cached", sequence,
         position);
}

// The page that the next slot lies in is shared: who appends copies it first.
bool KvCache::copies_page(const Held& held) const {
  return held.slots % kPage != 0 && pool_.shared(held.pages[static_cast<size_t>(held.slots / kPage)]);
}

int64_t KvCache::pages_needed(int32_t sequence, int64_t rows) const {
  int64_t pages = 0;
  for (size_t index = 0; index < layers_.size(); ++index) {
    const Held& held = layers_[index].held[static_cast<size_t>(sequence)];
    const int64_t more = rows_[static_cast<size_t>(sequence)] + rows - held.rows;
    if (more == 0) continue;
    pages += pages_for(held.slots + more) - static_cast<int64_t>(held.pages.size()) + copies_page(held) -
             passed_pages(static_cast<int64_t>(index), held);
  }
  return pages;
}

bool KvCache::fits(int32_t sequence, int64_t rows) const {
  check_sequence(sequence);
  return rows_[static_cast<size_t>(sequence)] + rows <= options_.context &&
         pages_needed(sequence, rows) <= pool_.free();
}

void KvCache::reserve(Context& ctx, int32_t sequence, int64_t rows) {
  check_sequence(sequence);
  int64_t& fed = rows_[static_cast<size_t>(sequence)];
  if (fed + rows > options_.context) {
    fail("the context is full: {} tokens are in it, {} more were to come, and it holds {}", fed, rows,
         options_.context);
  }
  const int64_t needed = pages_needed(sequence, rows);
  if (needed > pool_.free()) {
    throw CacheFull(fmt::format(
        "the cache is full: {} of its {} pages are held, and {} more tokens of sequence {} may need {}",
        pool_.used(), pool_.size(), rows, sequence, needed));
  }
  fed += rows;
  for (int64_t index = 0; index < layers() && !skips_; ++index) {
    if (held(index, sequence).rows != fed) release_passed(ctx, index, sequence);
  }
  for (int64_t index = 0; index < layers(); ++index) {
    Held& mine = held(index, sequence);
    if (mine.rows == fed) continue;
    if (copies_page(mine)) copy_last_page(ctx, index, sequence);
    mine.slots += fed - mine.rows;
    mine.rows = fed;
    while (static_cast<int64_t>(mine.pages.size()) < pages_for(mine.slots)) {
      const auto next = static_cast<int64_t>(mine.pages.size());
      mine.pages.push_back(pool_.take(index, next));
      write_page(index, sequence, next);
    }
  }
}

void KvCache::copy_last_page(Context& ctx, int64_t layer, int32_t sequence) {
  Held& mine = held(layer, sequence);
  const int64_t index = mine.slots / kPage;
  int32_t& page = mine.pages[static_cast<size_t>(index)];
  const int32_t old = page;
  page = pool_.take(layer, index);
  pool_.release(old);
  write_page(layer, sequence, index);
  const Device device = ctx.device();
  for (Tensor* pool : {&this->layer(layer).k, &this->layer(layer).v}) {
    const int64_t bytes = kPage * slot_bytes(*pool);
    auto* data = pool->data<std::byte>();
    copy_bytes(ctx, data + page * bytes, device, data + old * bytes, device, static_cast<size_t>(bytes));
  }
  // Every list of the sequence that names its slots: this layer's, and those that share it.
  const int64_t last = shares_ ? static_cast<int64_t>(layers_.size()) : layer + 1;
  for (int64_t above = layer; above < last; ++above) {
    Tensor& entries = this->layer(above).entries;
    const std::span<int32_t> slots = read(ctx, entries, sequence, length(ctx, above, sequence));
    for (int32_t& slot : slots) {
      if (slot / kPage == old) slot = static_cast<int32_t>(page * kPage + slot % kPage);
    }
    if (device == Device::kCpu) continue;
    copy_bytes(ctx, entries.data<int32_t>() + sequence * entries.dim(1), device, slots.data(), Device::kCpu,
               slots.size_bytes());
  }
}

void KvCache::send_changes(Context& ctx) {
  write_numbers(ctx, numbers_, changes_);
  changes_.clear();
}

void KvCache::append(Context& ctx, int64_t layer, const Batch& batch, const NewEntries& entries) {
  const int64_t below = entries.others_share ? copied_[static_cast<size_t>(layer)] : -1;
  if (entries.others_share && below < 0)
    fail("no layer below layer {} has its RoPE: there are no entries to share", layer);
  send_changes(ctx);
  skips_ = skips_ || !entries.own.is_all();
  shares_ = shares_ || entries.others_share;
  append_kv(ctx, this->layer(layer), layers_[static_cast<size_t>(layer)].pages, entries.k, entries.v,
            entries.own, batch.positions, batch.sequence,
            {entries.key_bias, below >= 0 ? &this->layer(below) : nullptr, entries.present});
}

int64_t KvCache::bytes_per_entry() const {
  return slot_bytes(layers_.front().view.k) + slot_bytes(layers_.front().view.v);
}

int64_t KvCache::bytes_held() const {
  return pool_.used() * kPage * bytes_per_entry();
}

int64_t KvCache::bytes_dense() const {
  int64_t pages = 0;
  for (const int64_t fed : rows_) {
    for (int64_t layer = 0; layer < layers(); ++layer)
      pages += pages_for(fed) - first_seen(layer, fed) / kPage;
  }
  return pages * kPage * bytes_per_entry();
}

}  // namespace fathom
