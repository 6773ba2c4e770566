#include "eval/python_text.h"

#include <cctype>

#include "text/unicode.h"

namespace fathom {
namespace {

// What str.isspace and \s take for white space.
bool is_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

}  // namespace

std::string_view stripped(std::string_view text) {
  text = text.substr(0, length_without_trailing_space(text));
  while (!text.empty()) {
    const Utf8Char first = decode_utf8(text, 0);
    if (!is_space(first.value)) break;
    text.remove_prefix(first.size);
  }
  return text;
}

size_t length_without_trailing_space(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    at += c.size;
    if (!is_space(c.value)) end = at;
  }
  return end;
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;  // a word
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const bool space = is_space(c.value);
    if (!space && !inside) words.emplace_back();
    if (!space) words.back() += text.substr(at, c.size);
    inside = !space;
    at += c.size;
  }
  return words;
}

int64_t count_words(std::string_view text) {
  int64_t words = 1;
  bool inside = false;  // white space
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const bool space = is_space(c.value);
    if (space && !inside) ++words;
    inside = space;
    at += c.size;
  }
  return words;
}

std::string lower_case(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    append_utf8(out, to_lower(c.value));
    at += c.size;
  }
  return out;
}

std::string without_punctuation(std::string text) {
  std::erase_if(text, [](char c) { return std::ispunct(static_cast<unsigned char>(c)) && (c & 0x80) == 0; });
  return text;
}

}  // namespace fathom
