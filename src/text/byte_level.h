// GPT-2's spelling of bytes: each of the 256 bytes is one printable character (a space is 'Ġ'). Vocabularies
// are kept as the bytes themselves; this spelling is only for reading and showing them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fathom {

char32_t byte_level_char(uint8_t byte);
int byte_level_byte(char32_t value);  // -1: no byte is spelt so

std::string to_byte_level(std::string_view bytes);
// False when a character of `spelt` stands for no byte.
bool from_byte_level(std::string_view spelt, std::string* bytes);

}  // namespace fathom
