#include "text/chatml_shape.h"

#include <array>
#include <string>
#include <vector>

namespace fathom {
namespace {

constexpr std::string_view kOpen = "<|im_start|>", kClose = "<|im_end|>\n";

// What a template writes, all branches one after the other: literal text, and what messages give.
struct TemplatePiece {
  enum class Kind { kText, kRole, kContent, kOther };
  Kind kind;
  std::string text;
};
using TemplatePieces = std::vector<TemplatePiece>;

void append_text(TemplatePieces& pieces, std::string_view text) {
  if (text.empty()) return;
  if (pieces.empty() || pieces.back().kind != TemplatePiece::Kind::kText)
    pieces.push_back({TemplatePiece::Kind::kText, std::string(text)});
  else
    pieces.back().text += text;
}

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// The string literal that begins at code[*at]; *at moves behind it.
std::string take_literal(std::string_view code, size_t* at) {
  const char quote = code[(*at)++];
  std::string text;
  for (; *at < code.size() && code[*at] != quote; ++*at) {
    const bool escape = code[*at] == '\\' && *at + 1 < code.size();
    text += escape ? unescaped(code[++*at]) : code[*at];
  }
  ++*at;
  return text;
}

// A name with what hangs on it, such as message['content'].strip() | trim; *at moves behind it.
std::string take_name(std::string_view code, size_t* at) {
  const size_t begin = *at;
  int depth = 0;
  for (; *at < code.size(); ++*at) {
    const char c = code[*at];
    if (c == '[' || c == '(') ++depth;
    if (c == ']' || c == ')') --depth;
    if (depth < 0 || (depth == 0 && (c == '+' || c == '~'))) break;
  }
  return std::string(code.substr(begin, *at - begin));
}

TemplatePiece::Kind kind_of_name(std::string_view name) {
  if (contains(name, " if ") || contains(name, " else ")) return TemplatePiece::Kind::kOther;
  if (contains(name, "role")) return TemplatePiece::Kind::kRole;
  if (contains(name, "content") || contains(name, "system_message")) return TemplatePiece::Kind::kContent;
  return TemplatePiece::Kind::kOther;
}

// {{ code }}
void append_expression(TemplatePieces& pieces, std::string_view code) {
  for (size_t at = 0; at < code.size();) {
    const char c = code[at];
    if (c == '\'' || c == '"') {
      append_text(pieces, take_literal(code, &at));
    } else if (is_space(c) || c == '+' || c == '~' || c == '(' || c == ')' || c == '-') {
      ++at;
    } else {
      const std::string name = take_name(code, &at);
      if (!contains(name, "bos_token")) pieces.push_back({kind_of_name(name), name});
      if (at < code.size() && (code[at] == ']' || code[at] == ')')) ++at;
    }
  }
}

void trim_end(std::string_view& text) {
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
}

// Where the tag that begins at `begin` ends, outside its string literals; the closing brackets are not in it.
size_t tag_end(std::string_view jinja, size_t begin, std::string_view close) {
  const bool comment = close == "#}";
  for (size_t at = begin; at < jinja.size();) {
    if (jinja.substr(at, 2) == close) return at;
    if (!comment && (jinja[at] == '\'' || jinja[at] == '"'))
      take_literal(jinja, &at);
    else
      ++at;
  }
  return std::string_view::npos;
}

// As transformers has Jinja do it: a line end after {% %} goes, and so do spaces before it on its line.
TemplatePieces pieces_of(std::string_view jinja) {
  TemplatePieces pieces;
  size_t at = 0;
  bool trims = false;  // white space that follows
  while (at < jinja.size()) {
    const size_t open = std::min(jinja.find('{', at), jinja.size());
    size_t tag = open;
    while (tag < jinja.size() && (tag + 1 >= jinja.size() || !contains("{%#", jinja.substr(tag + 1, 1))))
      tag = std::min(jinja.find('{', tag + 1), jinja.size());
    std::string_view text = jinja.substr(at, tag - at);
    while (trims && !text.empty() && is_space(text.front())) text.remove_prefix(1);
    if (tag >= jinja.size()) {
      append_text(pieces, text);
      break;
    }
    const char kind = jinja[tag + 1];
    const std::string_view close = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
    const size_t end = tag_end(jinja, tag + 2, close);
    if (end == std::string_view::npos) return {};
    std::string_view code = jinja.substr(tag + 2, end - tag - 2);
    const bool trims_before = code.starts_with('-');
    if (trims_before)
      trim_end(text);
    else if (kind != '{')
      while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    append_text(pieces, text);
    if (trims_before) code.remove_prefix(1);
    trims = code.ends_with('-');
    if (trims) code.remove_suffix(1);
    if (kind == '{') append_expression(pieces, code);
    at = end + 2;
    if (kind != '{' && !trims && at < jinja.size() && jinja[at] == '\n') ++at;
  }
  return pieces;
}

bool starts_with_mark(std::string_view text) {  // of tools, reasoning, pictures
  if (text.starts_with('\n')) text.remove_prefix(1);
  return text.starts_with("<tool") || text.starts_with("<think>") || text.starts_with("<|vision") ||
         text.starts_with("</");
}

// What follows the line end after <|im_start|>ROLE: `rest` of that text, then pieces[next].
bool is_turn(const TemplatePieces& pieces, std::string_view rest, size_t next, std::string_view role,
             bool tools) {
  if (role == "assistant" && rest.empty()) return true;  // the prompt of an answer, or an answer
  if (role == "system" && (tools || contains(rest, kClose))) return true;
  if (starts_with_mark(rest)) return true;
  if (!rest.empty() || next >= pieces.size() || pieces[next].kind != TemplatePiece::Kind::kContent)
    return false;
  if (next + 1 >= pieces.size() || pieces[next + 1].kind != TemplatePiece::Kind::kText) return false;
  const std::string_view after = pieces[next + 1].text;
  return after.starts_with(kClose) || starts_with_mark(after) || (tools && role == "system");
}

// Every <|im_start|> in pieces[i], which is text.
bool turns_fit(const TemplatePieces& pieces, size_t i, bool tools) {
  static constexpr std::array<std::string_view, 4> kRoles{"system\n", "user\n", "assistant\n", "tool\n"};
  const std::string_view text = pieces[i].text;
  for (size_t at = text.find(kOpen); at != std::string_view::npos; at = text.find(kOpen, at + 1)) {
    std::string_view rest = text.substr(at + kOpen.size());
    if (rest.empty()) {
      const bool role = i + 2 < pieces.size() && pieces[i + 1].kind == TemplatePiece::Kind::kRole &&
                        pieces[i + 2].kind == TemplatePiece::Kind::kText &&
                        pieces[i + 2].text.starts_with('\n');
      if (!role || !is_turn(pieces, std::string_view(pieces[i + 2].text).substr(1), i + 3, "", tools))
        return false;
      continue;
    }
    bool fits = false;
    for (const std::string_view role : kRoles) {
      if (!rest.starts_with(role)) continue;
      const std::string_view turn = rest.substr(role.size());
      fits = is_turn(pieces, turn.substr(0, turn.find(kOpen)), i + 1, role.substr(0, role.size() - 1), tools);
    }
    if (!fits) return false;
  }
  return true;
}

// A message's content stands behind the start of a turn, or behind a mark.
bool content_fits(const TemplatePieces& pieces, size_t i) {
  if (i == 0 || pieces[i - 1].kind != TemplatePiece::Kind::kText) return false;
  std::string_view before = pieces[i - 1].text;
  if (before == "\n") return i >= 2 && pieces[i - 2].kind == TemplatePiece::Kind::kRole;
  while (before.ends_with('\n')) before.remove_suffix(1);
  return before.ends_with('>') || before.ends_with("<|im_start|>system") ||
         before.ends_with("<|im_start|>user") || before.ends_with("<|im_start|>assistant");
}

}  // namespace

bool writes_chatml(std::string_view jinja) {
  const TemplatePieces pieces = pieces_of(jinja);
  const bool tools = contains(jinja, "tools");
  bool users = false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].kind == TemplatePiece::Kind::kText && !turns_fit(pieces, i, tools)) return false;
    if (pieces[i].kind != TemplatePiece::Kind::kContent) continue;
    if (!content_fits(pieces, i)) return false;
    users = users || (i + 1 < pieces.size() && pieces[i + 1].text.starts_with(kClose));
  }
  return users;
}

}  // namespace fathom
