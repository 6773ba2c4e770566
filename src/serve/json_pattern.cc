#include "serve/json_pattern.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/format.h"
#include "text/unicode.h"

namespace fathom {
namespace {

constexpr char32_t kLastChar = 0x10FFFF;
constexpr int kMostGroups = 32;         // inside each other
constexpr int64_t kMostRepeats = 1000;  // that {m,n} may name

using Range = std::pair<char32_t, char32_t>;
using CharSet = std::vector<Range>;

// Ascending, without overlaps.
CharSet normal(CharSet set) {
  std::sort(set.begin(), set.end());
  CharSet out;
  for (const Range& range : set) {
    if (!out.empty() && range.first <= out.back().second + 1)
      out.back().second = std::max(out.back().second, range.second);
    else
      out.push_back(range);
  }
  return out;
}

CharSet inverted(const CharSet& set) {
  CharSet out;
  char32_t next = 0;
  for (const Range& range : normal(set)) {
    if (range.first > next) out.push_back({next, range.first - 1});
    next = range.second + 1;
  }
  if (next <= kLastChar) out.push_back({next, kLastChar});
  return out;
}

CharSet class_of(char letter) {
  switch (letter) {
    case 'd':
      return {{'0', '9'}};
    case 'w':
      return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    default:
      return {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
              {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  }
}

// A part of a pattern.
struct Piece {
  enum class Kind : uint8_t { kSet, kSequence, kAlternatives } kind = Kind::kSequence;
  CharSet set;
  std::vector<Piece> parts;
  int64_t least = 1, most = 1;  // times; most -1: any number
};

Piece any_text() {
  Piece any{Piece::Kind::kSet, {{0, kLastChar}}, {}};
  any.least = 0;
  any.most = -1;
  return any;
}

class PatternParser {
 public:
  PatternParser(std::string_view text, const std::string& where, CompileBudget& budget)
      : text_(to_utf32(text)), where_(where), budget_(budget) {}

  Piece parse() {
    Piece all = alternatives(0);
    if (at_ < text_.size()) refuse("a ')' without its '('");
    return all;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail("{}: {} at character {} is not supported", where_, what, at_);
  }
  bool done() const { return at_ == text_.size(); }
  char32_t peek() const { return done() ? 0 : text_[at_]; }
  bool sees(std::u32string_view what) const {
    return std::u32string_view(text_).substr(at_).starts_with(what);
  }
  bool take(std::u32string_view what) {
    if (!sees(what)) return false;
    at_ += what.size();
    return true;
  }

  Piece alternatives(int depth) {
    if (depth > kMostGroups) refuse("a group that is nested so deep");
    Piece all{Piece::Kind::kAlternatives, {}, {}};
    do all.parts.push_back(sequence(depth));
    while (take(U"|"));
    return all;
  }

  // Outside all groups a pattern may begin and end anywhere in the string, unless anchors say otherwise.
  Piece sequence(int depth) {
    Piece all;
    if (depth == 0 && !take(U"^")) all.parts.push_back(any_text());
    bool anchored = false;
    while (!done() && peek() != '|' && peek() != ')') {
      budget_.step();
      if (depth == 0 && take(U"$")) {
        if (!done() && peek() != '|') refuse("text behind '$'");
        anchored = true;
        break;
      }
      all.parts.push_back(repeated(atom(depth)));
    }
    if (depth == 0 && !anchored) all.parts.push_back(any_text());
    return all;
  }

  Piece atom(int depth) {
    if (take(U"(")) {
      if (sees(U"?") && !take(U"?:")) refuse("'(?' other than '(?:'");
      Piece group = alternatives(depth + 1);
      if (!take(U")")) refuse("a '(' without its ')'");
      return group;
    }
    if (take(U"[")) return {Piece::Kind::kSet, char_class(), {}};
    if (take(U".")) return {Piece::Kind::kSet, inverted({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}), {}};
    if (sees(U"\\")) return {Piece::Kind::kSet, escape(), {}};
    const char32_t c = peek();
    if (c == '^' || c == '$') refuse("an anchor inside the pattern");
    if (c == '*' || c == '+' || c == '?' || c == '{') refuse("a repetition of nothing");
    ++at_;
    return {Piece::Kind::kSet, {{c, c}}, {}};
  }

  Piece repeated(Piece piece) {
    int64_t least = 1, most = 1;
    if (take(U"*")) {
      least = 0, most = -1;
    } else if (take(U"+")) {
      most = -1;
    } else if (take(U"?")) {
      least = 0;
    } else if (take(U"{")) {
      least = most = number();
      if (take(U",")) most = peek() == '}' ? -1 : number();
      if (!take(U"}")) refuse("'{' that is no count");
      if (most >= 0 && most < least) refuse("a count that ends below its begin");
    } else {
      return piece;
    }
    take(U"?");  // fewer first: the same strings
    if (sees(U"*") || sees(U"+") || sees(U"?") || sees(U"{")) refuse("a repetition of a repetition");
    Piece around;
    around.parts.push_back(std::move(piece));
    around.least = least;
    around.most = most;
    return around;
  }

  int64_t number() {
    if (peek() < '0' || peek() > '9') refuse("'{' that is no count");
    int64_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + (text_[at_++] - U'0');
      if (value > kMostRepeats) refuse(fmt::format("a count above {}", kMostRepeats));
    }
    return value;
  }

  CharSet char_class() {
    const bool invert = take(U"^");
    CharSet set;
    while (!take(U"]")) {
      budget_.step();
      if (done()) refuse("a '[' without its ']'");
      const CharSet first = class_member();
      const bool range = sees(U"-") && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (!range) {
        set.insert(set.end(), first.begin(), first.end());
        continue;
      }
      ++at_;
      if (done()) refuse("a '[' without its ']'");
      const CharSet last = class_member();
      const bool chars = first.size() == 1 && first[0].first == first[0].second && last.size() == 1 &&
                         last[0].first == last[0].second;
      if (!chars || last[0].first < first[0].first) refuse("a range that has no such order");
      set.push_back({first[0].first, last[0].first});
    }
    return invert ? inverted(set) : normal(set);
  }

  CharSet class_member() {
    if (take(U"\\b")) return {{8, 8}};
    if (sees(U"\\")) return escape();
    const char32_t c = text_[at_++];
    return {{c, c}};
  }

  CharSet escape() {
    ++at_;
    if (done()) refuse("a '\\' at the end");
    const char32_t c = text_[at_++];
    if (c == 'd' || c == 'w' || c == 's') return class_of(static_cast<char>(c));
    if (c == 'D' || c == 'W' || c == 'S') return inverted(class_of(static_cast<char>(c - 'A' + 'a')));
    const auto one = [](char32_t value) { return CharSet{{value, value}}; };
    constexpr std::u32string_view kNames = U"tnrfv0", kValues{U"\t\n\r\f\v\0", 6};
    if (const size_t at = kNames.find(c); at != std::u32string_view::npos) return one(kValues[at]);
    if (c == 'x') return one(hex(2));
    if (c == 'u') return one(hex(4));
    const bool letter =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9') || c >= 0x80;
    if (letter) {
      at_ -= 2;
      std::string name;
      append_utf8(name, c);
      refuse("'\\" + name + "'");
    }
    return one(c);
  }

  char32_t hex(size_t digits) {
    if (digits == 4 && take(U"{")) {
      const char32_t value = hex_digits(6);
      if (!take(U"}")) refuse("'\\u{' that is no character");
      if (value > kLastChar) refuse("'\\u{' that is no character");
      return value;
    }
    const size_t begin = at_;
    const char32_t value = hex_digits(digits);
    if (at_ - begin != digits) refuse("an escape of too few digits");
    if (value >= 0xD800 && value <= 0xDFFF) refuse("half of a surrogate pair");
    return value;
  }

  char32_t hex_digits(size_t most) {
    char32_t value = 0;
    for (size_t i = 0; i < most && !done(); ++i, ++at_) {
      const char32_t c = text_[at_] | 0x20;
      const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
      if (!digit && !letter) break;
      value = value * 16 + (digit ? c - U'0' : c - U'a' + 10);
    }
    return value;
  }

  std::u32string text_;
  const std::string& where_;
  CompileBudget& budget_;
  size_t at_ = 0;
};

std::string escaped(char32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  }
}

bool needs_escape(char32_t c) {
  return c < 0x20 || c == '"' || c == '\\';
}

// Puts a pattern into an automaton.
class PatternWriter {
 public:
  explicit PatternWriter(ByteNfa& nfa) : nfa_(nfa) {}

