#include "base/json_depth.h"

#include <algorithm>

#include "base/format.h"

namespace fathom {
namespace {

// The place after the string that begins at `at`.
size_t string_end(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
  return at + 1;
}

// The place after the comment that begins at `at`; `at` + 1 where none does.
size_t comment_end(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at);
  const bool line = rest.starts_with("//"), block = rest.starts_with("/*");
  if (!line && !block) return at + 1;
  const size_t end = line ? rest.find('\n') : rest.find("*/", 2);
  return end == std::string_view::npos ? text.size() : at + end + (line ? 1 : 2);
}

}  // namespace

int json_depth(std::string_view text) {
  int depth = 0, deepest = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"') {
      at = string_end(text, at);
      continue;
    }
    if (c == '/') {
      at = comment_end(text, at);
      continue;
    }
    if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
    if (c == '}' || c == ']') --depth;
    ++at;
  }
  return deepest;
}

void check_json_depth(std::string_view text, const std::string& where, int most) {
  const int depth = json_depth(text);
  if (depth > most) fail("{}: expected JSON of at most {} levels, got {}", where, most, depth);
}

}  // namespace fathom
