// UTF-8 and the character classes that tokenizers ask for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fathom {

struct Utf8Char {
  char32_t value = 0;
  uint8_t size = 0;  // bytes; 1 for a byte that begins no character
  bool valid = false;
};

// The character at text[at]; at < text.size(). Overlong forms, surrogates and values past U+10FFFF are not
// valid.
Utf8Char decode_utf8(std::string_view text, size_t at);
void append_utf8(std::string& out, char32_t value);
bool is_valid_utf8(std::string_view text);
std::u32string to_utf32(std::string_view valid_utf8);

// Bytes that are no UTF-8 go through a tokenizer as stand-ins: one private-use character (U+10FF80 …
// U+10FFFF) for each such byte, a character of no class that regexes and normalizers leave alone. The model
// turns it back into the byte. Where a text with such bytes also holds one of those 128 characters, the four
// bytes of that stand in for themselves.
std::string with_stand_ins(std::string_view text);
std::string without_stand_ins(std::string_view text);
// The byte that `value` stands for, or -1.
inline int stand_in_byte(char32_t value) {
  return value >= 0x10FF80 && value <= 0x10FFFF ? static_cast<int>(value & 0xFF) : -1;
}

bool is_white_space(char32_t value);  // Unicode White_Space
bool is_numeric(char32_t value);      // N*
bool is_letter(char32_t value);       // L*
bool is_mark(char32_t value);         // M*
bool is_punctuation(char32_t value);  // P*, and every ASCII mark that is no letter or digit
bool is_word_char(char32_t value);    // L, M, Nd, Nl, Pc
char32_t to_lower(char32_t value);

}  // namespace fathom
