// Bytes in, whole UTF-8 characters out: the bytes of one character may be spread over several tokens, and a
// terminal or a JSON string must never see half of one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fathom {

class Utf8Stream {
 public:
  // Every character that `bytes` completes. Bytes that cannot be part of a character become U+FFFD as soon as
  // that is known, one for each longest prefix of a character (as the Unicode standard advises and Python
  // does).
  std::string feed(std::string_view bytes);

  // The end of the text: an unfinished character becomes U+FFFD.
  std::string flush();

  // Bytes of an unfinished character that are held back.
  size_t held() const { return size_; }

 private:
  void take(uint8_t byte, std::string& out);

  char pending_[4] = {};
  uint8_t size_ = 0;                        // bytes in pending_
  uint8_t length_ = 0;                      // bytes of the whole character
  uint8_t lowest_ = 0x80, highest_ = 0xBF;  // what the next byte may be
};

// `bytes` as valid UTF-8, in one call.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace fathom
