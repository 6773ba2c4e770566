// Paths, the tokenizer, states, the limits of requests, and what every reply carries.
#include "serve/api.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "serve/api_rig_test.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

TEST(Api, PathsAndMethods) {
  StoryApi rig;
  EXPECT_NE(rig.refusal("/v2/completions", kGreedy, 404).find("/v2/completions"), std::string::npos);
  const auto wrong = rig.ask("/v1/completions");
  EXPECT_EQ(wrong->status, 405);
  EXPECT_EQ(wrong->header("Allow"), "POST");
  EXPECT_EQ(rig.ask("/health")->json(), (Json{{"status", "ok"}}));
  EXPECT_TRUE(rig.ask("/version")->json()["version"].is_string());
  const Json models = rig.ask("/v1/models")->json();
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "small");
  EXPECT_EQ(models["data"][0]["max_model_len"], 256);
  EXPECT_EQ(rig.ask("/v1/models/small")->json()["object"], "model");
  EXPECT_EQ(rig.ask("/v1/models/sm%61ll")->status, 200);
  EXPECT_EQ(rig.ask("/v1/models/other")->status, 404);
  EXPECT_EQ(rig.refusal("/v1/completions", with(kGreedy, {{"model", "gpt"}}), 404, "model"),
            "the model 'gpt' does not exist here: see /v1/models");
  EXPECT_EQ(rig.complete_text(with(kGreedy, {{"model", "small"}}))["model"], "small");
}

TEST(Api, TheTokenizer) {
  StoryApi rig;
  const std::vector<int32_t> ids = rig.story.encode("The cat");
  const Json tokens = rig.ask("/tokenize", Json{{"prompt", "The cat"}})->json();
  EXPECT_EQ(tokens["tokens"], ids);
  EXPECT_EQ(tokens["count"], ids.size());
  EXPECT_EQ(tokens["max_model_len"], 256);
  const Json plain = rig.ask("/tokenize", Json{{"prompt", "The cat"}, {"add_special_tokens", false}})->json();
  EXPECT_EQ(plain["tokens"].size(), ids.size() - 1);
  EXPECT_EQ(rig.ask("/detokenize", Json{{"tokens", plain["tokens"]}})->json()["prompt"], "The cat");
  EXPECT_EQ(rig.refusal("/detokenize", {{"tokens", {5, 99999}}}, 400, "tokens"),
            "tokens: token 99999 is not in the vocabulary of 512");
  EXPECT_EQ(rig.ask("/tokenize", Json{{"text", "x"}})->status, 400);
  const Json said{{"messages", {{{"role", "user"}, {"content", "The cat"}}}}};
  const Json opened = rig.ask("/tokenize", said)->json(),
             closed = rig.ask("/tokenize", with(said, {{"add_generation_prompt", false}}))->json();
  EXPECT_LT(closed["count"], opened["count"]);
  EXPECT_EQ(rig.ask("/tokenize", with(said, {{"add_generation_prompt", true}}))->json(), opened);
  const Json info = rig.ask("/tokenizer_info")->json();
  for (const char* field : {"eos_token", "bos_token", "pad_token", "chat_template"})
    EXPECT_TRUE(info.contains(field));
  EXPECT_EQ(info["bos_token"], rig.served.tokenizer().token(rig.served.tokenizer().bos()));
}

TEST(Api, ThePaddingToken) {
  StoryApi rig;
  EXPECT_TRUE(rig.ask("/tokenizer_info")->json()["pad_token"].is_null());
  const std::string folder = testing::TempDir() + "fathom_padded_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(FATHOM_TEST_DATA "/tokenizers/llama2_style.json", folder + "/tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  std::ofstream(folder + "/tokenizer_config.json") << R"({"pad_token": "</s>"})";
  rig.story.model.tokenizer = load_tokenizer(folder);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(rig.ask("/tokenizer_info")->json()["pad_token"], "</s>");
}

