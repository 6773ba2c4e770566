// The JSON of a body, as far as it is looked at: the other members are dropped as they are read.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json_depth.h"
#include "serve/api_error.h"
#include "serve/body_reader.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

// The members of a body that some path looks at. Sorted.
constexpr std::array<std::string_view, 57> kFields{
    "add_generation_prompt",
    "add_special_tokens",
    "audio",
    "best_of",
    "budget",
    "budget_floor",
    "draft",
    "echo",
    "frequency_penalty",
    "function_call",
    "functions",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "ignore_eos",
    "json_schema",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "min_p",
    "min_tokens",
    "modalities",
    "model",
    "n",
    "prediction",
    "presence_penalty",
    "prompt",
    "prompt_logprobs",
    "quality",
    "repeat_penalty",
    "repetition_penalty",
    "response_format",
    "return_depth",
    "return_token_strs",
    "saved",
    "seed",
    "speculate",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "structured_outputs",
    "suffix",
    "temperature",
    "timeout",
    "tokens",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "use_beam_search",
    "web_search_options",
};

// Values that a body may have beside the tokens of its prompts.
constexpr int64_t kOtherValues = 65'536;

class BodyBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit BodyBuilder(int64_t most_values) : most_values_(most_values) {}
  Json root;

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    constexpr int kOutOfRange = 406;
    if (error.id == kOutOfRange)
      throw ApiError(400,
                     fmt::format("{} holds a number beyond the range of a double",
                                 dropped_ ? "a field that is not known" : last_field_),
                     dropped_ ? "" : last_field_);
    return false;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      dropped_ = !is_known_field(name);
      last_field_ = name;
    }
    if (!dropped_) key_ = std::move(name);
    return true;
  }

 private:
  void count() {
    if (++values_ > most_values_)
      throw ApiError(400, fmt::format("the body may have {} values, got more", most_values_));
  }
  Json& put(Json value) {
    if (open_.empty()) return root = std::move(value);
    Json& around = *open_.back();
    if (around.is_object()) return around[key_] = std::move(value);
    around.push_back(std::move(value));
    return around.back();
  }
  template <class Value>
  bool add(Value&& value) {
    count();
    if (!dropped_) put(Json(std::forward<Value>(value)));
    return true;
  }
  bool open(Json value) {
    count();
    if (!dropped_) open_.push_back(&put(std::move(value)));
    ++depth_;
    return true;
  }
  bool close() {
    if (--depth_ == 0) dropped_ = false;
    if (!dropped_) open_.pop_back();
    return true;
  }

  const int64_t most_values_;
  int64_t values_ = 0, depth_ = 0;
  bool dropped_ = false;  // the member of the body that is being read
  std::string last_field_;
  std::string key_;
  std::vector<Json*> open_;  // lists and objects inside each other; only the innermost one grows
};

}  // namespace

bool is_known_field(std::string_view name) {
  return std::binary_search(kFields.begin(), kFields.end(), name);
}

Json parse_body(const std::string& body, const ApiLimits& limits) {
  const int depth = json_depth(body);
  if (depth > limits.json_depth)
    throw ApiError(400,
                   fmt::format("the body is nested {} levels deep, more than {}", depth, limits.json_depth));
  BodyBuilder builder(limits.tokens + kOtherValues);
  if (!Json::sax_parse(body, &builder))
    throw ApiError(400, "the body must be a JSON object in UTF-8; it is no valid JSON", "", "invalid_json");
  if (!builder.root.is_object())
    throw ApiError(400, fmt::format("the body must be a JSON object, got {}", kind_of(builder.root)));
  return std::move(builder.root);
}

}  // namespace fathom
