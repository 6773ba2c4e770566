#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/format.h"

namespace fathom {

uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15ull;
  uint64_t hash = bytes.size() * kMultiplier;
  const char* at = bytes.data();
  size_t left = bytes.size();
  const auto mix = [&](uint64_t word) {
    hash = (hash ^ word) * kMultiplier;
    hash ^= hash >> 29;
  };
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    mix(word);
  }
  if (left > 0) {
    uint64_t word = 0;
    std::memcpy(&word, at, left);
    mix(word);
  }
  hash *= kMultiplier;
  return hash ^ hash >> 32;
}

void Vocabulary::reserve(size_t tokens, size_t bytes) {
  bytes_.reserve(bytes);
  spans_.reserve(tokens);
  grow(std::bit_ceil(tokens * 2 + 16));
}

void Vocabulary::grow(size_t slots) {
  if (slots <= slots_.size()) return;
  std::vector<Slot> old(slots);
  old.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    size_t at = slot.hash & mask;
    while (slots_[at].id >= 0) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

bool Vocabulary::insert_slot(std::string_view text, int32_t id) {
  if (used_ * 2 >= slots_.size()) grow(std::max<size_t>(16, slots_.size() * 2));
  const auto hash = static_cast<uint32_t>(hash_bytes(text));
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  for (; slots_[at].id >= 0; at = (at + 1) & mask) {
    if (slots_[at].hash == hash && this->text(slots_[at].id) == text) return false;
  }
  slots_[at] = {hash, id};
  ++used_;
  return true;
}

bool Vocabulary::add(std::string_view text, int32_t id) {
  if (has(id)) return false;
  require(bytes_.size() + text.size() < kNone, "tokenizer: the tokens' texts are more than 4 GiB together");
  if (id >= size()) spans_.resize(static_cast<size_t>(id) + 1);
  insert_slot(text, id);
  spans_[id] = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(text.size())};
  bytes_ += text;
  longest_ = std::max(longest_, text.size());
  ++count_;
  return true;
}

int32_t Vocabulary::find(std::string_view text, uint64_t full_hash) const {
  if (slots_.empty()) return -1;
  const auto hash = static_cast<uint32_t>(full_hash);
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask; slots_[at].id >= 0; at = (at + 1) & mask) {
    if (slots_[at].hash == hash && this->text(slots_[at].id) == text) return slots_[at].id;
  }
  return -1;
}

std::string_view Vocabulary::text(int32_t id) const {
  if (!has(id)) return {};
  return std::string_view(bytes_).substr(spans_[id].begin, spans_[id].size);
}

int64_t id_limit(size_t entries) {
  return static_cast<int64_t>(entries) * 2 + 65536;
}

}  // namespace fathom
