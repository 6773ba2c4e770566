// CRC-32C (Castagnoli), as TFRecord files and our checkpoints carry it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace fathom {

// Returns the checksum of `bytes` that follow data with the checksum `before`.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);
uint32_t crc32c(std::string_view text, uint32_t before = 0);

// TFRecord's masked form, because a checksum over data that holds checksums is too regular.
uint32_t masked_crc32c(std::string_view text);

}  // namespace fathom
