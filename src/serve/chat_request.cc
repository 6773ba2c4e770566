// The body of POST /v1/chat/completions.
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "serve/api_error.h"
#include "serve/generation_fields.h"
#include "serve/schema_order.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

// Errors are logged: a prompt that stands where a role or a type belongs is not quoted.
std::string quoted_if(const std::string& text, std::initializer_list<const char*> known, const char* other) {
  for (const char* each : known) {
    if (text == each) return fmt::format("'{}'", text);
  }
  return other;
}
std::string named_role(const std::string& role) {
  return role.empty() ? "none" : quoted_if(role, {"tool", "function", "model"}, "another text");
}
std::string named_type(const std::string& type) {
  const std::string quoted =
      quoted_if(type, {"image_url", "input_image", "input_audio", "file", "refusal", "video_url"}, "");
  return quoted.empty() ? "another type" : "type " + quoted;
}

// One of the parts of a message's content, which must be text.
std::string text_part(const Json& part, const std::string& field) {
  if (!part.is_object())
    refuse_field(
        field, fmt::format("{}: a part must be an object with type and text, got {}", field, kind_of(part)));
  const BodyReader reader(part, field + ".");
  const std::string type = reader.text("type").value_or("");
  if (type != "text")
    throw ApiError(400,
                   fmt::format("{}: parts of {} are not served here, text alone", field, named_type(type)),
                   field, "unsupported_parameter");
  const std::optional<std::string> text = reader.text("text");
  if (!text) refuse_field(field, fmt::format("{}: a part of type text has no text", field));
  return *text;
}

std::string content_of(const BodyReader& message) {
  const Json* content = message.find("content");
  const std::string field = message.name("content");
  if (!content) return "";
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array())
    refuse_field(field,
                 fmt::format("{} must be a string or a list of parts, got {}", field, kind_of(*content)));
  std::string text;
  for (const Json& part : *content) text += text_part(part, field);
  return text;
}

ChatMessage message_of(const Json& value, std::size_t index) {
  const std::string path = fmt::format("messages[{}]", index);
  if (!value.is_object())
    refuse_field(path,
                 fmt::format("{} must be an object with role and content, got {}", path, kind_of(value)));
  const BodyReader reader(value, path + ".");
  std::string role = reader.text("role").value_or("");
  if (role == "developer") role = "system";
  if (role != "system" && role != "user" && role != "assistant")
    refuse_field(reader.name("role"), fmt::format("{} must be system, developer, user or assistant, got {}",
                                                  reader.name("role"), named_role(role)));
  for (const char* field : {"tool_calls", "function_call", "audio"}) reader.unserved(field);
  if (role != "assistant" && !reader.find("content"))
    refuse_field(reader.name("content"), fmt::format("{} is missing", reader.name("content")));
  return {role, content_of(reader)};
}

// logprobs is a boolean here, top_logprobs the number.
int64_t chat_log_probs(const BodyReader& body) {
  const bool wanted = body.boolean("logprobs").value_or(false);
  const std::optional<int64_t> top = body.integer("top_logprobs", 0, 20);
  if (top && *top > 0 && !wanted) refuse_field("top_logprobs", "top_logprobs goes with logprobs: true");
  return wanted ? top.value_or(0) : -1;
}

}  // namespace

ChatRequest parse_chat_request(const std::string& text, const ApiLimits& limits) {
  const Json json = parse_body(text, limits);
  const BodyReader body(json);
  ChatRequest request;
  read_generation_fields(body, limits, request);
  if (request.format.kind == ResponseFormat::Kind::kSchema) request.format.schema = schema_in_order(text);
  request.log_probs = chat_log_probs(body);
  const auto old = body.integer("max_tokens", 0, limits.tokens);
  const auto tokens = body.integer("max_completion_tokens", 0, limits.tokens);
  request.max_tokens = tokens ? tokens : old;
  if (body.boolean("echo").value_or(false)) body.unserved("echo");
  const Json* messages = body.list("messages");
  if (!messages) refuse_field("messages", "messages is missing: a list of messages");
  if (messages->empty()) refuse_field("messages", "messages must not be empty");
  for (const Json& message : *messages)
    request.messages.push_back(message_of(message, request.messages.size()));
  return request;
}

}  // namespace fathom
