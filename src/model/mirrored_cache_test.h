// A cache and, beside it, a plain model of what every list must hold: positions, contents and biases.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/rng.h"
#include "model/kv_cache.h"
#include "quant/formats.h"
#include "tensor/arena.h"

namespace fathom {

inline constexpr int64_t kLayers = 4, kSequences = 5, kKvHeads = 2, kDim = 32, kWidth = kKvHeads * kDim;

inline ModelConfig tiny() {
  ModelConfig config;
  config.layers = kLayers;
  config.kv_heads = kKvHeads;
  config.head_dim = kDim;
  config.context = 300;
  return config;
}

struct Entry {
  int32_t position = 0;
  std::vector<std::byte> k, v;  // as stored
  float bias = 0;
  bool own = true;  // not shared with the layer below
};
using List = std::vector<Entry>;

// What the rows of a pass leave in one layer.
enum class Rule : uint8_t { kAll, kHide, kShare };

// A cache, and beside it the lists it must hold, kept by copying everything.
class Mirrored {
 public:
  Mirrored(DType type, int64_t pages, uint64_t seed)
      : cache(ctx, tiny(),
              {.sequences = kSequences, .k_type = type, .v_type = type, .key_bias = true, .pages = pages}),
        rng(seed),
        type_(type) {}

  int32_t any(int64_t below) { return static_cast<int32_t>(rng.below(static_cast<uint32_t>(below))); }

  // Some more rows of each of some sequences, interleaved; of those that there is room for.
  void feed(const std::vector<int32_t>& sequences, int64_t count) {
    std::vector<BatchRow> rows;
    for (const int32_t s : sequences) {
      const int64_t past = cache.rows(s);
      const bool fits = cache.fits(s, count);
      try {
        cache.reserve(ctx, s, count);
        EXPECT_TRUE(fits);
      } catch (const CacheFull&) {
        EXPECT_FALSE(fits);
        EXPECT_EQ(cache.rows(s), past);
        ++refused;
        continue;
      }
      for (int64_t i = 0; i < count; ++i) rows.push_back({0, static_cast<int32_t>(past + i), s});
    }
    std::stable_sort(rows.begin(), rows.end(),
                     [](const BatchRow& a, const BatchRow& b) { return a.position < b.position; });
    if (!rows.empty()) append(rows, 0);
  }

  // Layers from `layer` up forget a sequence's rows from a position on and get them again, as a verified
  // draft does.
  void feed_again(int32_t s, int64_t layer, int64_t position) {
    for (int64_t l = kLayers - 1; l >= layer; --l) {
      cache.truncate_layer(ctx, l, s, position);
      cut(lists[s][l], position);
    }
    check();
    if (!cache.fits(s, 0)) return;
    cache.reserve(ctx, s, 0);
    std::vector<BatchRow> rows;
    for (int64_t p = position; p < cache.rows(s); ++p) rows.push_back({0, static_cast<int32_t>(p), s});
    if (!rows.empty()) append(rows, layer);
  }

  void truncate(int32_t s, int64_t position) {
    cache.truncate(ctx, s, position);
    for (List& list : lists[s]) cut(list, position);
  }

  void fork(int32_t from, int32_t to, int64_t position) {
    cache.fork(ctx, from, to, position);
    for (int64_t l = 0; l < kLayers; ++l) {
      lists[to][l] = lists[from][l];
      cut(lists[to][l], position);
    }
  }

  void check() {
    for (int64_t l = 0; l < kLayers; ++l) {
      const KvView& kv = cache.layer(l);
      for (int64_t s = 0; s < kSequences; ++s) {
        const List& want = lists[s][l];
        ASSERT_EQ(kv.lengths.data<int32_t>()[s], static_cast<int64_t>(want.size())) << l << " " << s;
        for (size_t i = 0; i < want.size(); ++i) {
          const int64_t at = s * kv.entries.dim(1) + static_cast<int64_t>(i);
          const int64_t slot = kv.entries.data<int32_t>()[at];
          ASSERT_EQ(kv.positions.data<int32_t>()[at], want[i].position);
          ASSERT_EQ(kv.bias.data<float>()[at], want[i].bias);
          ASSERT_TRUE(holds(kv.k, slot, want[i].k) && holds(kv.v, slot, want[i].v))
              << "layer " << l << ", sequence " << s << ", position " << want[i].position;
        }
      }
    }
  }

