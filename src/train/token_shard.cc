#include "train/token_shard.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/format.h"
#include "train/crc32c.h"
#include "train/encode_document.h"

namespace fathom {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are mapped as they lie on disk");

constexpr char kMagic[8] = {'F', 'A', 'T', 'H', 'O', 'M', 'T', 'K'};
constexpr char kEndMagic[8] = {'K', 'T', 'M', 'O', 'H', 'T', 'A', 'F'};
constexpr uint32_t kVersion = 2;

struct Head {
  char magic[8];
  uint32_t version, reserved;
};
struct Tail {
  uint64_t tokens, documents, ids, masked, sum;
  char magic[8];
};
static_assert(sizeof(Head) == 16 && sizeof(Tail) == 48);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

TokenShardWriter::TokenShardWriter(const std::string& path) : file_(path) {
  Head head{{}, kVersion, 0};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  put(bytes_of(head));
}

void TokenShardWriter::put(std::span<const std::byte> bytes) {
  sum_ = crc32c(bytes, sum_);
  file_.write(bytes);
}

void TokenShardWriter::add(std::span<const uint32_t> document) {
  if (document.empty()) return;
  put(std::as_bytes(document));
  tokens_ += document.size();
  ends_.push_back(tokens_);
  for (uint32_t token : document) ids_ = std::max<uint64_t>(ids_, (token & ~kNotLearned) + 1);
  masked_ |=
      std::any_of(document.begin() + 1, document.end(), [](uint32_t token) { return !is_learned(token); });
}

void TokenShardWriter::commit() {
  if (tokens_ % 2 == 1) put(bytes_of(uint32_t{0}));
  put(std::as_bytes(std::span(ends_)));
  Tail tail{tokens_, ends_.size(), ids_, masked_, 0, {}};
  tail.sum = crc32c(bytes_of(tail), sum_);
  std::memcpy(tail.magic, kEndMagic, sizeof kEndMagic);
  file_.write(bytes_of(tail));
  file_.commit();
}

std::shared_ptr<const TokenShard> TokenShard::open(const std::string& path) {
  const auto file = MappedFile::open(path);
  return parse(file->bytes(), file, path);
}

std::shared_ptr<const TokenShard> TokenShard::parse(std::span<const std::byte> bytes,
                                                    std::shared_ptr<const void> owner,
                                                    const std::string& name) {
  const auto bad = [&](const std::string& why) {
    fail("{}: not a file of tokens: {}", printable(name), why);
  };
  if (bytes.size() < sizeof(Head) + sizeof(Tail)) bad("too short");
  Head head;
  Tail tail;
  std::memcpy(&head, bytes.data(), sizeof head);
  std::memcpy(&tail, bytes.data() + bytes.size() - sizeof tail, sizeof tail);
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0) bad("wrong magic");
  if (head.version != kVersion) bad(fmt::format("version {}, expected {}", head.version, kVersion));
  if (std::memcmp(tail.magic, kEndMagic, sizeof kEndMagic) != 0) bad("its end is missing");
  const uint64_t room = bytes.size() - sizeof(Head) - sizeof(Tail);
  // Each count is bounded by the room before it is multiplied.
  if (tail.tokens > room / 4 || tail.documents > room / 8) bad("counts past its size");
  const uint64_t token_bytes = (tail.tokens + tail.tokens % 2) * 4;
  if (token_bytes + tail.documents * 8 != room) bad("counts that do not add up to its size");
  if (reinterpret_cast<uintptr_t>(bytes.data()) % 8 != 0) bad("not aligned in memory");

  auto shard = std::make_shared<TokenShard>();
  const std::byte* data = bytes.data() + sizeof(Head);
  shard->owner_ = std::move(owner);
  shard->tokens_ = {reinterpret_cast<const uint32_t*>(data), static_cast<size_t>(tail.tokens)};
  shard->ends_ = {reinterpret_cast<const uint64_t*>(data + token_bytes), static_cast<size_t>(tail.documents)};
  uint64_t before = 0;
  for (uint64_t end : shard->ends_) {
    if (end <= before || end > tail.tokens) bad("document ends out of order");
    before = end;
  }
  if (before != tail.tokens) bad("tokens after the last document");
  if (tail.ids > kNotLearned) bad("ids out of range");
  const uint32_t sum = crc32c(bytes.first(bytes.size() - sizeof tail));
  Tail counts = tail;
  counts.sum = 0;
  std::memset(counts.magic, 0, sizeof counts.magic);
  if (tail.sum != crc32c(bytes_of(counts), sum)) bad("its bytes are not those that were written");
  shard->ids_ = static_cast<int64_t>(tail.ids);
  shard->sum_ = static_cast<uint32_t>(tail.sum);
  shard->masked_ = tail.masked != 0;
  return shard;
}

int64_t TokenShard::document_of(int64_t token) const {
  return std::upper_bound(ends_.begin(), ends_.end(), static_cast<uint64_t>(token)) - ends_.begin();
}

}  // namespace fathom
