// Tokenizer files write regexes for Oniguruma (Ruby's dialect). PCRE2 reads most of them the same way; this
// rewrites what it would read differently and refuses the rest by name.
#pragma once

#include <string>
#include <string_view>

namespace fathom {

std::string pcre2_pattern(std::string_view oniguruma);

}  // namespace fathom