TEST(Api, LoadingAndDraining) {
  Api loading({});
  const auto ask = [](Api& api, const char* method, const char* path, const char* body) {
    auto reply = std::make_shared<FakeReply>();
    api.handle(ApiRig::request(method, path, body, ""), reply);
    api.settle();
    return reply;
  };
  EXPECT_EQ(ask(loading, "GET", "/health", "")->status, 503);
  EXPECT_EQ(ask(loading, "POST", "/v1/completions", "{}")->status, 503);
  EXPECT_EQ(ask(loading, "GET", "/metrics", "")->status, 200);
  EXPECT_EQ(ask(loading, "GET", "/version", "")->status, 200);
  StoryApi rig;
  const auto running = rig.begin("/v1/completions", with(kEndless, {{"max_tokens", 30}}).dump());
  rig.api->drain();
  EXPECT_EQ(rig.ask("/health")->status, 503);
  EXPECT_EQ(rig.refusal("/v1/completions", kGreedy, 503), "the server is shutting down");
  EXPECT_EQ(rig.api->active(), 1);
  running->run();  // what was there ends well
  EXPECT_EQ(running->status, 200);
  EXPECT_EQ(rig.api->active(), 0);
}

// Lets everything pass.
class Free final : public TokenMask {
 public:
  void forbid(std::span<float>) override {}
  void accept(int32_t) override {}
  void rollback(int64_t) override {}
};

// While a schema is compiled, as while a body is parsed, other paths answer and requests wait, or are 429.
TEST(Api, ParsingHoldsNobodyUp) {
  ApiOptions options;
  options.unparsed_requests = 1;
  StoryApi rig(options);
  std::promise<void> begun, go;
  rig.served.masks.any_object = [&, gone = go.get_future().share()]() -> MaskMaker {
    begun.set_value();
    gone.wait();
    return [] { return std::make_unique<Free>(); };
  };
  rig.api->serve(rig.served);
  const auto ask = [&](const char* method, const char* path, const Json& body) {
    auto reply = std::make_shared<FakeReply>();
    rig.api->handle(ApiRig::request(method, path, body.dump(), ""), reply);
    return reply;
  };
  const auto slow =
      ask("POST", "/v1/completions", with(kGreedy, {{"response_format", {{"type", "json_object"}}}}));
  begun.get_future().wait();
  const auto waiting = ask("POST", "/v1/completions", kGreedy);
  const auto refused = ask("POST", "/tokenize", {{"prompt", "a"}});
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->header("Retry-After"), "1");
  EXPECT_EQ(ask("GET", "/health", {})->status, 200);
  EXPECT_EQ(rig.api->active(), 2);
  EXPECT_FALSE(slow->whole || waiting->whole);
  go.set_value();
  rig.api->settle();
  for (const auto& reply : {slow, waiting}) {
    reply->run();
    EXPECT_EQ(reply->status, 200);
  }
}

TEST(Api, TheFieldIsNamed) {
  StoryApi rig;
  rig.served.masks.any_object = [] { return [] { return std::make_unique<Free>(); }; };
  rig.api->serve(rig.served);
  EXPECT_EQ(
      rig.refusal("/v1/completions", with(kGreedy, {{"stop_token_ids", {5, 99999}}}), 400, "stop_token_ids"),
      "stop_token_ids: token 99999 is not in the vocabulary of 512");
  const Json drafts = with(kGreedy, {{"speculate", true}, {"draft", "method"}});
  EXPECT_TRUE(rig.refusal("/v1/completions", drafts, 400, "draft").starts_with("draft: "));
  const Json json = with(kGreedy, {{"response_format", {{"type", "json_object"}}}});
  for (const Json& end : {Json{{"stop", "}"}}, Json{{"stop_token_ids", {5}}}, Json{{"min_tokens", 2}}})
    EXPECT_NE(rig.refusal("/v1/completions", with(json, end), 400, "response_format").find("its own end"),
              std::string::npos)
        << end;
  EXPECT_EQ(rig.ask("/v1/completions", with(json, {{"stop", nullptr}}))->status, 200);
}

TEST(Api, PromptsOverTheContext) {
  StoryApi rig;
  std::vector<int32_t> ids(257, 5);
  EXPECT_EQ(rig.refusal("/v1/completions", {{"prompt", ids}}, 400, "prompt"),
            "the prompt has 257 tokens, and this model's maximum context length is 256: shorten the prompt");
  ids.pop_back();
  EXPECT_EQ(rig.complete_text({{"prompt", ids}})["usage"]["completion_tokens"], 1);
  const std::string huge(1 << 20, 'a');  // refused without being tokenized
  EXPECT_NE(rig.refusal("/v1/completions", {{"prompt", huge}}, 400, "prompt").find("at least"),
            std::string::npos);
  EXPECT_EQ(rig.refusal("/v1/completions", {{"prompt", {5, 512}}}, 400, "prompt"),
            "token 512 is not in the model's vocabulary of 512");
  EXPECT_EQ(
      rig.refusal("/v1/completions", {{"prompt", "a"}, {"logit_bias", {{"512", 1}}}}, 400, "logit_bias"),
      "logit_bias: token 512 is not in the vocabulary of 512");
}