  // Returns the node behind `piece`, which begins at `from`.
  ByteNfa::Node write(const Piece& piece, ByteNfa::Node from) {
    nfa_.budget().step();
    for (int64_t i = 0; i < piece.least; ++i) from = once(piece, from);
    if (piece.most < 0) {
      const ByteNfa::Node loop = nfa_.add();
      nfa_.skip(from, loop);
      nfa_.skip(once(piece, loop), loop);
      return loop;
    }
    const ByteNfa::Node end = nfa_.add();
    for (int64_t i = piece.least; i < piece.most; ++i) {
      nfa_.skip(from, end);
      from = once(piece, from);
    }
    nfa_.skip(from, end);
    return end;
  }

 private:
  ByteNfa::Node once(const Piece& piece, ByteNfa::Node from) {
    if (piece.kind == Piece::Kind::kSequence) {
      for (const Piece& part : piece.parts) from = write(part, from);
      return from;
    }
    const ByteNfa::Node to = nfa_.add();
    if (piece.kind == Piece::Kind::kSet) {
      for (const Range& range : piece.set) chars(range, from, to);
    } else {
      for (const Piece& part : piece.parts) nfa_.skip(write(part, from), to);
    }
    return to;
  }

  // Ranges in which all characters are written alike.
  void chars(Range range, ByteNfa::Node from, ByteNfa::Node to) {
    for (char32_t c = range.first; c <= range.second && c <= '\\'; ++c) {
      if (needs_escape(c)) nfa_.path(from, escaped(c), to);
    }
    constexpr Range kPlain[] = {{0x20, 0x21},    {0x23, 0x5B},     {0x5D, 0x7F},        {0x80, 0x7FF},
                                {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, kLastChar}};
    for (const Range& plain : kPlain) {
      const Range part{std::max(plain.first, range.first), std::min(plain.second, range.second)};
      if (part.first <= part.second) utf8(part, from, to);
    }
  }

