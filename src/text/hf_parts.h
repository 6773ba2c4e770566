// The parts of a tokenizer.json, one function each. What a part does not know it refuses by name.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "text/pipeline_tokenizer.h"

namespace fathom {

void read_normalizer(const nlohmann::json& part, Normalizer& normalizer);
void read_pre_tokenizer(const nlohmann::json& part, PreTokenizer& pre_tokenizer);
void read_decoder(const nlohmann::json& part, Decoder& decoder);
void read_post_processor(const nlohmann::json& part, TokenizerParts& parts);
AddedToken read_added_token(const nlohmann::json& part, int64_t id);

// Fields of an object, checked: UserError naming the field when the type is another.
const nlohmann::json* json_field(const nlohmann::json& object, const char* name);  // nullptr: absent or null
bool json_bool(const nlohmann::json& object, const char* name, bool fallback);
std::string json_string(const nlohmann::json& object, const char* name);
int64_t json_integer(const nlohmann::json& object, const char* name);

}  // namespace fathom
