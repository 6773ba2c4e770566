// Byte-pair merging: of all neighbours that may join, join those of the lowest rank, the leftmost first,
// until none may.
#pragma once

#include <algorithm>
#include <array>

#include "text/token_model.h"

namespace fathom {

struct BpeMerge {
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t rank = kNone;  // kNone: these two do not join
  int32_t id = -1;        // the token they become
};

inline constexpr size_t kShortBpe = 48;  // up to here scanning all pairs beats a heap

// Quadratic, with a small constant.
template <class Find>
void merge_short(std::vector<BpeSymbol>& symbols, Find find) {
  std::array<BpeMerge, kShortBpe> merges;
  size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == BpeMerge::kNone) break;
    symbols[best] = {merges[best].id, symbols[best].begin, symbols[best].size + symbols[best + 1].size};
    std::copy(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
    if (best + 2 < count) {
      std::copy(merges.begin() + best + 2, merges.begin() + count - 1, merges.begin() + best + 1);
    }
    --count;
    if (best > 0) merges[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) merges[best] = find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

// n log n: a heap of candidates over a linked list. A candidate is stale when its neighbours joined others
// meanwhile.
template <class Find>
void merge_long(std::vector<BpeSymbol>& symbols, ModelScratch& scratch, Find find) {
  const auto count = static_cast<int32_t>(symbols.size());
  auto& heap = scratch.candidates;
  heap.clear();
  scratch.previous.resize(count);
  scratch.next.resize(count);
  const auto later = [](const BpeCandidate& a, const BpeCandidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  for (int32_t i = 0; i < count; ++i) {
    scratch.previous[i] = i - 1;
    scratch.next[i] = i + 1 < count ? i + 1 : -1;
    if (i + 1 == count) break;
    const BpeMerge merge = find(symbols[i], symbols[i + 1]);
    const uint32_t size = symbols[i].size + symbols[i + 1].size;
    if (merge.rank != BpeMerge::kNone) heap.push_back({merge.rank, static_cast<uint32_t>(i), size, merge.id});
  }
  std::make_heap(heap.begin(), heap.end(), later);
  const auto consider = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const BpeMerge merge = find(symbols[left], symbols[right]);
    if (merge.rank == BpeMerge::kNone) return;
    heap.push_back(
        {merge.rank, static_cast<uint32_t>(left), symbols[left].size + symbols[right].size, merge.id});
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeCandidate top = heap.back();
    heap.pop_back();
    const auto left = static_cast<int32_t>(top.at);
    const int32_t right = symbols[left].size > 0 ? scratch.next[left] : -1;
    if (right < 0 || symbols[left].size + symbols[right].size != top.size) continue;
    symbols[left].id = top.id;
    symbols[left].size += symbols[right].size;
    symbols[right].size = 0;
    scratch.next[left] = scratch.next[right];
    if (scratch.next[right] >= 0) scratch.previous[scratch.next[right]] = left;
    consider(scratch.previous[left], left);
    consider(left, scratch.next[left]);
  }
  std::erase_if(symbols, [](const BpeSymbol& symbol) { return symbol.size == 0; });
}

// find(left, right) gives what two neighbours become. Symbols must have sizes > 0.
template <class Find>
void merge_symbols(std::vector<BpeSymbol>& symbols, ModelScratch& scratch, Find find) {
  if (symbols.size() <= kShortBpe) {
    merge_short(symbols, find);
  } else {
    merge_long(symbols, scratch, find);
  }
}

}  // namespace fathom
