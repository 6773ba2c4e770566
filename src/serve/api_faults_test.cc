// What goes wrong: a server that ends or is full, deadlines, clients that go or stop reading, answers that
// end alone.
#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "serve/api_rig_test.h"

namespace fathom {
namespace {

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

// Seconds that no deadline can hold are the most that one can.
TEST(Api, AnEndlessTimeoutIsNoTimeout) {
  ApiOptions options;
  options.limits.timeout_seconds = 1e10;
  StoryApi rig(options);
  EXPECT_EQ(rig.ask("/v1/completions", kGreedy)->status, 200);
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

// Breaks its own answer's logits.
class Broken final : public TokenMask {
 public:
  void forbid(std::span<float> logits) override { logits[3] = NAN; }
  void accept(int32_t) override {}
  void rollback(int64_t) override {}
};

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

}  // namespace
}  // namespace fathom
