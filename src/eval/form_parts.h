// What readers of lines share: values that are checked, and the kinds of items that are made of them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/item.h"

namespace fathom {

// A key that is not there, or a value that does not fit, is a UserError.
const nlohmann::json& value_of(const nlohmann::json& line, const char* key);
const nlohmann::json& object_of(const nlohmann::json& line, const char* key);
std::string text_of(const nlohmann::json& line, const char* key);
std::string filled_text_of(const nlohmann::json& line, const char* key);  // not only white space
std::vector<std::string> texts_of(const nlohmann::json& line, const char* key, size_t least);  // each filled
int64_t whole_of(const nlohmann::json& line, const char* key, int64_t from, int64_t to);  // both included
int64_t index_of(const nlohmann::json& line, const char* key, size_t count);              // 0 … count − 1

// Characters, as Python counts them. The parser has made sure that the text is UTF-8.
int64_t characters_of(const std::string& text);
// `count` characters from character `begin` on; the text has as many.
std::string characters_from(const std::string& text, int64_t begin, int64_t count);

inline constexpr const char* kSpace = " ";  // lm-evaluation-harness's target_delimiter

EvalItem choice_item(const std::string& context, const std::vector<std::string>& choices, int64_t gold,
                     const char* delimiter = kSpace);

// The choices are contexts, and what follows is the same for all ("partial evaluation").
EvalItem context_item(const std::vector<std::string>& contexts, const std::string& continuation,
                      int64_t gold);

// `shown`: the answer of an example.
EvalItem question_item(std::string prompt, std::vector<std::string> answers, const std::string& shown);

struct Lettered {
  std::string text;                  // "A. …\nB. …\n"
  std::vector<std::string> letters;  // one for each choice
};
Lettered lettered(const std::vector<std::string>& choices);  // 26 at most

}  // namespace fathom