// An empty text is the token that begins every text, where the tokenizer has one.
TEST(Api, AnEmptyPrompt) {
  StoryApi rig;
  const std::vector<int32_t> encoded = rig.story.model.tokenizer->encode("", {});
  ASSERT_EQ(encoded.size(), 1u);
  const Json empty = rig.complete_text({{"prompt", ""}, {"max_tokens", 8}, {"temperature", 0}});
  EXPECT_EQ(empty["usage"]["prompt_tokens"], 1);
  const Json begun = rig.complete_text({{"prompt", encoded}, {"max_tokens", 8}, {"temperature", 0}});
  EXPECT_EQ(empty["choices"][0]["text"], begun["choices"][0]["text"]);
  EXPECT_NE(begun["choices"][0]["text"], "");
  rig.refusal("/v1/completions", {{"prompt", Json::array()}}, 400, "prompt");
  rig.refusal("/v1/completions", {{"prompt", {Json::array(), {5}}}}, 400, "prompt");
}

TEST(Api, LongTextsAreTokenisedAndNotAnswered) {
  StoryApi rig;
  std::string text = "cat";
  for (int i = 0; i < 5000; ++i) text += " cat";
  const Json messages{{"messages", {{{"role", "user"}, {"content", text}}}}};
  EXPECT_GT(rig.ask("/tokenize", Json{{"prompt", text}})->json()["count"], 5000);
  EXPECT_GT(rig.ask("/tokenize", messages)->json()["count"], 5000);
  EXPECT_NE(rig.refusal("/v1/completions", {{"prompt", text}}, 400, "prompt").find("maximum context length"),
            std::string::npos);
  const auto chat = rig.ask("/v1/chat/completions", messages);
  EXPECT_EQ(chat->json()["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(chat->json()["error"]["param"], "messages");
  const std::string little = text.substr(0, 300 * 4);  // few bytes, and more tokens than the context has
  EXPECT_EQ(rig.refusal("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", little}}}}},
                        400, "messages")
                .find("at least"),
            std::string::npos);
}

TEST(Api, TheLimitOnTokens) {
  ApiOptions options;
  options.limits.tokens = 100;
  StoryApi rig(options);
  EXPECT_NE(
      rig.refusal("/v1/completions", {{"prompt", "Once"}, {"n", 3}, {"max_tokens", 40}}, 400, "max_tokens")
          .find("the limit of 100"),
      std::string::npos);
  EXPECT_EQ(rig.ask("/v1/completions", Json{{"prompt", "Once"}, {"n", 2}, {"max_tokens", 40}})->status, 200);
  const Json chat{{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"ignore_eos", true}};
  const Json got = rig.ask("/v1/chat/completions", chat)->json();  // no number: as many as the limit leaves
  EXPECT_LE(got["usage"]["total_tokens"], 101);
  EXPECT_GE(got["usage"]["total_tokens"], 100);
  EXPECT_NE(rig.refusal("/v1/completions", {{"prompt", "a"}, {"max_tokens", 3}, {"min_tokens", 4}}, 400,
                        "min_tokens"),
            "");
}

// A reply's log-probabilities are many more than its tokens.
TEST(Api, TheLimitOnLogProbabilities) {
  ApiOptions options;
  options.limits.log_probs = 120;
  StoryApi rig(options);
  const Json body{{"prompt", {5, 6, 7, 8, 9}}, {"max_tokens", 5}, {"logprobs", 3}, {"echo", true}};
  const auto refused = [&](const Json& more) {
    return rig.refusal("/v1/completions", with(body, more), 400, "logprobs");
  };
  EXPECT_EQ(rig.complete_text(with(body, {{"n", 3}}))["choices"].size(), 3u);  // 3 × (5 + 5) × (3 + 1)
  EXPECT_EQ(refused({{"n", 3}, {"max_tokens", 6}}),
            "logprobs: 3 choices of 11 tokens with 4 entries each are more than the limit of 120 "
            "log-probabilities");
  refused({{"n", 3}, {"logprobs", 4}});
  refused({{"n", 4}});
  refused({{"n", 3}, {"max_tokens", 6}, {"stream", true}});
  refused({{"prompt", {{5, 6, 7, 8, 9}, {5, 6, 7, 8, 9, 10}}}, {"n", 2}});
  rig.complete_text(with(body, {{"n", 4}, {"echo", false}}));
  rig.complete_text(with(body, {{"n", 8}, {"logprobs", nullptr}}));
}

