// How deep JSON is nested, before a parser builds it: code that walks or prints a tree calls itself once a
// level, and a file must not decide how much stack that takes.
#pragma once

#include <string>
#include <string_view>

namespace fathom {

inline constexpr int kMostJsonDepth = 64;  // of files of ours and of Hugging Face's configs

// Returns the deepest nesting of brackets outside strings and comments; text that is no JSON may give any
// number.
int json_depth(std::string_view text);

// Text that is nested deeper is a UserError that begins with `where`.
void check_json_depth(std::string_view text, const std::string& where, int most = kMostJsonDepth);

}  // namespace fathom
