// Texts cut, counted and lowered as Python does it: lm-evaluation-harness is written in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

// `text` without white space at its ends (strip).
std::string_view stripped(std::string_view text);

// Length of `text` without white space at its end (rstrip).
size_t length_without_trailing_space(std::string_view text);

// What stands between white space (split).
std::vector<std::string> split_words(std::string_view text);

// Pieces between white space, as re.split(r"\s+", text) counts them.
int64_t count_words(std::string_view text);

// Character by character (lower).
std::string lower_case(std::string_view text);

// Less the marks of string.punctuation, which are ASCII's.
std::string without_punctuation(std::string text);

}  // namespace fathom
