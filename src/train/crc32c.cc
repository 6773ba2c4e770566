#include "train/crc32c.h"

#include <array>
#include <cstring>

namespace fathom {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: what byte b does when k more bytes follow it.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ kPolynomial : crc >> 1;
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = before >> 8 ^ tables[0][before & 255];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][word >> 8 * k & 255];
  }
  for (; i < bytes.size(); ++i)
    crc = crc >> 8 ^ kTables[0][(crc ^ std::to_integer<uint32_t>(bytes[i])) & 255];
  return ~crc;
}

uint32_t crc32c(std::string_view text, uint32_t before) {
  return crc32c(std::as_bytes(std::span(text.data(), text.size())), before);
}

uint32_t masked_crc32c(std::string_view text) {
  const uint32_t crc = crc32c(text);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

}  // namespace fathom