  // Pages that the lists need when no sequences share a page.
  int64_t pages_unshared() const {
    int64_t pages = 0;
    for (const auto& layers : lists) {
      for (const List& list : layers)
        pages += KvCache::pages_for(
            std::count_if(list.begin(), list.end(), [](const Entry& entry) { return entry.own; }));
    }
    return pages;
  }
  int64_t pages_held() const { return cache.bytes_held() / (KvCache::kPage * cache.bytes_per_entry()); }
  void settle() {
    for (int32_t s = 0; s < kSequences; ++s) cache.settle(ctx, s);
  }

  Context ctx{{.threads = 1}};
  KvCache cache;
  Rng rng;
  List lists[kSequences][kLayers];
  int refused = 0;            // sequences that had no room
  std::vector<Rule> rules{};  // of the layers; empty: each pass draws its own

 private:
  static void cut(List& list, int64_t position) {
    std::erase_if(list, [&](const Entry& entry) { return entry.position >= position; });
  }
  bool holds(const Tensor& pool, int64_t slot, const std::vector<std::byte>& want) const {
    const auto bytes = static_cast<int64_t>(want.size());
    return std::memcmp(pool.data<std::byte>() + slot * bytes, want.data(), want.size()) == 0;
  }
  const Entry* entry_at(const List& list, int32_t position) const {
    const auto found =
        std::find_if(list.begin(), list.end(), [&](const Entry& e) { return e.position == position; });
    return found == list.end() ? nullptr : &*found;
  }

  // Rows of one pass through the layers from `first` up, each layer under its own rule.
  void append(const std::vector<BatchRow>& rows, int64_t first) {
    const ArenaScope scope(ctx);
    const Batch batch = make_batch(ctx, rows);
    for (int64_t l = first; l < kLayers; ++l) {
      const auto rule = rules.empty() ? static_cast<Rule>(any(3)) : rules[static_cast<size_t>(l)];
      std::vector<int32_t> own;
      for (size_t r = 0; r < rows.size(); ++r) {
        const bool below = l > 0 && entry_at(lists[rows[r].sequence][l - 1], rows[r].position);
        if (rule == Rule::kAll || any(2) == 0 || (rule == Rule::kShare && !below))
          own.push_back(static_cast<int32_t>(r));
      }
      append_layer(rows, batch, l, rule, own);
    }
  }

  void append_layer(const std::vector<BatchRow>& rows, const Batch& batch, int64_t l, Rule rule,
                    const std::vector<int32_t>& own) {
    const auto count = static_cast<int64_t>(rows.size());
    std::vector<float> k(static_cast<size_t>(count * kWidth)), v(k.size()), bias(rows.size());
    for (std::vector<float>* x : {&k, &v}) {
      for (float& each : *x) each = static_cast<float>(any(255) - 127);
      for (size_t i = 0; i < x->size(); i += 32)
        (*x)[i] = 127;  // a q8_0 block's scale is 1: every type is exact
    }
    for (float& x : bias) x = rng.normal();
    for (size_t r = 0, next = 0; r < rows.size(); ++r) {
      const bool is_own = next < own.size() && own[next] == static_cast<int32_t>(r);
      if (!is_own && rule != Rule::kShare) continue;
      List& list = lists[rows[r].sequence][l];
      Entry entry;
      if (is_own) {
        entry.k = stored(k.data() + next * kWidth);
        entry.v = stored(v.data() + next * kWidth);
        ++next;
      } else {
        entry = *entry_at(lists[rows[r].sequence][l - 1], rows[r].position);
        entry.own = false;
      }
      entry.position = rows[r].position;
      entry.bias = bias[r];
      list.push_back(entry);
    }
    std::vector<int32_t> ids(rows.size());
    std::copy(own.begin(), own.end(), ids.begin());
    const std::vector<int32_t> kept{static_cast<int32_t>(own.size())};
    const RowSet set = own.size() == rows.size()
                           ? RowSet::all(count)
                           : RowSet::some(Tensor::from(ctx, ids, {count}), Tensor::from(ctx, kept, {1}));
    const Shape shape{count, kKvHeads, kDim};
    cache.append(ctx, l, batch,
                 {Tensor::from(ctx, k, shape), Tensor::from(ctx, v, shape), set,
                  Tensor::from(ctx, bias, {count}), rule == Rule::kShare && !set.is_all()});
  }

  std::vector<std::byte> stored(const float* row) const {
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type_, kWidth)));
    encode_row(type_, row, bytes.data(), kWidth);
    return bytes;
  }

  DType type_;
};

}  // namespace fathom
