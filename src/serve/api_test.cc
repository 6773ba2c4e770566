// Paths, statuses, budgets, and what goes wrong.
#include "serve/api.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "base/format.h"
#include "infer/engine_rig_test.h"
#include "infer/generate.h"
#include "serve/api_rig_test.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

const Json kGreedy{{"prompt", "The old man"}, {"max_tokens", 12}, {"temperature", 0}};
const Json kEndless{{"prompt", "Once"}, {"max_tokens", 200}, {"ignore_eos", true}, {"temperature", 0}};

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

TEST(Api, CutTellsTheClients) {
  StoryApi rig;
  const auto whole = rig.begin("/v1/completions", kEndless.dump());
  const auto stream = rig.begin("/v1/completions", with(kEndless, {{"stream", true}}).dump());
  stream->run([&] { return stream->pieces.size() > 2; });
  rig.api->cut();
  whole->run();
  stream->run();
  EXPECT_EQ(whole->status, 503);
  EXPECT_EQ(whole->json()["error"]["message"], "the server is shutting down");
  EXPECT_NE(stream->events().back().find("shutting down"), std::string::npos);
  EXPECT_EQ(rig.api->active(), 0);
}

TEST(Api, AFullHouseIs429) {
  BatcherOptions batcher;
  batcher.waiting = 1;
  StoryApi rig({}, batcher, 1);
  std::vector<std::shared_ptr<FakeReply>> replies;
  for (int i = 0; i < 4; ++i) replies.push_back(rig.begin("/v1/completions", kEndless.dump()));
  int served = 0, refused = 0;
  for (const auto& reply : replies) {
    reply->run();
    served += reply->status == 200;
    if (reply->status != 429) continue;
    ++refused;
    EXPECT_EQ(reply->header("Retry-After"), "1");
    EXPECT_EQ(reply->json()["error"]["type"], "rate_limit_error");
  }
  EXPECT_GE(served, 1);
  EXPECT_GE(refused, 1);
  EXPECT_EQ(served + refused, 4);
  // More answers than there is room for, in one request: those that were taken are given back.
  EXPECT_EQ(rig.ask("/v1/completions", with(kEndless, {{"prompt", {"a", "b", "c", "d", "e"}}}))->status, 429);
  rig.wait_until_idle();
  EXPECT_EQ(rig.engine->stats().running + rig.engine->stats().waiting, 0);
}

TEST(Api, ADeadlineIs504OrAnEvent) {
  StoryApi rig;
  EXPECT_NE(rig.refusal("/v1/completions", with(kEndless, {{"timeout", 0.001}}), 504).find("time limit"),
            std::string::npos);
  BatcherOptions batcher;
  batcher.tokens_ahead = 1;  // the reader decides how far it gets
  ApiOptions options;
  options.limits.timeout_seconds = 0.5;
  StoryApi slow(options, batcher);
  const auto stream = slow.begin("/v1/completions", with(kEndless, {{"stream", true}}).dump());
  stream->run([&] { return stream->begun; });
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  stream->run();
  EXPECT_EQ(stream->status, 200);
  const std::string last = stream->events().back();
  EXPECT_EQ(Json::parse(last)["error"]["type"], "timeout_error");
  EXPECT_EQ(stream->body.find("[DONE]"), std::string::npos);
  EXPECT_TRUE(stream->closes);
  EXPECT_FALSE(slow.ask("/v1/completions", with(kGreedy, {{"stream", true}}))->closes);
}

TEST(Api, AClientThatGoesCancels) {
  StoryApi rig;
  for (const bool streams : {false, true}) {
    const auto reply = rig.begin("/v1/completions", with(kEndless, {{"stream", streams}, {"n", 3}}).dump());
    if (streams) reply->run([&] { return reply->begun; });
    const int64_t cancelled = rig.engine->stats().finished[static_cast<size_t>(FinishReason::kCancelled)];
    reply->leave();
    EXPECT_EQ(rig.api->active(), 0);
    rig.wait_until_idle();
    EXPECT_EQ(rig.engine->stats().finished[static_cast<size_t>(FinishReason::kCancelled)], cancelled + 3);
    EXPECT_NE(rig.lines.back().find(" 499 "), std::string::npos) << rig.lines.back();
  }
}

