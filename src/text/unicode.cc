#include "text/unicode.h"

#include <utf8proc.h>

namespace fathom {
namespace {

constexpr char32_t kStandIns = 0x10FF00;  // + the byte, which is 0x80 or more

utf8proc_category_t category(char32_t value) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(value));
}

bool is_continuation(unsigned char byte) {
  return (byte & 0xC0) == 0x80;
}

}  // namespace

Utf8Char decode_utf8(std::string_view text, size_t at) {
  const auto* s = reinterpret_cast<const unsigned char*>(text.data()) + at;
  const size_t left = text.size() - at;
  const unsigned char lead = s[0];
  if (lead < 0x80) return {lead, 1, true};
  const Utf8Char bad{lead, 1, false};
  if (lead < 0xC2 || lead > 0xF4) return bad;
  if (lead < 0xE0) {
    if (left < 2 || !is_continuation(s[1])) return bad;
    return {static_cast<char32_t>((lead & 0x1F) << 6 | (s[1] & 0x3F)), 2, true};
  }
  if (lead < 0xF0) {
    if (left < 3 || !is_continuation(s[1]) || !is_continuation(s[2])) return bad;
    const auto value = static_cast<char32_t>((lead & 0x0F) << 12 | (s[1] & 0x3F) << 6 | (s[2] & 0x3F));
    if (value < 0x800 || (value >= 0xD800 && value < 0xE000)) return bad;
    return {value, 3, true};
  }
  if (left < 4 || !is_continuation(s[1]) || !is_continuation(s[2]) || !is_continuation(s[3])) return bad;
  const auto value =
      static_cast<char32_t>((lead & 0x07) << 18 | (s[1] & 0x3F) << 12 | (s[2] & 0x3F) << 6 | (s[3] & 0x3F));
  if (value < 0x10000 || value > 0x10FFFF) return bad;
  return {value, 4, true};
}

void append_utf8(std::string& out, char32_t value) {
  if (value < 0x80) {
    out += static_cast<char>(value);
  } else if (value < 0x800) {
    out += {static_cast<char>(0xC0 | value >> 6), static_cast<char>(0x80 | (value & 0x3F))};
  } else if (value < 0x10000) {
    out += {static_cast<char>(0xE0 | value >> 12), static_cast<char>(0x80 | (value >> 6 & 0x3F)),
            static_cast<char>(0x80 | (value & 0x3F))};
  } else {
    out += {static_cast<char>(0xF0 | value >> 18), static_cast<char>(0x80 | (value >> 12 & 0x3F)),
            static_cast<char>(0x80 | (value >> 6 & 0x3F)), static_cast<char>(0x80 | (value & 0x3F))};
  }
}

bool is_valid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Char c = decode_utf8(text, at);
    if (!c.valid) return false;
    at += c.size;
  }
  return true;
}

std::u32string to_utf32(std::string_view valid_utf8) {
  std::u32string out;
  out.reserve(valid_utf8.size());
  for (size_t at = 0; at < valid_utf8.size();) {
    const Utf8Char c = decode_utf8(valid_utf8, at);
    out += c.value;
    at += c.size;
  }
  return out;
}

std::string with_stand_ins(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    if (c.valid && stand_in_byte(c.value) < 0) {
      out.append(text, at, c.size);
    } else {
      for (size_t i = at; i < at + c.size; ++i)
        append_utf8(out, kStandIns + static_cast<unsigned char>(text[i]));
    }
    at += c.size;
  }
  return out;
}

std::string without_stand_ins(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const int byte = c.valid ? stand_in_byte(c.value) : -1;
    if (byte >= 0) {
      out += static_cast<char>(byte);
    } else {
      out.append(text, at, c.size);
    }
    at += c.size;
  }
  return out;
}

bool is_white_space(char32_t value) {
  if (value < 0x80) return value == ' ' || (value >= '\t' && value <= '\r');
  return value == 0x85 || value == 0xA0 || value == 0x1680 || (value >= 0x2000 && value <= 0x200A) ||
         value == 0x2028 || value == 0x2029 || value == 0x202F || value == 0x205F || value == 0x3000;
}

bool is_numeric(char32_t value) {
  if (value < 0x80) return value >= '0' && value <= '9';
  const auto c = category(value);
  return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool is_letter(char32_t value) {
  if (value < 0x80) return (value | 0x20) >= 'a' && (value | 0x20) <= 'z';
  const auto c = category(value);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool is_mark(char32_t value) {
  const auto c = category(value);
  return c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME;
}

bool is_punctuation(char32_t value) {
  if (value < 0x80) return value > ' ' && value < 0x7F && !is_letter(value) && !is_numeric(value);
  const auto c = category(value);
  return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool is_word_char(char32_t value) {
  const auto c = category(value);
  return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_ND) || c == UTF8PROC_CATEGORY_NL ||
         c == UTF8PROC_CATEGORY_PC;
}

char32_t to_lower(char32_t value) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(value)));
}

}  // namespace fathom
