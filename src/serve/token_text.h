// Tokens and numbers as replies write them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace fathom {

// A token as it is written: its characters, or "bytes:\xe2\x82" where it is a part of one, as OpenAI has it.
std::string token_text(const Tokenizer& tokenizer, int32_t id);

// The shortest decimal that reads back as this float: 0.8, not 0.800000011920929.
double shortest_decimal(float value);

// A log-probability in the same way. JSON has no infinity: −9999 instead.
double written_logprob(float value);

// The characters that begin in these bytes.
int64_t characters_in(std::string_view bytes);

// On one line; bytes that are no UTF-8 become U+FFFD.
std::string to_line(const nlohmann::ordered_json& json);

}  // namespace fathom
