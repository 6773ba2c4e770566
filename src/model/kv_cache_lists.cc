// The cache's lists and pages as they are forked, cut and settled: on the host, a sequence at a time.
#include <algorithm>
#include <utility>

#include "base/format.h"
#include "model/kv_cache.h"
#include "tensor/memory.h"

namespace fathom {
namespace {

int32_t read_one(Context& ctx, const Tensor& list, int64_t index) {
  int32_t number = 0;
  copy_bytes(ctx, &number, Device::kCpu, list.data<int32_t>() + index, ctx.device(), sizeof number);
  return number;
}

// The first `count` numbers of row `from` of a list become those of row `to`.
void copy_row(Context& ctx, Tensor& list, int64_t from, int64_t to, int64_t count) {
  auto* data = list.data<int32_t>();  // or floats: as many bytes
  copy_bytes(ctx, data + to * list.dim(1), ctx.device(), data + from * list.dim(1), ctx.device(),
             static_cast<size_t>(count) * sizeof(int32_t));
}

}  // namespace

void KvCache::settle(Context& ctx, int32_t sequence, int64_t spoke) {
  check_sequence(sequence);
  const int64_t count = layers();
  for (int64_t index = 0; index < count; ++index) release_passed(ctx, index, sequence);
  if (!skips_) return;
  const std::span<const int32_t> taken = read(ctx, taken_, 0, count * options_.sequences);
  for (int64_t index = 0; index < count; ++index)
    keep_slots(held(index, sequence), taken[static_cast<size_t>(index * options_.sequences + sequence)]);
  // Where entries are shared every layer lists every row, and may be looked at from above.
  if (spoke < 0 || spoke >= rows(sequence) || shares_) return;
  for (int64_t index = 0; index < count; ++index) {
    if (last_position(ctx, index, sequence) < spoke) keep_entries(ctx, index, sequence, 0);
  }
}

void KvCache::fork(Context& ctx, int32_t from, int32_t to, int64_t position) {
  check_sequence(from);
  check_sequence(to);
  if (from == to || rows(to) != 0)
    fail("sequence {} has {} rows: only an empty one can be a fork", to, rows(to));
  position = std::clamp<int64_t>(position, 0, rows(from));
  settle(ctx, from);  // it may give pages back, so it comes before the check
  check_kept(from, position);
  send_changes(ctx);  // the tables are copied on the device
  for (int64_t index = 0; index < static_cast<int64_t>(layers_.size()); ++index) {
    Layer& layer = layers_[static_cast<size_t>(index)];
    const int64_t kept = entries_before(ctx, index, from, position);
    const int64_t slots = own_slots(ctx, index, from, kept);
    copy_row(ctx, layer.view.entries, from, to, kept);
    copy_row(ctx, layer.view.positions, from, to, kept);
    if (layer.view.bias) copy_row(ctx, layer.view.bias, from, to, kept);
    copy_row(ctx, layer.pages.table, from, to, pages_for(slots));
    write(layer.view.lengths, to, kept);
    write(layer.pages.taken, to, slots);
    const Held& source = held(index, from);
    Held& mine = held(index, to);
    mine.pages.assign(source.pages.begin(), source.pages.begin() + pages_for(slots));
    for (const int32_t page : mine.pages) {
      if (page != kNoPage) pool_.share(page);
    }
    mine.slots = slots;
    mine.rows = std::min(source.rows, position);
    mine.gone = std::min(source.gone, std::ssize(mine.pages));
    mine.gone_rows = mine.gone > 0 ? source.gone_rows : 0;
  }
  rows_[static_cast<size_t>(to)] = position;
}

void KvCache::truncate(Context& ctx, int32_t sequence, int64_t position) {
  check_sequence(sequence);
  int64_t& fed = rows_[static_cast<size_t>(sequence)];
  position = std::clamp<int64_t>(position, 0, fed);
  check_kept(sequence, position);
  fed = position;
  for (int64_t index = 0; index < static_cast<int64_t>(layers_.size()); ++index) {
    keep_entries(ctx, index, sequence, fed);
    held(index, sequence).rows = std::min(held(index, sequence).rows, fed);
  }
}

void KvCache::truncate_layer(Context& ctx, int64_t layer, int32_t sequence, int64_t position) {
  check_sequence(sequence);
  const auto layers = static_cast<int64_t>(layers_.size());
  if (layer < 0 || layer >= layers) fail("the cache has layers 0 to {}, got {}", layers - 1, layer);
  position = std::clamp<int64_t>(position, 0, rows(sequence));
  for (int64_t above = layers - 1; shares_ && above > layer; --above) {
    if (last_position(ctx, above, sequence) >= position)
      fail("layer {} of the cache may share the entries of layer {} from position {} on: cut it first", above,
           layer, position);
  }
  keep_entries(ctx, layer, sequence, position);
  held(layer, sequence).rows = std::min(held(layer, sequence).rows, position);
}

// Cuts the list, and gives back the pages that only what was cut did use.
void KvCache::keep_entries(Context& ctx, int64_t layer, int32_t sequence, int64_t position) {
  const int64_t kept = entries_before(ctx, layer, sequence, position);
  const int64_t slots = own_slots(ctx, layer, sequence, kept);
  write(lengths_, layer * options_.sequences + sequence, kept);
  write(taken_, layer * options_.sequences + sequence, slots);
  keep_slots(held(layer, sequence), slots);
}

void KvCache::keep_slots(Held& held, int64_t slots) {
  held.slots = slots;
  while (static_cast<int64_t>(held.pages.size()) > pages_for(slots)) {
    if (held.pages.back() != kNoPage) pool_.release(held.pages.back());
    held.pages.pop_back();
  }
  held.gone = std::min(held.gone, std::ssize(held.pages));
  if (held.gone == 0) held.gone_rows = 0;
}

int64_t KvCache::length(Context& ctx, int64_t layer, int32_t sequence) {
  send_changes(ctx);
  return read_one(ctx, lengths_, layer * options_.sequences + sequence);
}

int64_t KvCache::entries_before(Context& ctx, int64_t layer, int32_t sequence, int64_t position) {
  if (position == 0) return 0;  // on a GPU each reading is a wait
  const std::span<const int32_t> positions =
      read(ctx, this->layer(layer).positions, sequence, length(ctx, layer, sequence));
  return std::lower_bound(positions.begin(), positions.end(), position) - positions.begin();
}

// Slots that the first `entries` of a list took of the layer's own pages: they ascend, so the last one tells.
// Slots of layers below stand between them. None of those outlives its own layer's entry: lists are cut
// together, or from the top down.
int64_t KvCache::own_slots(Context& ctx, int64_t layer, int32_t sequence, int64_t entries) {
  if (!shares_) return entries;
  const std::span<const int32_t> slots = read(ctx, this->layer(layer).entries, sequence, entries);
  for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot) {
    const auto page = static_cast<int32_t>(*slot / kPage);
    const std::vector<int32_t>& own = held(layer, sequence).pages;
    const auto index =
        static_cast<size_t>(pool_.index(page));  // of a page that may have other holders by now
    if (pool_.layer(page) == layer && index < own.size() && own[index] == page)
      return pool_.index(page) * kPage + *slot % kPage + 1;
  }
  return 0;
}

