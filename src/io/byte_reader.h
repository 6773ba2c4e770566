// Reads little-endian values from untrusted bytes: every step is checked against what is left.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace fathom {

static_assert(std::endian::native == std::endian::little,
              "files are read in place: a big-endian machine needs another way");

class ByteReader {
 public:
  // `where` starts each message: "FILE: gguf".
  ByteReader(std::span<const std::byte> bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {}

  size_t position() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }
  const std::string& where() const { return where_; }

  // `what` names the thing in "truncated: …".
  template <class T>
  T read(const char* what) {
    if (left() < sizeof(T)) fail_truncated(sizeof(T), what);
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  std::string_view read_bytes(uint64_t count, const char* what) {
    if (left() < count) fail_truncated(count, what);
    const auto* begin = reinterpret_cast<const char*>(bytes_.data() + at_);
    at_ += count;
    return {begin, count};
  }

 private:
  [[noreturn]] void fail_truncated(uint64_t needed, const char* what) const;

  std::span<const std::byte> bytes_;
  std::string where_;
  size_t at_ = 0;
};

// The next multiple of `alignment`, a power of two; false when that passes 2^64.
inline bool align_up(uint64_t value, uint64_t alignment, uint64_t* aligned) {
  if (__builtin_add_overflow(value, alignment - 1, aligned)) return false;
  *aligned &= ~(alignment - 1);
  return true;
}

}  // namespace fathom