// A reader that stops pauses its own answer; others go on; it gets all of its text later.
TEST(Api, AReaderThatStopsIsWaitedFor) {
  ApiOptions options;
  options.unsent_bytes = 600;
  BatcherOptions batcher;
  batcher.tokens_ahead = 4;
  StoryApi rig(options, batcher);
  const std::string whole = rig.complete_text(kEndless)["choices"][0]["text"];
  const auto stopped = rig.begin("/v1/completions", with(kEndless, {{"stream", true}}).dump());
  stopped->reads = false;
  stopped->run([&] { return stopped->unsent() > 600; });
  stopped->run_for(std::chrono::milliseconds(300));
  const size_t held = stopped->body.size();
  EXPECT_LT(held, 1500u);
  EXPECT_EQ(rig.engine->stats().paused, 1);
  EXPECT_EQ(rig.complete_text(kEndless)["choices"][0]["text"], whole);  // another one
  EXPECT_EQ(stopped->body.size(), held);
  stopped->read_on();
  stopped->run();
  std::string text;
  for (const Json& chunk : stopped->chunks()) text += chunk["choices"][0]["text"];
  EXPECT_EQ(text, whole);
}

// Breaks its own answer's logits.
class Broken final : public TokenMask {
 public:
  void forbid(std::span<float> logits) override { logits[3] = NAN; }
  void accept(int32_t) override {}
  void rollback(int64_t) override {}
};

TEST(Api, ARequestWithoutMemoryEndsAlone) {
  StoryApi rig;
  rig.served.masks.any_object = [] { return [] { return std::make_unique<MaskWithoutMemory>(); }; };
  rig.api->serve(rig.served);
  const std::string well = rig.complete_text(kEndless)["choices"][0]["text"];
  const auto other = rig.begin("/v1/completions", kEndless.dump());
  const Json json = with(kGreedy, {{"response_format", {{"type", "json_object"}}}});
  EXPECT_EQ(rig.refusal("/v1/completions", json, 500), "out of memory");
  for (const char* part : {" 500 ", "out of memory"})
    EXPECT_NE(rig.lines.back().find(part), std::string::npos) << rig.lines.back();
  other->run();
  EXPECT_EQ(other->status, 200);
  EXPECT_EQ(other->json()["choices"][0]["text"], well);
}

// Compiling its schema may need more than there is, too.
TEST(Api, ASchemaWithoutMemoryEndsAlone) {
  StoryApi rig;
  rig.served.masks.any_object = []() -> MaskMaker { throw std::bad_alloc(); };
  rig.api->serve(rig.served);
  const Json json = with(kGreedy, {{"response_format", {{"type", "json_object"}}}});
  rig.refusal("/v1/completions", json, 500);
  EXPECT_NE(rig.lines.back().find(" 500 "), std::string::npos) << rig.lines.back();
  EXPECT_EQ(rig.ask("/v1/completions", kGreedy)->status, 200);
}

