#include <algorithm>

#include "text/token_model.h"

namespace fathom {

bool PieceCache::find(std::string_view piece, uint64_t full_hash, std::vector<int32_t>& out) const {
  if (slots_.empty()) return false;
  const auto hash = static_cast<uint32_t>(full_hash);
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask; slots_[at].id_count > 0; at = (at + 1) & mask) {
    const Entry& entry = slots_[at];
    if (entry.hash != hash || std::string_view(keys_).substr(entry.key, entry.key_size) != piece) continue;
    out.insert(out.end(), ids_.begin() + entry.ids, ids_.begin() + entry.ids + entry.id_count);
    return true;
  }
  return false;
}

void PieceCache::grow() {
  std::vector<Entry> old(std::max<size_t>(256, slots_.size() * 2));
  old.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Entry& entry : old) {
    if (entry.id_count == 0) continue;
    size_t at = entry.hash & mask;
    while (slots_[at].id_count > 0) at = (at + 1) & mask;
    slots_[at] = entry;
  }
}

void PieceCache::add(std::string_view piece, uint64_t full_hash, const int32_t* ids, size_t count) {
  if (count == 0 || used_ >= kMaxEntries) return;
  if (used_ * 2 >= slots_.size()) grow();
  const auto hash = static_cast<uint32_t>(full_hash);
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].id_count > 0) at = (at + 1) & mask;
  slots_[at] = {hash, static_cast<uint32_t>(keys_.size()), static_cast<uint32_t>(piece.size()),
                static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(count)};
  keys_ += piece;
  ids_.insert(ids_.end(), ids, ids + count);
  ++used_;
}

}  // namespace fathom
