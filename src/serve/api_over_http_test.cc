// The API behind the transport, as clients meet it: several threads, streams, and clients that go.
#include <atomic>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "serve/api_rig_test.h"
#include "serve/http_rig_test.h"

namespace fathom {
namespace {

const Json kAsked{{"prompt", "Once upon a time"}, {"max_tokens", 12}, {"temperature", 0}};

std::string text_of(const TestResponse& response, bool streamed) {
  if (!streamed) return Json::parse(response.body)["choices"][0]["text"];
  FakeReply events;
  events.body = response.body;
  std::string text;
  for (const Json& chunk : events.chunks()) text += chunk["choices"][0]["text"];
  return text;
}

TEST(ApiOverHttp, ManyClientsAtOnce) {
  StoryApi rig;
  const std::string want = rig.complete_text(kAsked)["choices"][0]["text"];
  HttpRig http({}, [&](HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
    rig.api->handle(std::move(request), reply);
  });
  std::atomic<int> right = 0;
  const auto ask = [&](int first) {
    for (int i = 0; i < 8; ++i) {
      const bool streamed = (first + i) % 2 == 0;
      TestClient client(http.port());
      client.send(http_post("/v1/completions", with(kAsked, {{"stream", streamed}}).dump()));
      if (i % 4 == 3) continue;  // goes before the reply
      const TestResponse response = client.response();
      right += response.status == 200 && response.whole && text_of(response, streamed) == want;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(ask, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 4 * 6);
  EXPECT_TRUE(soon([&] { return rig.api->active() == 0; }));
  http.server->stop();
  rig.wait_until_idle();
  EXPECT_EQ(rig.engine->stats().running + rig.engine->stats().waiting, 0);
}

// One request after the other on one connection: the next one is sent when the last one's end is seen.
TEST(ApiOverHttp, OneAfterTheOtherIsNever429) {
  ApiOptions options;
  options.parallel = 2;
  options.queue = 0;
  BatcherOptions batcher;
  batcher.waiting = 0;
  StoryApi rig(options, batcher, 2);
  HttpRig http({}, [&](HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
    rig.api->handle(std::move(request), reply);
  });
  TestClient client(http.port());
  const std::string asked =
      http_post("/v1/completions", Json{{"prompt", "Once"}, {"max_tokens", 1}, {"n", 2}}.dump());
  for (int i = 0; i < 300; ++i) {
    client.send(asked);
    ASSERT_EQ(client.response().status, 200) << "request " << i;
  }
  http.server->stop();
}

// Some clients know no event of an error: what they see is the end.
TEST(ApiOverHttp, ABrokenStreamEndsItsConnection) {
  StoryApi rig;
  rig.served.masks.any_object = [] { return [] { return std::make_unique<MaskWithoutMemory>(); }; };
  rig.api->serve(rig.served);
  HttpRig http({}, [&](HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
    rig.api->handle(std::move(request), reply);
  });
  const Json streamed = with(kAsked, {{"stream", true}});
  TestClient well(http.port()), broken(http.port());
  broken.send(
      http_post("/v1/completions", with(streamed, {{"response_format", {{"type", "json_object"}}}}).dump()));
  const TestResponse response = broken.response();
  EXPECT_EQ(response.status, 200);
  EXPECT_TRUE(response.whole);
  EXPECT_NE(response.body.find(R"(data: {"error":)"), std::string::npos) << response.body;
  EXPECT_NE(response.body.find("out of memory"), std::string::npos) << response.body;
  EXPECT_TRUE(broken.ends());
  for (int i = 0; i < 2; ++i) {  // on one connection
    well.send(http_post("/v1/completions", streamed.dump()));
    EXPECT_EQ(well.response().status, 200);
  }
  http.server->stop();
}

TEST(ApiOverHttp, ReadersThatStoppedHoldNobodyUp) {
  constexpr int64_t kPlaces = 2;
  ApiOptions options;
  options.parallel = kPlaces;
  options.unsent_bytes = 16 << 10;
  options.names = {std::string(64 << 10, 'm')};  // in every event: a few of them fill the sockets' buffers
  BatcherOptions batcher;
  batcher.tokens_ahead = 4;
  StoryApi rig(options, batcher, kPlaces);
  const std::string want = rig.complete_text(kAsked)["choices"][0]["text"];
  HttpServerOptions patient;
  patient.stall_time = std::chrono::milliseconds(10 * kPatience);
  HttpRig http(patient, [&](HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
    rig.api->handle(std::move(request), reply);
  });
  const Json endless = with(kAsked, {{"max_tokens", 240}, {"ignore_eos", true}, {"stream", true}});
  std::vector<std::unique_ptr<TestClient>> stopped;
  for (int64_t i = 0; i < kPlaces; ++i) {
    stopped.push_back(std::make_unique<TestClient>(http.port(), 4096));
    stopped.back()->send(http_post("/v1/completions", endless.dump()));
  }
  int quiet = 0;  // looks that found all of them paused; an answer may also pause for a moment
  ASSERT_TRUE(soon([&] {
    quiet = rig.engine->stats().paused == kPlaces ? quiet + 1 : 0;
    return quiet > 20;
  }));
  TestClient other(http.port());
  other.send(http_post("/v1/completions", kAsked.dump()));
  EXPECT_EQ(text_of(other.response(), false), want);
  EXPECT_EQ(rig.api->active(), kPlaces);  // they were not dropped for it
  stopped.clear();
  EXPECT_TRUE(soon([&] { return rig.api->active() == 0; }));
  http.server->stop();
}

TEST(ApiOverHttp, AClientsIdComesBack) {
  StoryApi rig;
  HttpServerOptions options;
  options.limits.body_bytes = 100;
  HttpRig http(options, [&](HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
    rig.api->handle(std::move(request), reply);
  });
  const auto id_of = [&](const std::string& id, const std::string& host = "localhost") {
    TestClient client(http.port());
    client.send("GET /version HTTP/1.1\r\nHost: " + host + "\r\nX-Request-Id: " + id + "\r\n\r\n");
    const TestResponse response = client.response();
    const auto at = response.headers.find("x-request-id");
    return at == response.headers.end() ? "none" : at->second;
  };
  EXPECT_EQ(id_of("0f3c-mine"), "0f3c-mine");
  EXPECT_EQ(id_of("two words"), "two words");
  for (const std::string& bad : {std::string(129, 'x'), std::string("\xc3\xa4"), std::string()})
    EXPECT_TRUE(id_of(bad).starts_with("req-")) << bad;
  EXPECT_EQ(id_of("mine", "evil.example"), "mine");  // of a refusal
  http.server->stop();
}

}  // namespace
}  // namespace fathom
