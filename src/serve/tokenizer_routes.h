// vLLM's routes to the tokenizer: bodies in, bodies out.
#pragma once

#include <string>

#include "serve/request_maker.h"

namespace fathom {

std::string tokenize_reply(const std::string& body, const ServedModel& served, const ApiOptions& options);
std::string detokenize_reply(const std::string& body, const ServedModel& served, const ApiOptions& options);
std::string tokenizer_info_reply(const ServedModel& served);

}  // namespace fathom
