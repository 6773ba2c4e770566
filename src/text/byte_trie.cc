#include "text/byte_trie.h"

#include <algorithm>

namespace fathom {
namespace {

uint64_t slot_key(uint32_t node, uint8_t byte) {
  return (static_cast<uint64_t>(node) << 8 | byte) + 1;
}
size_t slot_hash(uint64_t key) {
  return (key * 0x9E3779B97F4A7C15ull) >> 32;
}

}  // namespace

uint32_t ByteTrie::child(uint32_t node, uint8_t byte) const {
  if (node == 0) return first_[byte];
  if (slots_.empty()) return 0;
  const uint64_t key = slot_key(node, byte);
  const size_t mask = slots_.size() - 1;
  for (size_t at = slot_hash(key) & mask; slots_[at].key != 0; at = (at + 1) & mask) {
    if (slots_[at].key == key) return slots_[at].child;
  }
  return 0;
}

void ByteTrie::grow() {
  std::vector<Slot> old(std::max<size_t>(64, slots_.size() * 2));
  old.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.key == 0) continue;
    size_t at = slot_hash(slot.key) & mask;
    while (slots_[at].key != 0) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

void ByteTrie::add(std::string_view text, int32_t value) {
  if (text.empty()) return;
  uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(values_.size());
      values_.push_back(-1);
      if (node == 0) {
        first_[byte] = next;
      } else {
        if (used_ * 2 >= slots_.size()) grow();
        const uint64_t key = slot_key(node, byte);
        const size_t mask = slots_.size() - 1;
        size_t at = slot_hash(key) & mask;
        while (slots_[at].key != 0) at = (at + 1) & mask;
        slots_[at] = {key, next};
        ++used_;
      }
    }
    node = next;
  }
  if (values_[node] < 0) values_[node] = value;
}

size_t ByteTrie::longest(std::string_view text, size_t at, int32_t* value) const {
  size_t best = 0;
  prefixes(text, at, [&](size_t length, int32_t found) {
    best = length;
    *value = found;
  });
  return best;
}

}  // namespace fathom
