#include "text/regex_syntax.h"

#include <vector>

#include "base/format.h"

namespace fathom {
namespace {

// Unicode White_Space, and its complement: PCRE2's own \s has U+180E as well. As members of a class.
constexpr std::string_view kSpaceClass =
    "\\t-\\r\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
constexpr std::string_view kNotSpace =
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-"
    "\\x{2027}"
    "\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}";
// Oniguruma's \w: PCRE2 10.42's has no marks, no circled letters, no connectors but '_', and all numbers.
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
constexpr std::string_view kHex = "0-9a-fA-F";

class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    require(in_.size() <= 100000, "regex: a pattern of {} bytes is too long", in_.size());
    while (at_ < in_.size()) item();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail("regex: {} at byte {} of '{}' is not supported", printable(what), at_, printable(in_));
  }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool starts(std::string_view text) const { return in_.substr(at_, text.size()) == text; }

  void item() {
    const char c = peek();
    after_interval_ = after_interval_ && c == '+';
    if (after_interval_)
      refuse("'+' after an interval");  // possessive for PCRE2, a second quantifier for Oniguruma
    if (c == '\\') return escape();
    if (c == '[') {
      out_ += char_class(0);
      return;
    }
    if (c == '(') return group();
    if (c == '{') return interval();
    out_ += c;
    ++at_;
  }

  void group() {
    if (starts("(*")) refuse("'(*'");
    for (const std::string_view odd :
         {"(?~", "(?{", "(?C", "(?R", "(?&", "(?|", "(?P", "(?(", "(?#", "(?@", "(?y", "(?0"}) {
      if (starts(odd)) refuse(odd);
    }
    if (starts("(?")) {
      // Option letters: Ruby's m is PCRE2's s; ^ and $ are always those of lines.
      size_t end = at_ + 2;
      while (end < in_.size() && (std::string_view("imx-").find(in_[end]) != std::string_view::npos)) ++end;
      if (end > at_ + 2 && end < in_.size() && (in_[end] == ':' || in_[end] == ')')) {
        for (; at_ < end; ++at_) out_ += in_[at_] == 'm' ? 's' : in_[at_];
        return;
      }
    }
    out_ += '(';
    ++at_;
  }

  void interval() {
    size_t end = at_ + 1;
    while (end < in_.size() && (std::isdigit(static_cast<unsigned char>(in_[end])) || in_[end] == ',')) ++end;
    const std::string_view body = in_.substr(at_ + 1, end - at_ - 1);
    if (end >= in_.size() || in_[end] != '}' || body.empty() || body == ",") {  // a plain brace
      out_ += "\\{";
      ++at_;
      return;
    }
    out_ += '{';
    if (body[0] == ',') out_ += '0';
    out_ += body;
    out_ += '}';
    at_ = end + 1;
    after_interval_ = true;
  }

  // \x.., \u...., \p{..}, \t, \. and the like, which mean the same inside and outside a class. Returns false
  // for others.
  bool common_escape(std::string& out) {
    const char c = peek(1);
    if (c == 'u') {
      require(at_ + 6 <= in_.size(), "regex: '\\u' wants four hexadecimal digits in '{}'", printable(in_));
      out += "\\x{" + std::string(in_.substr(at_ + 2, 4)) + "}";
      at_ += 6;
    } else if (c == 'p' || c == 'P') {
      const size_t end = in_.find('}', at_);
      if (peek(2) != '{' || end == std::string_view::npos) refuse("'\\p' without braces");
      out += property(c, in_.substr(at_ + 3, end - at_ - 3));
      at_ = end + 1;
    } else if (c == 'x' && peek(2) == '{') {
      const size_t end = in_.find('}', at_);
      if (end == std::string_view::npos) refuse("'\\x{' without '}'");
      out += in_.substr(at_, end + 1 - at_);
      at_ = end + 1;
    } else if (c == 'v') {
      out += "\\x0B";
      at_ += 2;
    } else if (std::isdigit(static_cast<unsigned char>(c)) ||
               std::string_view("xtnrfaedD").find(c) != std::string_view::npos) {
      out += in_.substr(at_, 2);
      at_ += 2;
    } else if (c != '\0' && !std::isalpha(static_cast<unsigned char>(c))) {
      out += '\\';  // an escaped mark; a character of several bytes needs no escape
      if (static_cast<unsigned char>(c) >= 0x80) out.pop_back();
      out += c;
      at_ += 2;
    } else {
      return false;
    }
    return true;
  }