TEST(Api, AChatIsAsLongAsItsLogProbabilitiesMayBe) {
  ApiOptions options;
  options.limits.log_probs = 60;
  StoryApi rig(options);
  const Json chat{
      {"messages", {{{"role", "user"}, {"content", "a"}}}}, {"ignore_eos", true}, {"logprobs", true}};
  const auto tokens = [&](const Json& more) -> int {
    return rig.ask("/v1/chat/completions", with(chat, more))->json()["usage"]["completion_tokens"];
  };
  EXPECT_EQ(tokens(Json::object()), 60);
  EXPECT_EQ(tokens({{"top_logprobs", 5}}), 10);
  EXPECT_EQ(tokens({{"top_logprobs", 5}, {"n", 2}}), 10);
  rig.refusal("/v1/chat/completions", with(chat, {{"max_tokens", 61}}), 400, "logprobs");
  rig.refusal("/v1/chat/completions", with(chat, {{"top_logprobs", 5}, {"max_tokens", 11}}), 400,
              "top_logprobs");
  rig.refusal("/v1/chat/completions", with(chat, {{"top_logprobs", 20}, {"n", 4}}), 400, "top_logprobs");
}

// What lm-evaluation-harness asks in lists stays below the default limit.
TEST(Api, AHarnessMayScoreItsPrompts) {
  const ApiLimits limits;
  EXPECT_GE(limits.log_probs, 64 * (1024 + 1) * (1 + 1));
  EXPECT_LT(limits.log_probs, 128 * (480 + 1) * (20 + 1));  // a reply of 22 MB
}

TEST(Api, RepliesCarryTheirId) {
  StoryApi rig;
  const auto whole = rig.ask("/v1/completions", kGreedy);
  EXPECT_EQ(whole->header("X-Request-Id"), whole->json()["id"]);
  const auto stream = rig.ask("/v1/completions", with(kGreedy, {{"stream", true}}));
  EXPECT_EQ(stream->header("X-Request-Id"), stream->chunks().front()["id"]);
  for (const char* path : {"/v1/models", "/nothing", "/v1/completions"})
    EXPECT_TRUE(rig.ask(path)->header("X-Request-Id").starts_with("req-")) << path;
  const auto late = rig.ask("/v1/completions", with(kEndless, {{"timeout", 0.001}}));
  EXPECT_EQ(late->status, 504);
  EXPECT_TRUE(late->header("X-Request-Id").starts_with("cmpl-"));
  auto reply = std::make_shared<FakeReply>();
  HttpRequest named = ApiRig::request("POST", "/v1/completions", kGreedy.dump(), "");
  named.client_id = "mine-1";
  rig.api->handle(std::move(named), reply);
  reply->run();
  EXPECT_EQ(reply->header("X-Request-Id"), "mine-1");
  EXPECT_NE(rig.lines.back().find("client's id mine-1"), std::string::npos) << rig.lines.back();
}

// Prefixes are shared within a key.
TEST(Api, KeysShareNoPrefixes) {
  const std::string prompt =
      "Once upon a time there was a little girl who lived in a small house near the big wood";
  const Json body{{"prompt", prompt}, {"max_tokens", 2}};
  for (const bool share : {false, true}) {
    ApiOptions options;
    options.share_prefixes = share;
    StoryApi rig(options);
    const auto cached = [&](const std::string& key) {
      return rig.ask("/v1/completions", body, key)
          ->json()["usage"]["prompt_tokens_details"]["cached_tokens"]
          .get<int>();
    };
    EXPECT_EQ(cached("alice"), 0);
    EXPECT_GT(cached("alice"), 10);
    EXPECT_EQ(cached("bob") > 10, share);
  }
}

}  // namespace
}  // namespace fathom
