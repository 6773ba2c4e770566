#include "tensor/arena.h"

#include <algorithm>

#include "tensor/context.h"
#include "tensor/memory.h"

namespace fathom {
namespace {

constexpr size_t kPieceAlignment = 64;
constexpr size_t kFirstChunk = size_t{1} << 20;

}  // namespace

void* Arena::allocate(size_t bytes) {
  const size_t size = (std::max<size_t>(bytes, 1) + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  while (chunk_ < chunks_.size() && offset_ + size > chunks_[chunk_].size) {
    ++chunk_;
    offset_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    const size_t grown = chunks_.empty() ? kFirstChunk : 2 * chunks_.back().size;
    const size_t chunk_size = std::max(size, std::min(grown, size_t{64} << 20));
    chunks_.push_back({allocate_uninitialised(device_, chunk_size), chunk_size});
    offset_ = 0;
  }
  void* memory = static_cast<std::byte*>(chunks_[chunk_].memory.get()) + offset_;
  offset_ += size;
  return memory;
}

size_t Arena::capacity() const {
  size_t bytes = 0;
  for (const Chunk& chunk : chunks_) bytes += chunk.size;
  return bytes;
}

ArenaScope::ArenaScope(Context& ctx) : arena_(ctx.arena()), chunk_(arena_.chunk_), offset_(arena_.offset_) {}

ArenaScope::~ArenaScope() {
  arena_.chunk_ = chunk_;
  arena_.offset_ = offset_;
}

}  // namespace fathom