int64_t KvCache::last_position(Context& ctx, int64_t layer, int32_t sequence) {
  const int64_t entries = length(ctx, layer, sequence);
  if (entries == 0) return -1;
  return read_one(ctx, this->layer(layer).positions, sequence * options_.context + entries - 1);
}

// The first `count` numbers of a row: in place on the CPU, else a copy.
std::span<int32_t> KvCache::read(Context& ctx, Tensor& list, int64_t row, int64_t count) {
  send_changes(ctx);
  int32_t* data = list.data<int32_t>() + row * list.dim(1);
  const auto size = static_cast<size_t>(count);
  if (ctx.device() == Device::kCpu) return {data, size};
  host_.resize(size);
  copy_bytes(ctx, host_.data(), Device::kCpu, data, ctx.device(), size * sizeof(int32_t));
  return host_;
}

// list: a part of numbers_.
void KvCache::write(const Tensor& list, int64_t index, int64_t value) {
  const int64_t at = list.data<int32_t>() - std::as_const(numbers_).data<int32_t>() + index;
  const auto number = static_cast<int32_t>(value);
  if (numbers_.device() == Device::kCpu) {
    numbers_.data<int32_t>()[at] = number;
  } else {
    changes_.push_back({static_cast<int32_t>(at), number});
  }
}

void KvCache::write_page(int64_t layer, int32_t sequence, int64_t index) {
  const Tensor& table = layers_[static_cast<size_t>(layer)].pages.table;
  write(table, sequence * table.dim(1) + index, held(layer, sequence).pages[static_cast<size_t>(index)]);
}

}  // namespace fathom
