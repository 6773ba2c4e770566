#include "text/byte_level.h"

#include <array>

#include "text/unicode.h"

namespace fathom {
namespace {

struct ByteTable {
  std::array<char32_t, 256> chars{};
  std::array<int16_t, 0x180> bytes{};  // the spellings are all below U+0144

  ByteTable() {
    bytes.fill(-1);
    char32_t next = 256;  // bytes without a printable Latin-1 character are numbered from here, in order
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      chars[b] = printable ? static_cast<char32_t>(b) : next++;
      bytes[chars[b]] = static_cast<int16_t>(b);
    }
  }
};

const ByteTable& table() {
  static const ByteTable kTable;
  return kTable;
}

}  // namespace

char32_t byte_level_char(uint8_t byte) {
  return table().chars[byte];
}

int byte_level_byte(char32_t value) {
  return value < 0x180 ? table().bytes[value] : -1;
}

std::string to_byte_level(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) append_utf8(out, byte_level_char(static_cast<uint8_t>(byte)));
  return out;
}

bool from_byte_level(std::string_view spelt, std::string* bytes) {
  bytes->clear();
  for (size_t at = 0; at < spelt.size();) {
    const Utf8Char c = decode_utf8(spelt, at);
    const int byte = c.valid ? byte_level_byte(c.value) : -1;
    if (byte < 0) return false;
    *bytes += static_cast<char>(byte);
    at += c.size;
  }
  return true;
}

}  // namespace fathom
