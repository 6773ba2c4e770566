// Strings that a regular expression describes, as they are written in JSON.
#pragma once

#include <string>
#include <string_view>

#include "serve/byte_dfa.h"

namespace fathom {

// The quoted strings that `pattern` (ECMA-262's syntax, by code points) matches. Literals, classes, groups,
// alternatives and repetitions are read; anything else is a UserError that begins with `where`. Quotes,
// backslashes and control characters have one spelling.
ByteDfa pattern_dfa(std::string_view pattern, const std::string& where, CompileBudget& budget);

// The pattern of a format of JSON Schema, or "" for one that is not supported. It describes no string that is
// not of the format; of some formats it leaves rare ones out.
std::string format_pattern(std::string_view format);

// `text` (valid UTF-8) as JSON writes it, with its quotes.
std::string json_quoted(std::string_view text);

}  // namespace fathom
