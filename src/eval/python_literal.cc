#include "eval/python_literal.h"

#include <nlohmann/json.hpp>
#include <string>

#include "base/format.h"
#include "text/unicode.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 8;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Json whole() {
    Json out = value(1);
    if (!peek_end()) expected("the end");
    return out;
  }

 private:
  [[noreturn]] void expected(const char* what) const {
    if (at_ >= text_.size()) fail("expected {} at its end", what);
    fail("expected {} at byte {}, got '{}'", what, at_, printable(text_.substr(at_), 20));
  }

  bool peek_end() {
    at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
    return at_ == text_.size();
  }

  // Whether `c` comes next, which is taken then.
  bool take(char c) {
    if (peek_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  Json value(int depth) {
    if (depth > kDeepest) expected("lists and dicts at most 8 deep");
    if (take('[')) return list(depth);
    if (take('{')) return dict(depth);
    return string();
  }

  Json list(int depth) {
    Json out = Json::array();
    while (!take(']')) {
      if (!out.empty() && !take(',')) expected("',' or ']'");
      if (!out.empty() && take(']')) break;  // a comma may stand at the end
      out.push_back(value(depth + 1));
    }
    return out;
  }

  Json dict(int depth) {
    Json out = Json::object();
    bool first = true;
    while (!take('}')) {
      if (!first && !take(',')) expected("',' or '}'");
      if (!first && take('}')) break;
      first = false;
      const std::string key = string();
      if (!take(':')) expected("':'");
      out[key] = value(depth + 1);
    }
    return out;
  }

  std::string string() {
    const char quote = take('\'') ? '\'' : take('"') ? '"' : '\0';
    if (quote == '\0') expected("a list, a dict or a string");
    std::string out;
    while (true) {
      if (at_ >= text_.size() || text_[at_] == '\n') expected("the end of a string");
      const char c = text_[at_++];
      if (c == quote) return out;
      if (c == '\\') {
        escape(out);
      } else {
        out += c;
      }
    }
  }

  // What repr() writes after a backslash.
  void escape(std::string& out) {
    const char c = at_ < text_.size() ? text_[at_++] : '\0';
    switch (c) {
      case '\\':
      case '\'':
      case '"':
        out += c;
        return;
      case 'n':
        out += '\n';
        return;
      case 'r':
        out += '\r';
        return;
      case 't':
        out += '\t';
        return;
      case 'x':
        return character(out, 2);
      case 'u':
        return character(out, 4);
      case 'U':
        return character(out, 8);
      default:
        at_ -= c != '\0';
        expected("one of \\ ' \" n r t x u U after a backslash");
    }
  }

  void character(std::string& out, size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i) {
      const size_t digit = at_ < text_.size() ? std::string_view("0123456789abcdef").find(text_[at_]) : 16;
      if (digit > 15) expected("a digit from 0 to f");
      value = value << 4 | static_cast<uint32_t>(digit);
      ++at_;
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) expected("a character before this");
    append_utf8(out, value);
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Json parse_python_literal(std::string_view text) {
  return Parser(text).whole();
}

}  // namespace fathom
