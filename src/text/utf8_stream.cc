#include "text/utf8_stream.h"

namespace fathom {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

// Unicode 15, table 3-7: the second byte's range depends on the first (no overlong forms, no surrogates,
// nothing past U+10FFFF); later bytes are 80..BF.
void Utf8Stream::take(uint8_t byte, std::string& out) {
  if (size_ > 0) {
    if (byte >= lowest_ && byte <= highest_) {
      pending_[size_++] = static_cast<char>(byte);
      lowest_ = 0x80;
      highest_ = 0xBF;
      if (size_ == length_) {
        out.append(pending_, size_);
        size_ = 0;
      }
      return;
    }
    out += kReplacement;  // for what was held; `byte` itself starts afresh below
    size_ = 0;
  }
  if (byte < 0x80) {
    out += static_cast<char>(byte);
  } else if (byte < 0xC2 || byte > 0xF4) {
    out += kReplacement;
  } else {
    length_ = byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    lowest_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
    highest_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
    pending_[0] = static_cast<char>(byte);
    size_ = 1;
  }
}

std::string Utf8Stream::feed(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (char c : bytes) take(static_cast<uint8_t>(c), out);
  return out;
}

std::string Utf8Stream::flush() {
  std::string out;
  if (size_ > 0) out = kReplacement;
  size_ = 0;
  return out;
}

std::string to_valid_utf8(std::string_view bytes) {
  Utf8Stream stream;
  std::string out = stream.feed(bytes);
  return out + stream.flush();
}

}  // namespace fathom
