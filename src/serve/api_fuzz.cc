// Bodies of requests: parsed, or refused with an error that can be sent.
#include <nlohmann/json.hpp>

#include "io/fuzz_bytes.h"
#include "serve/api_error.h"
#include "serve/api_request.h"

namespace {

using namespace fathom;

template <class F>
void parse(const F& parse_one) {
  try {
    parse_one();
  } catch (const ApiError& error) {
    const nlohmann::json json = nlohmann::json::parse(error_json(error));
    if (error.status() != 400 || json.at("error").at("message").empty()) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string body(reinterpret_cast<const char*>(data), size);
  ApiLimits limits;
  limits.choices = 8;
  parse([&] {
    const ChatRequest request = parse_chat_request(body, limits);
    if (request.answers > limits.choices || request.log_probs > 20) __builtin_trap();
  });
  parse([&] {
    const CompletionRequest request = parse_completion_request(body, limits);
    if (request.answers * std::ssize(request.prompts) > limits.choices) __builtin_trap();
    if (request.prompts.empty() || request.stops.size() > 16) __builtin_trap();
  });
  return 0;
}
