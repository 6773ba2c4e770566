// Whether a Jinja template writes ChatML: the marks alone do not say so, since templates put other text
// between them.
#pragma once

#include <string_view>

namespace fathom {

// Returns whether every turn that the template writes is <|im_start|>ROLE, a line end, what the message says,
// <|im_end|> and a line end, and nothing that a message says stands elsewhere. Branches for tools, pictures
// and reasoning may write more.
bool writes_chatml(std::string_view jinja);

// What the readers of templates share: the character that \c stands for in a string literal, and whether
// `text` contains `part`.
inline char unescaped(char c) {
  return c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
}
inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace fathom
