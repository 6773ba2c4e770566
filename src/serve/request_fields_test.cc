// The rules for fields: what is taken, what is ignored, what is refused and by which name.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "serve/api_error.h"
#include "serve/api_request.h"
#include "serve/body_reader.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

CompletionRequest completion(const Json& with, const ApiLimits& limits = {}) {
  Json body{{"prompt", "a"}};
  body.update(with);
  return parse_completion_request(body.dump(), limits);
}
ChatRequest chat(const Json& with, const ApiLimits& limits = {}) {
  Json body{{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(with);
  return parse_chat_request(body.dump(), limits);
}

// The field that an error names, and its text.
struct Refused {
  std::string param, message;
  int status = 0;
};
template <class F>
Refused refused(const F& parse) {
  try {
    parse();
  } catch (const ApiError& error) {
    return {error.param(), error.what(), error.status()};
  }
  return {"nothing was refused", "", 200};
}
Refused refused_field(const Json& with, const ApiLimits& limits = {}) {
  return refused([&] { completion(with, limits); });
}
Refused refused_chat(const Json& with) {
  return refused([&] { chat(with); });
}

TEST(RequestFields, Defaults) {
  const CompletionRequest text = completion(Json::object());
  EXPECT_EQ(text.max_tokens, 16);
  EXPECT_FALSE(text.temperature || text.top_p || text.seed || text.stream || text.echo);
  EXPECT_EQ(text.log_probs, -1);
  EXPECT_EQ(text.answers, 1);
  EXPECT_FALSE(chat(Json::object()).max_tokens);
}

TEST(RequestFields, UnknownOnesAreIgnoredAndNullIsAbsent) {
  const CompletionRequest request = completion({{"user", "me"},
                                                {"frobnicate", {{"a", 1}}},
                                                {"temperature", nullptr},
                                                {"max_tokens", nullptr},
                                                {"stop", nullptr},
                                                {"logit_bias", nullptr},
                                                {"tools", nullptr},
                                                {"stream_options", nullptr},
                                                {"seed", nullptr}});
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_FALSE(request.temperature);
}

TEST(RequestFields, KnownAndUnservedOnesAreNamed) {
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, Json>>{{"tools", {{{"type", "function"}}}},
                                                 {"functions", {{{"name", "f"}}}},
                                                 {"suffix", "end"},
                                                 {"best_of", 2},
                                                 {"tool_choice", "auto"},
                                                 {"function_call", "auto"},
                                                 {"audio", {{"voice", "x"}}},
                                                 {"modalities", {"audio"}},
                                                 {"use_beam_search", true},
                                                 {"prediction", {{"type", "content"}, {"content", "x"}}},
                                                 {"web_search_options", {{"search_context_size", "low"}}},
                                                 {"web_search_options", Json::object()},
                                                 {"prompt_logprobs", 1},
                                                 {"prompt_logprobs", 0},
                                                 {"grammar", "root ::= \"a\""},
                                                 {"guided_choice", {"a", "b"}},
                                                 {"guided_grammar", "root ::= \"a\""},
                                                 {"guided_json", {{"type", "object"}}},
                                                 {"guided_json", Json::object()},
                                                 {"guided_regex", "a+"},
                                                 {"json_schema", {{"type", "object"}}},
                                                 {"structured_outputs", {{"regex", "a+"}}}}) {
    const Refused got = refused_field({{field, value}});
    EXPECT_EQ(got.param, field);
    EXPECT_EQ(got.status, 400);
    EXPECT_NE(got.message.find(field), std::string::npos) << got.message;
  }
  EXPECT_NO_THROW(
      completion({{"tools", Json::array()}, {"suffix", ""}, {"best_of", 1}, {"tool_choice", "none"}}));
}

TEST(RequestFields, ASchemaBesideJsonObjectIsNamed) {
  const Json format{{"type", "json_object"}, {"schema", {{"type", "object"}}}};
  EXPECT_EQ(refused_field({{"response_format", format}}).param, "response_format.schema");
}

// Valid JSON that a double cannot hold, in a field that is known and in one that is not.
TEST(RequestFields, NumbersBeyondADoubleAreNamed) {
  const auto refusal = [](const std::string& body) {
    try {
      parse_completion_request(body, {});
    } catch (const ApiError& error) {
      return fmt::format("{} {} '{}'", error.status(), error.what(), error.param());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(R"({"prompt": "a", "seed": 1e400})"),
            "400 seed holds a number beyond the range of a double 'seed'");
  EXPECT_EQ(refusal(R"({"prompt": "a", "mine": {"x": [1e400]}})"),
            "400 a field that is not known holds a number beyond the range of a double ''");
}

// A prompt that stands in another's place is in no error, which is logged.
TEST(RequestFields, ErrorsQuoteNoTexts) {
  for (const char* body :
       {R"({"messages": [{"role": "my secret", "content": "user"}]})",
        R"({"messages": [{"role": "user", "content": [{"type": "my secret", "text": "a"}]}]})",
        R"({"messages": [{"role": "user", "content": "a"}], "stop": [{"my secret": 1}]})",
        R"({"messages": [{"role": "user", "content": "a"}], "budget": "my secret"})"}) {
    try {
      parse_chat_request(body, {});
      ADD_FAILURE() << body;
    } catch (const ApiError& error) {
      EXPECT_EQ(std::string(error.what()).find("secret"), std::string::npos) << error.what();
    }
  }
  try {
    parse_chat_request(R"({"messages": [{"role": "tool", "content": "a"}]})", {});
    ADD_FAILURE();
  } catch (const ApiError& error) {
    EXPECT_NE(std::string(error.what()).find("got 'tool'"), std::string::npos) << error.what();
  }
}

TEST(RequestFields, WrongTypesAreNamed) {
  for (const auto& [field, value] : std::vector<std::pair<std::string, Json>>{{"temperature", "hot"},
                                                                              {"top_p", true},
                                                                              {"n", "2"},
                                                                              {"max_tokens", 1.5},
                                                                              {"stream", 1},
                                                                              {"stop", 5},
                                                                              {"stop", {1, 2}},
                                                                              {"seed", "x"},
                                                                              {"logit_bias", {1}},
                                                                              {"logit_bias", {{"a", 1}}},
                                                                              {"echo", "yes"},
                                                                              {"model", 5},
                                                                              {"stop_token_ids", "5"},
                                                                              {"stop_token_ids", {-1}},
                                                                              {"budget", true},
                                                                              {"budget", "low"},
                                                                              {"prompt", 5},
                                                                              {"prompt", {"a", 5}},
                                                                              {"prompt", {5, "a"}},
                                                                              {"prompt", {{5}, "a"}},
                                                                              {"prompt", {{"x", 1}}},
                                                                              {"prompt", {{{"x", 1}}}},
                                                                              {"prompt", Json::array()},
                                                                              {"prompt", {-1}},
                                                                              {"prompt", {1e20}},
                                                                              {"return_depth", "deep"},
                                                                              {"speculate", "yes"},
                                                                              {"ignore_eos", 1}}) {
    const Refused got = refused_field({{field, value}});
    EXPECT_EQ(got.param, field) << value << ": " << got.message;
    EXPECT_EQ(got.status, 400);
  }
  EXPECT_EQ(refused_field({{"logit_bias", {{"5", "x"}}}}).param, "logit_bias.5");
  for (const char* key : {"05", "-0", "-5", "+5", " 5", "5 ", "5.0", "0x5", "", "99999999999"})
    EXPECT_EQ(refused_field({{"logit_bias", {{"5", 1}, {key, 1}}}}).param, "logit_bias") << key;
  EXPECT_EQ(completion({{"logit_bias", {{"0", 1}, {"50", 1}}}}).logit_bias.size(), 2u);
  EXPECT_EQ(refused_field({{"stream", true}, {"stream_options", {{"include_usage", 1}}}}).param,
            "stream_options.include_usage");
}

TEST(RequestFields, NumbersOutOfRangeAreNamed) {
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, Json>>{{"n", 0},
                                                 {"n", -1},
                                                 {"n", 1000000},
                                                 {"max_tokens", -5},
                                                 {"max_tokens", 9223372036854775807u},
                                                 {"max_tokens", 18446744073709551615u},
                                                 {"temperature", -1},
                                                 {"top_p", 1.5},
                                                 {"min_p", -0.1},
                                                 {"top_k", -2},
                                                 {"presence_penalty", 3},
                                                 {"frequency_penalty", -3},
                                                 {"logprobs", 21},
                                                 {"logprobs", -1},
                                                 {"budget", 1.5},
                                                 {"saved", -0.5},
                                                 {"timeout", 0},
                                                 {"timeout", -1},
                                                 {"timeout", 1e10},
                                                 {"min_tokens", -1},
                                                 {"repeat_penalty", 0},
                                                 {"speculate", 99}})
    EXPECT_EQ(refused_field({{field, value}}).param, field) << value;
  EXPECT_EQ(refused_chat({{"logprobs", true}, {"top_logprobs", 21}}).param, "top_logprobs");
  EXPECT_EQ(completion({{"max_tokens", 5.0}, {"top_k", -1}}).top_k, 0);
}

// vLLM's clients write repetition_penalty, llama.cpp's repeat_penalty.
TEST(RequestFields, ThePenaltyHasTwoNames) {
  EXPECT_EQ(completion({{"repeat_penalty", 1.25}}).repeat_penalty, 1.25f);
  EXPECT_EQ(completion({{"repetition_penalty", 1.25}}).repeat_penalty, 1.25f);
  EXPECT_EQ(completion({{"repeat_penalty", 1.25}, {"repetition_penalty", 1.25}}).repeat_penalty, 1.25f);
  EXPECT_EQ(refused_field({{"repetition_penalty", 0}}).param, "repetition_penalty");
  const Refused both = refused_field({{"repeat_penalty", 1.25}, {"repetition_penalty", 1.5}});
  EXPECT_EQ(both.param, "repetition_penalty");
  EXPECT_EQ(both.status, 400);
  EXPECT_EQ(both.message,
            "repeat_penalty and repetition_penalty are the same thing twice, with different values: give one "
            "of them");
}

TEST(RequestFields, LimitsAreOptions) {
  ApiLimits limits;
  limits.choices = 4;
  limits.stops = 2;
  limits.stop_bytes = 3;
  limits.bias_entries = 1;
  limits.tokens = 50;
  limits.json_depth = 5;
  EXPECT_EQ(refused_field({{"n", 5}}, limits).param, "n");
  EXPECT_EQ(refused_field({{"n", 2}, {"prompt", {"a", "b", "c"}}}, limits).param, "n");
  EXPECT_EQ(refused_field({{"prompt", {"a", "b", "c", "d", "e"}}}, limits).param, "prompt");
  EXPECT_EQ(refused_field({{"stop", {"a", "b", "c"}}}, limits).param, "stop");
  EXPECT_EQ(refused_field({{"stop", "abcd"}}, limits).param, "stop");
  EXPECT_EQ(refused_field({{"stop_token_ids", {1, 2, 3}}}, limits).param, "stop_token_ids");
  EXPECT_EQ(refused_field({{"logit_bias", {{"1", 1}, {"2", 1}}}}, limits).param, "logit_bias");
  EXPECT_EQ(refused_field({{"max_tokens", 51}}, limits).param, "max_tokens");
  EXPECT_NO_THROW(
      completion({{"n", 2}, {"prompt", {"a", "b"}}, {"stop", {"a", "bcd"}}, {"max_tokens", 50}}, limits));
  EXPECT_EQ(refused_field({{"ignored", {{"a", {{"b", {{"c", {{"d", {1}}}}}}}}}}}, limits).status, 400);
}

// In a field that is ignored, too; long before a parser would call itself so often.
TEST(RequestFields, DeepJsonIsRefused) {
  const std::string deep =
      R"({"prompt":"a","ignored":)" + std::string(3000, '[') + std::string(3000, ']') + "}";
  const Refused got = refused([&] { parse_completion_request(deep, {}); });
  EXPECT_EQ(got.status, 400);
  EXPECT_NE(got.message.find("3001 levels"), std::string::npos) << got.message;
}

TEST(RequestFields, BodiesThatAreNoObjects) {
  for (const char* body :
       {"", "{", "[]", "5", "null", "\"prompt\"", "{\"prompt\": \"\xff\"}", "{} {}", "{\"n\": 1e999}"}) {
    EXPECT_EQ(refused([&] { parse_completion_request(body, {}); }).status, 400) << body;
    EXPECT_EQ(refused([&] { parse_chat_request(body, {}); }).status, 400) << body;
  }
}

TEST(RequestFields, Prompts) {
  const auto texts = completion({{"prompt", {"a", "b"}}}).prompts;
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(std::get<std::string>(texts[1]), "b");
  const auto ids = completion({{"prompt", {1, 2, 3}}}).prompts;
  ASSERT_EQ(ids.size(), 1u);
  EXPECT_EQ(std::get<1>(ids[0]), (std::vector<int32_t>{1, 2, 3}));
  const auto lists = completion({{"prompt", Json::array({Json::array({1, 2}), Json::array({3})})}}).prompts;
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_EQ(std::get<1>(lists[1]), (std::vector<int32_t>{3}));
}

TEST(RequestFields, Messages) {
  const ChatRequest request =
      chat({{"messages",
             {{{"role", "developer"}, {"content", "brief"}},
              {{"role", "user"},
               {"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}}},
              {{"role", "assistant"}, {"content", nullptr}}}}});
  ASSERT_EQ(request.messages.size(), 3u);
  EXPECT_EQ(request.messages[0].role, "system");
  EXPECT_EQ(request.messages[1].content, "ab");
  EXPECT_EQ(request.messages[2].content, "");
  EXPECT_EQ(refused_chat({{"messages", Json::array()}}).param, "messages");
  EXPECT_EQ(refused_chat({{"messages", nullptr}}).param, "messages");
  EXPECT_EQ(refused_chat({{"messages", {{{"role", "tool"}, {"content", "x"}}}}}).param, "messages[0].role");
  EXPECT_EQ(refused_chat({{"messages", {{{"role", "user"}}}}}).param, "messages[0].content");
  EXPECT_EQ(refused_chat({{"messages", {{{"role", "user"}, {"content", 5}}}}}).param, "messages[0].content");
  const Refused image = refused_chat(
      {{"messages",
        {{{"role", "user"}, {"content", {{{"type", "image_url"}, {"image_url", {{"url", "x"}}}}}}}}}});
  EXPECT_EQ(image.param, "messages[0].content");
  EXPECT_NE(image.message.find("image_url"), std::string::npos);
}

TEST(RequestFields, ChatTokensAndLogProbs) {
  EXPECT_EQ(chat({{"max_tokens", 7}}).max_tokens, 7);
  EXPECT_EQ(chat({{"max_tokens", 7}, {"max_completion_tokens", 9}}).max_tokens, 9);
  EXPECT_EQ(chat({{"logprobs", true}}).log_probs, 0);
  EXPECT_EQ(chat({{"logprobs", true}, {"top_logprobs", 20}}).log_probs, 20);
  EXPECT_EQ(chat({{"logprobs", false}, {"top_logprobs", 0}}).log_probs, -1);
  EXPECT_EQ(refused_chat({{"top_logprobs", 3}}).param, "top_logprobs");
  EXPECT_EQ(completion({{"logprobs", 5}}).log_probs, 5);
  EXPECT_EQ(completion({{"logprobs", true}}).log_probs, 1);
}

TEST(RequestFields, Budgets) {
  EXPECT_EQ(completion({{"budget", 0.8}}).budget.budget, 0.8);
  EXPECT_EQ(completion({{"saved", 0.25}}).budget.budget, 0.75);
  EXPECT_EQ(completion({{"quality", "kl=0.2"}}).budget.quality->measure, "kl");
  const BudgetFields automatic = completion({{"budget", "auto"}, {"budget_floor", 0.7}}).budget;
  EXPECT_TRUE(automatic.automatic);
  EXPECT_EQ(automatic.floor, 0.7);
  EXPECT_EQ(refused_field({{"budget", 0.8}, {"saved", 0.2}}).param, "saved");
  EXPECT_EQ(refused_field({{"budget", 0.8}, {"quality", "kl=0.2"}}).param, "quality");
  EXPECT_EQ(refused_field({{"quality", "good"}}).param, "quality");
  EXPECT_EQ(refused_field({{"budget", 0.8}, {"budget_floor", 0.7}}).param, "budget_floor");
  EXPECT_EQ(refused_field({{"saved", 0.2}, {"budget_floor", 0.7}}).param, "budget_floor");
  EXPECT_EQ(completion({{"budget_floor", 0.7}}).budget.floor, 0.7);  // --auto-budget may choose
}

TEST(RequestFields, Drafts) {
  EXPECT_FALSE(completion({{"speculate", false}}).speculate);
  EXPECT_EQ(completion({{"speculate", true}}).speculate->drafts, 0);
  EXPECT_EQ(completion({{"speculate", 4}, {"draft", "exit"}}).speculate->kind, DraftKind::kExit);
  const auto drafts =
      completion({{"speculate", {{"drafts", 3}, {"draft", "method"}, {"budget", 0.5}}}}).speculate;
  EXPECT_EQ(drafts->drafts, 3);
  EXPECT_EQ(drafts->budget, 0.5);
  EXPECT_EQ(refused_field({{"speculate", {{"draft", "guess"}}}}).param, "speculate.draft");
  EXPECT_EQ(refused_field({{"draft", "exit"}}).param, "draft");
}

TEST(RequestFields, Formats) {
  using Kind = ResponseFormat::Kind;
  EXPECT_EQ(chat({{"response_format", {{"type", "text"}}}}).format.kind, Kind::kText);
  EXPECT_EQ(chat({{"response_format", {{"type", "json_object"}}}}).format.kind, Kind::kObject);
  const ResponseFormat schema =
      chat({{"response_format",
             {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", {{"type", "object"}}}}}}}})
          .format;
  EXPECT_EQ(schema.kind, Kind::kSchema);
  EXPECT_EQ(Json::parse(schema.schema), (Json{{"type", "object"}}));
  EXPECT_EQ(refused_chat({{"response_format", {{"type", "yaml"}}}}).param, "response_format.type");
  EXPECT_EQ(refused_chat({{"response_format", {{"type", "json_schema"}}}}).param,
            "response_format.json_schema");
}

// Errors are logged, and prompts are not to be.
TEST(RequestFields, ErrorsDoNotShowPrompts) {
  EXPECT_EQ(refused_field({{"prompt", {{{"secret", 1}}}}}).message.find("secret"), std::string::npos);
  EXPECT_EQ(
      refused_chat({{"messages", {{{"role", "user"}, {"content", {"secret"}}}}}}).message.find("secret"),
      std::string::npos);
}

TEST(RequestFields, TheErrorObject) {
  const Json json = Json::parse(error_json(ApiError(400, "n must be 1", "n")));
  EXPECT_EQ(json, (Json{{"error",
                         {{"message", "n must be 1"},
                          {"type", "invalid_request_error"},
                          {"param", "n"},
                          {"code", nullptr}}}}));
}

TEST(RequestFields, KindsOfDraftsAreListed) {
  const Refused got = refused_field({{"speculate", true}, {"draft", "x"}});
  EXPECT_EQ(got.param, "draft");
  EXPECT_EQ(got.message, "draft must be one of method, harm_order, exit, lookup, got 'x'");
}

// Members that nobody looks at are read and not kept.
TEST(RequestFields, UnknownMembersAreDropped) {
  const std::string body =
      R"({"x": [{"a": [1, {"prompt": 5}]}, [], "b"], "prompt": "a", "y": {"n": 3}, "n": 2, "z": [[1]]})";
  EXPECT_EQ(parse_body(body, {}), (Json{{"prompt", "a"}, {"n", 2}}));
  EXPECT_EQ(parse_body(R"({"x": {"prompt": 1}})", {}), Json::object());
  const Json kept{
      {"messages",
       {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "\u65e5"}}}}}, nullptr, true}},
      {"logit_bias", {{"5", -1.5}, {"6", -2}}},
      {"stop", Json::array()}};
  EXPECT_EQ(parse_body(kept.dump(), {}), kept);
  EXPECT_EQ(parse_body(R"({"n": 1, "x": 2, "n": [3], "n": 4})", {}), (Json{{"n", 4}}));
}

TEST(RequestFields, ValuesAreBounded) {
  ApiLimits limits;
  limits.tokens = 1000;
  const auto body = [](const char* field, size_t values) {
    std::string text = std::string("{\"prompt\": \"a\", \"") + field + "\": [0";
    for (size_t i = 1; i < values; ++i) text += ",{}";
    return text + "]}";
  };
  for (const char* field : {"x", "messages"}) {
    EXPECT_NO_THROW(parse_body(body(field, 66'000), limits));
    const Refused got = refused([&] { parse_body(body(field, 67'000), limits); });
    EXPECT_EQ(got.message, "the body may have 66536 values, got more");
    EXPECT_EQ(got.status, 400);
  }
}

}  // namespace
}  // namespace fathom