TEST(Api, ABrokenRequestEndsAlone) {
  StoryApi rig;
  rig.served.masks.any_object = [] { return [] { return std::make_unique<Broken>(); }; };
  rig.api->serve(rig.served);
  const std::string well = rig.complete_text(kEndless)["choices"][0]["text"];
  const auto other = rig.begin("/v1/completions", kEndless.dump());
  const Json json = with(kEndless, {{"response_format", {{"type", "json_object"}}}});
  EXPECT_NE(rig.refusal("/v1/completions", json, 400, "response_format").find("ignore_eos"),
            std::string::npos);
  const Json broken = with(json, {{"ignore_eos", false}});
  EXPECT_NE(rig.refusal("/v1/completions", broken, 500).find("nan"), std::string::npos);
  EXPECT_NE(rig.lines.back().find(" 500 "), std::string::npos);
  EXPECT_NE(rig.lines.back().find("nan"), std::string::npos);
  other->run();
  EXPECT_EQ(other->json()["choices"][0]["text"], well);
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

TEST(Api, BudgetsOfTheTable) {
  BuiltinApi rig;
  const std::vector<float>& grid = rig.served.grid;
  ASSERT_GT(grid.size(), 2u);
  EXPECT_EQ(grid.front(), 1.0f);
  const std::string message =
      rig.refusal("/v1/completions", with(kGreedy, {{"budget", 0.05}}), 400, "budget");
  EXPECT_NE(message.find(fmt::format("from {:g} to 1", grid.back())), std::string::npos) << message;
  EXPECT_NE(rig.refusal("/v1/completions", with(kGreedy, {{"saved", 0.95}}), 400, "saved"), "");
  const Json full = rig.complete_text(with(kGreedy, {{"budget", 1}}));
  EXPECT_EQ(full["usage"]["block_flops"], 1.0);
  const Json saved = rig.complete_text(with(kGreedy, {{"saved", 0.2}}));
  EXPECT_EQ(saved["usage"]["budget"], 0.8);
  EXPECT_LT(saved["usage"]["block_flops"], 1.0);
  EXPECT_FALSE(rig.complete_text(kGreedy)["usage"].contains("budget"));  // the method's own rule
  StoryApi dense;
  EXPECT_EQ(dense.complete_text(with(kGreedy, {{"budget", 1}}))["usage"]["budget"], 1.0);
  EXPECT_EQ(dense.complete_text(with(kGreedy, {{"budget", "auto"}}))["usage"]["budget"], 1.0);
  EXPECT_NE(
      dense.refusal("/v1/completions", with(kGreedy, {{"budget", 0.5}}), 400, "budget").find("dense model"),
      std::string::npos);
}

TEST(Api, SpeculationWritesTheSameText) {
  BuiltinApi rig;
  const Json plain = rig.complete_text(with(kGreedy, {{"budget", 1}, {"max_tokens", 40}}));
  const Json drafted = rig.complete_text(
      with(kGreedy, {{"budget", 1}, {"max_tokens", 40}, {"speculate", 4}, {"draft", "method"}}));
  EXPECT_EQ(plain["choices"][0]["text"], drafted["choices"][0]["text"]);
  EXPECT_GT(drafted["usage"]["completion_tokens_details"]["drafted_tokens"], 0);
  rig.served.grid = {1.0f, 0.7f};  // as if less were not calibrated
  rig.api->serve(rig.served);
  EXPECT_EQ(rig.complete_text(
                with(kGreedy, {{"budget", 1}, {"max_tokens", 40}, {"speculate", 4}}))["choices"][0]["text"],
            plain["choices"][0]["text"]);
  const Json low = with(kGreedy, {{"budget", 0.6}, {"speculate", 4}});
  EXPECT_NE(rig.refusal("/v1/completions", with(low, {{"draft", "method"}})).find("0.7"),
            std::string::npos);  // the method's drafts need less than the output
  for (const Json& drafts : {Json(true), Json(4)})
    EXPECT_EQ(rig.complete_text(with(low, {{"speculate", drafts}}))["choices"][0]["text"],
              rig.complete_text(with(low, {{"speculate", false}}))["choices"][0]["text"]);
  StoryApi dense;  // without a method drafts are looked up
  for (const Json& drafts : {Json{{"speculate", 4}, {"draft", "lookup"}}, Json{{"speculate", 4}}}) {
    const Json looked = dense.complete_text(with(kEndless, drafts));
    EXPECT_EQ(looked["choices"][0]["text"], dense.complete_text(kEndless)["choices"][0]["text"]);
    EXPECT_GT(looked["usage"]["completion_tokens_details"]["drafted_tokens"], 0);
  }
  const Json by_method = with(kEndless, {{"speculate", true}, {"draft", "method"}});
  EXPECT_FALSE(dense.refusal("/v1/completions", by_method).empty());
}

// What an automatic budget writes is what that budget writes, alone and on another runtime.
TEST(Api, AnAutomaticBudgetIsNamedAndKept) {
  ApiOptions options;
  options.target_latency = 1e-9;  // every token is too slow
  options.parallel = 4;
  BuiltinApi rig(options);
  const Json ask = with(kGreedy, {{"max_tokens", 20}});
  EXPECT_EQ(rig.complete_text(with(ask, {{"budget", "auto"}}))["usage"]["budget"],
            1.0);  // nothing is known yet
  const Json low = rig.complete_text(with(ask, {{"budget", "auto"}}));
  const float smallest = rig.served.grid.back();
  EXPECT_EQ(static_cast<float>(low["usage"]["budget"].get<double>()), smallest);
  const Json raised = rig.complete_text(with(ask, {{"budget", "auto"}, {"budget_floor", 0.85}}));
  EXPECT_EQ(raised["usage"]["budget"], 0.9);

  ModelRuntime::Options opened;
  opened.source.model = FATHOM_TEST_DATA "/../../models/builtin/builtin.gguf";
  opened.source.where.threads = 1;
  opened.context = 512;
  opened.budget = double{smallest};
  ModelRuntime alone(opened);
  alone.make_cache(-1, 1, EngineOptions().rows);
  Generator generator(alone.feeder(), alone.engine_options());
  GenerateOptions how;
  how.sampler.temperature = 0;
  how.max_tokens = 20;
  const GenerateResult want = generator.run(alone.tokenizer().encode("The old man"), how);
  EXPECT_EQ(low["choices"][0]["text"], want.text);
}

TEST(Api, TheFloorIsAnOption) {
  ApiOptions options;
  options.target_latency = 1e-9;
  options.budget_floor = 0.9f;
  BuiltinApi rig(options);
  rig.complete_text(kGreedy);
  EXPECT_EQ(rig.complete_text(with(kGreedy, {{"budget", "auto"}}))["usage"]["budget"], 0.9);
  EXPECT_EQ(rig.complete_text(with(kGreedy, {{"budget", "auto"}, {"budget_floor", 0.5}}))["usage"]["budget"],
            0.9);
}

TEST(Api, AFloorGoesWithoutABudgetWhereTheServerChooses) {
  ApiOptions options;
  options.target_latency = 1e-9;
  options.auto_budget = true;
  BuiltinApi rig(options);
  rig.complete_text(kGreedy);
  EXPECT_EQ(rig.complete_text(with(kGreedy, {{"budget_floor", 0.85}}))["usage"]["budget"], 0.9);
  rig.refusal("/v1/completions", with(kGreedy, {{"budget", 0.8}, {"budget_floor", 0.7}}), 400,
              "budget_floor");
  StoryApi plain;
  plain.refusal("/v1/completions", with(kGreedy, {{"budget_floor", 0.7}}), 400, "budget_floor");
}

// A stream without a chunk of usage says which budget it got, too.
TEST(Api, EveryChunkNamesTheBudget) {
  ApiOptions options;
  options.budget_floor = 0.9f;
  options.target_latency = 1e-9;
  options.auto_budget = true;
  BuiltinApi rig(options);
  rig.complete_text(kGreedy);
  const Json said = with(kGreedy, {{"stream", true}});
  const Json chat{{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"max_tokens", 4}, {"stream", true}};
  for (const auto& [path, body] : {std::pair("/v1/completions", said), {"/v1/chat/completions", chat}}) {
    const std::vector<Json> chunks = rig.ask(path, body)->chunks();
    EXPECT_GT(chunks.size(), 2u);
    for (const Json& chunk : chunks) EXPECT_EQ(chunk.at("budget"), 0.9) << chunk;
  }
  EXPECT_EQ(rig.complete_text(kGreedy)["budget"], 0.9);
  EXPECT_FALSE(StoryApi().complete_text(kGreedy).contains("budget"));
}

// Seconds that no deadline can hold are the most that one can.
TEST(Api, AnEndlessTimeoutIsNoTimeout) {
  ApiOptions options;
  options.limits.timeout_seconds = 1e10;
  StoryApi rig(options);
  EXPECT_EQ(rig.ask("/v1/completions", kGreedy)->status, 200);
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

TEST(Api, LogLines) {
  StoryApi rig;
  rig.complete_text(kGreedy);
  ASSERT_EQ(rig.lines.size(), 1u);
  EXPECT_NE(rig.lines[0].find(" POST /v1/completions 200 "), std::string::npos) << rig.lines[0];
  for (const char* part : {"cmpl-", "queue ", "first token ", " + 12 tokens", "depth ", "length"})
    EXPECT_NE(rig.lines[0].find(part), std::string::npos) << part;
  EXPECT_EQ(rig.lines[0].find("old man"), std::string::npos);
  const std::string day = utc_text(std::chrono::system_clock::now()).substr(0, 4);
  EXPECT_TRUE(rig.lines[0].starts_with(day)) << rig.lines[0];
  rig.ask("/health");
  rig.ask("/metrics");
  EXPECT_EQ(rig.lines.size(), 1u);  // these are asked every few seconds
  ApiOptions options;
  options.json_logs = options.log_prompts = true;
  StoryApi json(options);
  json.ask("/v1/completions", kGreedy, "alice");
  const Json line = Json::parse(json.lines.at(0));
  EXPECT_TRUE(line["time"].get<std::string>().starts_with(day)) << line;
  EXPECT_EQ(utc_text(WallTime(std::chrono::milliseconds(951'782'400'007))), "2000-02-29T00:00:00.007Z");
  EXPECT_EQ(Json::parse(json_message("info", "a \"b\"\xff", WallTime())),
            (Json{{"time", "1970-01-01T00:00:00.000Z"}, {"level", "info"}, {"message", "a \"b\"\ufffd"}}));
  EXPECT_EQ(line["status"], 200);
  EXPECT_EQ(line["key"], "alice");
  EXPECT_EQ(line["generated_tokens"], 12);
  EXPECT_TRUE(line.contains("queue_ms") && line.contains("first_token_ms") && line.contains("total_ms"));
  EXPECT_NE(line["prompt"].get<std::string>().find("old man"), std::string::npos);
}

TEST(Api, Metrics) {
  StoryApi rig;
  rig.complete_text(kGreedy);
  rig.refusal("/v1/completions", {{"prompt", 5}});
  rig.wait_until_idle();
  const auto reply = rig.ask("/metrics");
  EXPECT_TRUE(reply->type.starts_with("text/plain"));
  const auto has = [&](const std::string& line) {
    EXPECT_NE(reply->body.find(line + "\n"), std::string::npos) << line << "\n" << reply->body;
  };
  const std::string label = "{model_name=\"small\"";
  has("fathom:num_requests_running" + label + "} 0");
  has("fathom:num_requests_waiting" + label + "} 0");
  has("fathom:generation_tokens_total" + label + "} 12");
  has("fathom:prompt_tokens_total" + label + "} " +
      std::to_string(rig.story.model.tokenizer->encode("The old man", {}).size()));
  for (const char* unit : {"attention", "ffn"})
    has("fathom:unit_skip_ratio" + label + ",layer=\"0\",unit=\"" + unit + "\"} 0");
  has("fathom:request_success_total" + label + ",finished_reason=\"length\"} 1");
  has("fathom:http_replies_total" + label + ",status=\"400\"} 1");
  has("fathom:time_to_first_token_seconds_count" + label + "} 1");
  has("fathom:inter_token_latency_seconds_count" + label + "} 11");
  has("fathom:e2e_request_latency_seconds_count" + label + "} 1");
  has("fathom:request_queue_time_seconds_count" + label + "} 1");
  has("fathom:token_depth_ratio_bucket" + label + ",le=\"1\"} 12");
  has("fathom:token_depth_ratio_bucket" + label + ",le=\"0.9\"} 0");
  has("fathom:request_skip_ratio_bucket" + label + ",le=\"0\"} 1");
  has("fathom:iteration_tokens_total_bucket" + label + ",le=\"1\"} 11");
  has("fathom:iteration_tokens_total_count" + label + "} 12");
  for (const char* name : {"kv_cache_usage_perc", "bytes_read_total", "spec_decode_num_draft_tokens_total"})
    EXPECT_NE(reply->body.find(std::string("# TYPE fathom:") + name), std::string::npos) << name;
}

// Each unit's share is told apart; their mean is the answer's.
TEST(Api, MetricsOfUnitsThatSkip) {
  BuiltinApi rig;
  const Json usage = rig.complete_text(
      {{"prompt", "Once upon a time"}, {"max_tokens", 24}, {"budget", rig.served.grid.back()}})["usage"];
  rig.wait_until_idle();
  const std::string text = rig.ask("/metrics")->body, name = "\nfathom:unit_skip_ratio{";
  std::vector<double> shares;
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1))
    shares.push_back(std::stod(text.substr(text.find("} ", at) + 2)));
  ASSERT_EQ(std::ssize(shares), 2 * rig.runtime.model().config.layers);
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  EXPECT_GT(sum, 0);
  EXPECT_NEAR(sum / static_cast<double>(shares.size()), usage["skip_ratio"].get<double>(), 1e-6);
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

// How long a reader pauses says nothing about the engine: other requests' budgets do not follow it.
TEST(Api, APausedReaderIsNoLoad) {
  std::atomic<int> later = 0;
  ApiOptions options;
  options.unsent_bytes = 600;
  options.now = [&] { return std::chrono::steady_clock::now() + std::chrono::seconds(later); };
  BatcherOptions batcher;
  batcher.tokens_ahead = 4;
  StoryApi rig(options, batcher);
  const auto stopped = rig.begin("/v1/completions", with(kEndless, {{"stream", true}}).dump());
  stopped->reads = false;
  stopped->run([&] { return stopped->unsent() > 600; });
  stopped->run_for(std::chrono::milliseconds(200));
  later = 1000;
  stopped->read_on();
  stopped->run();
  const std::string text = rig.ask("/metrics")->body;
  const auto value = [&](const std::string& name) {
    const size_t at = text.find("fathom:inter_token_latency_seconds_" + name);
    return at == std::string::npos ? -1 : std::stol(text.substr(text.find("} ", at) + 2));
  };
  EXPECT_GT(value("count"), 100);
  EXPECT_EQ(value("bucket{model_name=\"small\",le=\"5\"}"), value("count"));
}

TEST(Api, RefusalsOfTheTransportAreCountedAndLogged) {
  std::atomic<int> later = 0;
  ApiOptions options;
  options.now = [&] { return Moment() + std::chrono::seconds(1000 + later); };
  StoryApi rig(options);
  for (int i = 0; i < 100; ++i) rig.api->refused({403, "GET", "/evil", "the Host is not ours"});
  ASSERT_EQ(rig.lines.size(), 20u);  // a flood does not fill the disk
  EXPECT_NE(rig.lines[0].find(" GET /evil 403 "), std::string::npos) << rig.lines[0];
  EXPECT_NE(rig.lines[0].find("the Host is not ours"), std::string::npos);
  later = 11;
  rig.api->refused({400, "", "", "no request line"});
  ASSERT_EQ(rig.lines.size(), 21u);
  EXPECT_NE(rig.lines[20].find("no request line (80 refusals before this one have no line)"),
            std::string::npos)
      << rig.lines[20];
  const std::string text = rig.ask("/metrics")->body;
  EXPECT_NE(text.find("fathom:http_replies_total{model_name=\"small\",status=\"403\"} 100\n"),
            std::string::npos)
      << text;
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

// More answers than can ever wait are no 429: trying again later does not help.
TEST(Api, MoreAnswersThanThereIsRoomForAre400) {
  ApiOptions options;
  options.parallel = 1;
  options.queue = 2;
  StoryApi rig(options);
  EXPECT_NE(rig.refusal("/v1/completions", with(kGreedy, {{"n", 4}}), 400, "n").find("from 1 to 3"),
            std::string::npos);
  EXPECT_NE(rig.refusal("/v1/completions", with(kGreedy, {{"n", 2}, {"prompt", {"a", "b"}}}), 400, "n")
                .find("n × prompts may be 3"),
            std::string::npos);
  EXPECT_EQ(rig.ask("/v1/completions", with(kGreedy, {{"n", 3}}))->status, 200);
}

}  // namespace
}  // namespace fathom