  // All of one length in UTF-8. Splits until the bytes' ranges are independent of each other.
  void utf8(Range range, ByteNfa::Node from, ByteNfa::Node to) {
    nfa_.budget().step();
    const int bytes = range.first < 0x80 ? 1 : range.first < 0x800 ? 2 : range.first < 0x10000 ? 3 : 4;
    for (int i = 1; i < bytes; ++i) {
      const char32_t low = (char32_t{1} << (6 * i)) - 1;
      if ((range.first & ~low) == (range.second & ~low)) continue;
      if ((range.first & low) != 0) {
        utf8({range.first, range.first | low}, from, to);
        return utf8({(range.first | low) + 1, range.second}, from, to);
      }
      if ((range.second & low) != low) {
        utf8({range.first, (range.second & ~low) - 1}, from, to);
        return utf8({range.second & ~low, range.second}, from, to);
      }
    }
    std::string first, last;
    append_utf8(first, range.first);
    append_utf8(last, range.second);
    for (size_t i = 0; i < first.size(); ++i) {
      const ByteNfa::Node next = i + 1 == first.size() ? to : nfa_.add();
      nfa_.edge(from, static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i]), next);
      from = next;
    }
  }

  ByteNfa& nfa_;
};

std::string date_pattern() {
  const std::string leap = R"((?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00))";
  return R"((?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|)"
         R"((?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|)" +
         leap + "-02-29)";
}

std::string duration_pattern() {
  const std::string n = "[0-9]{1,9}";
  const std::string seconds = n + "S", minutes = n + "M(?:" + seconds + ")?",
                    hours = n + "H(?:" + minutes + ")?";
  const std::string days = n + "D", months = n + "M(?:" + days + ")?", years = n + "Y(?:" + months + ")?";
  const std::string time = "T(?:" + hours + "|" + minutes + "|" + seconds + ")";
  return "P(?:(?:" + years + "|" + months + "|" + days + ")(?:" + time + ")?|" + time + "|" + n + "W)";
}

}  // namespace

ByteDfa pattern_dfa(std::string_view pattern, const std::string& where, CompileBudget& budget) {
  const Piece parsed = PatternParser(pattern, where, budget).parse();
  ByteNfa nfa(budget);
  const ByteNfa::Node start = nfa.add(), content = nfa.add(), end = nfa.add();
  nfa.edge(start, '"', '"', content);
  const ByteNfa::Node behind = PatternWriter(nfa).write(parsed, content);
  nfa.edge(behind, '"', '"', end);
  ByteDfa dfa(nfa, start, end);
  if (dfa.size() == 0) fail("{}: it matches no string", where);
  return dfa;
}

std::string format_pattern(std::string_view format) {
  const std::string time =
      R"((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]))";
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,59}[A-Za-z0-9])?";
  const std::string octet = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  if (format == "date") return "^" + date_pattern() + "$";
  if (format == "time") return "^" + time + "$";
  if (format == "date-time") return "^" + date_pattern() + "T" + time + "$";
  if (format == "duration") return "^" + duration_pattern() + "$";
  if (format == "uuid") return "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$";
  if (format == "ipv4") return "^" + octet + "(?:\\." + octet + "){3}$";
  if (format == "ipv6") return "^[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){7}$";
  if (format == "hostname") return "^" + label + "(?:\\." + label + "){0,3}$";
  if (format == "email")
    return "^[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,31})?@" + label + "(?:\\." + label + "){1,3}$";
  return "";
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    if (c.valid && needs_escape(c.value))
      out += escaped(c.value);
    else
      out += text.substr(at, c.size);
    at += c.size;
  }
  return out + "\"";
}

}  // namespace fathom
