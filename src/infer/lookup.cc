#include "infer/lookup.h"

#include <algorithm>

namespace fathom {
namespace {

size_t bucket(int32_t first, int32_t second) {
  const uint64_t pair =
      static_cast<uint64_t>(static_cast<uint32_t>(first)) << 32 | static_cast<uint32_t>(second);
  return static_cast<size_t>(pair * 0x9e3779b97f4a7c15u >> 51);  // 13 bits
}
static_assert(LookupIndex::kBuckets == int64_t{1} << (64 - 51));
static_assert(LookupIndex::kShortest == 2);

// Tokens before `a` and before `b` that are the same.
int64_t common(std::span<const int32_t> history, int64_t a, int64_t b) {
  int64_t length = 0;
  while (length < LookupIndex::kLongest && length < std::min(a, b) &&
         history[static_cast<size_t>(a - length - 1)] == history[static_cast<size_t>(b - length - 1)])
    ++length;
  return length;
}

}  // namespace

void LookupIndex::add(std::span<const int32_t> history, int64_t end) {
  for (; known_ < end; ++known_) {
    const auto at = static_cast<size_t>(known_);
    int32_t& head = heads_[bucket(history[at - 2], history[at - 1])];
    const auto slot = static_cast<size_t>(known_ % kWindow);
    if (slot >= previous_.size()) grow();
    previous_[slot] = head;
    head = static_cast<int32_t>(known_);
  }
}

void LookupIndex::grow() {
  const size_t size = std::clamp<size_t>(2 * previous_.size(), 1024, kWindow);
  previous_.reserve(size);
  previous_.resize(size, -1);
}

LookupIndex::Match LookupIndex::find(std::span<const int32_t> history) {
  const auto size = static_cast<int64_t>(history.size());
  if (size <= kShortest) return {};
  if (heads_.empty()) heads_.assign(kBuckets, -1);
  add(history, size);
  Match best;
  int64_t place = heads_[bucket(history[history.size() - 2], history.back())];
  for (int64_t seen = 0; place >= 0 && place > size - kWindow && seen < kMostCandidates; ++seen) {
    const int64_t length = common(history, place, size);
    if (length >= kShortest && length > best.length) best = {length, place};
    if (best.length == kLongest) break;
    place = previous_[static_cast<size_t>(place % kWindow)];
  }
  return best;
}

int64_t LookupIndex::bytes() const {
  return static_cast<int64_t>((heads_.capacity() + previous_.capacity()) * sizeof(int32_t));
}

int32_t continued(std::span<const int32_t> history, const LookupIndex::Match& match, int64_t index) {
  const auto size = static_cast<int64_t>(history.size());
  const int64_t at = match.next + index, period = size - match.next;
  return history[static_cast<size_t>(at < size ? at : match.next + index % period)];
}

}  // namespace fathom