  // A name that is neither a category nor one of these is a script, and means the characters of that script
  // alone: PCRE2 would take those that it shares with others as well.
  static std::string property(char sign, std::string_view name) {
    using Pair = std::pair<std::string_view, std::string_view>;
    static constexpr Pair kNames[] = {{"Letter", "L"},
                                      {"Mark", "M"},
                                      {"Number", "N"},
                                      {"Punctuation", "P"},
                                      {"Symbol", "S"},
                                      {"Separator", "Z"},
                                      {"Other", "C"},
                                      {"Uppercase_Letter", "Lu"},
                                      {"Lowercase_Letter", "Ll"},
                                      {"Titlecase_Letter", "Lt"},
                                      {"Decimal_Number", "Nd"},
                                      {"Alpha", "Alphabetic"},
                                      {"Punct", "P"},
                                      {"Upper", "Uppercase"},
                                      {"Lower", "Lowercase"},
                                      {"Digit", "Nd"},
                                      {"Alphabetic", "Alphabetic"},
                                      {"Uppercase", "Uppercase"},
                                      {"Lowercase", "Lowercase"},
                                      {"Any", "Any"},
                                      {"Emoji", "Emoji"},
                                      {"Extended_Pictographic", "Extended_Pictographic"}};
    std::string result = {'\\', sign, '{'};
    if (!name.empty() && name[0] == '^') {
      result += '^';
      name.remove_prefix(1);
    }
    bool known = name.size() <= 2;
    for (const auto& [long_name, short_name] : kNames) {
      if (name != long_name) continue;
      name = short_name;
      known = true;
      break;
    }
    if (!known) result += "sc:";
    result += name;
    return result + "}";
  }

  void escape() {
    const char c = peek(1);
    const auto put = [&](std::string_view text) {
      out_ += text;
      at_ += 2;
    };
    switch (c) {
      case 's':
        return put("[" + std::string(kSpaceClass) + "]");
      case 'S':
        return put("[^" + std::string(kSpaceClass) + "]");
      case 'w':
        return put("[" + std::string(kWord) + "]");
      case 'W':
        return put("[^" + std::string(kWord) + "]");
      case 'h':
        return put("[" + std::string(kHex) + "]");
      case 'H':
        return put("[^" + std::string(kHex) + "]");
      case 'b': {
        const std::string w = "[" + std::string(kWord) + "]";
        return put("(?:(?<=" + w + ")(?!" + w + ")|(?<!" + w + ")(?=" + w + "))");
      }
      case 'A':
      case 'z':
      case 'Z':
        return put(in_.substr(at_, 2));
      default:
        break;
    }
    if (!common_escape(out_)) refuse(in_.substr(at_, 2));
  }

  // One class, with Oniguruma's unions of classes and intersections (&&), as a PCRE2 pattern for one
  // character.
  std::string char_class(int depth) {
    if (depth > 20) refuse("a class nested so deep");
    ++at_;  // [
    const bool negated = peek() == '^';
    if (negated) ++at_;
    std::vector<std::string> operands;
    std::string members;              // of the operand being read
    std::vector<std::string> nested;  // classes inside it
    bool first = true;
    for (;; first = false) {
      if (at_ >= in_.size()) refuse("a class without ']'");
      if (peek() == ']' && !first) break;
      if (starts("&&")) {
        operands.push_back(any_of(members, nested));
        members.clear();
        nested.clear();
        at_ += 2;
      } else if (starts("[:")) {
        const size_t end = in_.find(":]", at_);
        if (end == std::string_view::npos) refuse("'[:'");
        members += posix_class(in_.substr(at_ + 2, end - at_ - 2));
        at_ = end + 2;
      } else if (peek() == '[') {
        nested.push_back(char_class(depth + 1));
      } else if (peek() == '\\') {
        class_escape(members);
      } else {
        if (peek() == ']') members += '\\';
        members += peek();
        ++at_;
      }
    }
    ++at_;  // ]
    if (operands.empty() && nested.empty()) return (negated ? "[^" : "[") + members + "]";
    operands.push_back(any_of(members, nested));
    std::string pattern;
    for (size_t i = 1; i < operands.size(); ++i) pattern += "(?=" + operands[i] + ")";
    pattern += operands[0];
    return negated ? "(?:(?!" + pattern + ")(?s:.))" : "(?:" + pattern + ")";
  }

  static std::string any_of(const std::string& members, const std::vector<std::string>& nested) {
    std::string pattern = "(?:";
    if (!members.empty()) pattern += "[" + members + "]";
    for (const std::string& one : nested) {
      if (pattern.size() > 3) pattern += '|';
      pattern += one;
    }
    return pattern.size() > 3 ? pattern + ")" : "(?!)";
  }

  std::string posix_class(std::string_view name) const {
    if (name == "space") return std::string(kSpaceClass);
    if (name == "^space") return std::string(kNotSpace);
    if (name == "word") return std::string(kWord);
    if (name == "xdigit") return std::string(kHex);
    if (name == "alpha") return "\\p{Alphabetic}";
    if (name == "digit") return "\\p{Nd}";
    if (name == "alnum") return "\\p{Alphabetic}\\p{Nd}";
    if (name == "upper") return "\\p{Uppercase}";
    if (name == "lower") return "\\p{Lowercase}";
    if (name == "punct") return "\\p{P}\\p{S}";
    refuse("[:" + std::string(name) + ":]");
  }

  void class_escape(std::string& members) {
    switch (peek(1)) {
      case 's':
        members += kSpaceClass;
        break;
      case 'S':
        members += kNotSpace;
        break;
      case 'w':
        members += kWord;
        break;
      case 'h':
        members += kHex;
        break;
      case 'b':
        members += "\\x08";
        break;
      default:
        if (!common_escape(members)) refuse(in_.substr(at_, 2));
        return;
    }
    at_ += 2;
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  bool after_interval_ = false;
};

}  // namespace

std::string pcre2_pattern(std::string_view oniguruma) {
  return Rewriter(oniguruma).run();
}

}  // namespace fathom
