// What a server does to clients that take too much: time, connections, memory.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "serve/http_rig_test.h"
#include "serve/http_server.h"

namespace fathom {
namespace {

using namespace std::chrono_literals;

const std::string kJson = "Host: localhost\r\nContent-Type: application/json\r\n";

// A reply in pieces whose reader does not read: 64 KiB are written whenever the socket has taken the last
// ones.
void write_for_ever(const std::shared_ptr<HttpReply>& reply) {
  reply->begin(200, "text/plain", "");
  reply->on_sent([weak = std::weak_ptr(reply)] {
    if (const auto held = weak.lock()) held->write(std::string(64 << 10, 'x'));
  });
  reply->write(std::string(64 << 10, 'x'));
}

TEST(HttpLimits, ASlowRequestIsDropped) {
  HttpServerOptions options;
  options.request_time = 500ms;
  HttpRig rig(options);
  const std::string post = "POST /echo HTTP/1.1\r\n" + kJson;
  const std::string requests[] = {"G", "POST / HTTP/1.1\r\nHost: l", post + "Content-Length: 9\r\n\r\nabc",
                                  post + "Transfer-Encoding: chunked\r\n\r\n3\r\n"};
  std::vector<std::unique_ptr<TestClient>> clients;
  for (const std::string& begun : requests) {
    clients.push_back(std::make_unique<TestClient>(rig.port()));
    clients.back()->send(begun);
  }
  for (const auto& client : clients) {
    EXPECT_EQ(client->response().status, 408);
    EXPECT_TRUE(client->ends());
  }
}

// Bytes that trickle in do not lengthen the time.
TEST(HttpLimits, ATricklingRequestIsDropped) {
  HttpServerOptions options;
  options.request_time = 500ms;
  HttpRig rig(options);
  TestClient client(rig.port());
  std::atomic<bool> over = false;
  std::thread trickle([&] {
    client.send("GET /");
    while (!over && client.send("x")) std::this_thread::sleep_for(10ms);
  });
  EXPECT_EQ(client.response().status, 408);
  over = true;
  trickle.join();
}

TEST(HttpLimits, ASecondRequestHasItsTimeToo) {
  HttpServerOptions options;
  options.request_time = 500ms;
  HttpRig rig(options);
  TestClient client(rig.port());
  client.send(http_get("/echo"));
  EXPECT_EQ(client.response().status, 200);
  client.send("GET");
  EXPECT_EQ(client.response().status, 408);
}

TEST(HttpLimits, IdleConnectionsAreClosed) {
  HttpServerOptions options;
  options.request_time = 60s;
  options.idle_time = 50ms;
  HttpRig rig(options);
  TestClient client(rig.port());
  client.send(http_get("/echo"));
  EXPECT_EQ(client.response().status, 200);
  EXPECT_TRUE(client.ends());
}

TEST(HttpLimits, AConnectionWithoutARequestIsClosed) {
  HttpServerOptions options;
  options.request_time = 50ms;
  HttpRig rig(options);
  TestClient client(rig.port());
  EXPECT_EQ(client.response().status, 0);
  EXPECT_TRUE(client.ends());
}

// The handler may take as long as it likes.
TEST(HttpLimits, NoTimeEndsAReplyThatIsAwaited) {
  HttpServerOptions options;
  options.request_time = options.idle_time = options.stall_time = options.ping_time = 30ms;
  HttpRig rig(options);
  TestClient client(rig.port());
  client.send(http_get("/wait"));
  const auto reply = rig.reply();
  EXPECT_FALSE(client.receive(200));
  reply->send(200, "text/plain", "late");
  EXPECT_EQ(client.response().body, "late");
}

TEST(HttpLimits, QuietStreamsArePinged) {
  HttpServerOptions options;
  options.ping_time = 30ms;
  HttpRig rig(options);
  TestClient client(rig.port());
  client.send(http_get("/stream"));
  const auto reply = rig.reply();
  reply->begin(200, "text/event-stream", ": ping\n\n");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client.until(": ping\n\n\r\n").ends_with(": ping\n\n\r\n"));
  reply->write("data: 1\n\n");
  EXPECT_TRUE(client.until("data: 1").ends_with("data: 1"));
  EXPECT_TRUE(client.until(": ping").ends_with(": ping"));
  reply->end();
  EXPECT_TRUE(client.until("0\r\n\r\n").ends_with("0\r\n\r\n"));
}

TEST(HttpLimits, NoPingWithoutItsText) {
  HttpServerOptions options;
  options.ping_time = 10ms;
  HttpRig rig(options);
  TestClient client(rig.port());
  client.send(http_get("/stream"));
  const auto reply = rig.reply();
  reply->begin(200, "text/plain", "");
  client.until("\r\n\r\n");
  EXPECT_FALSE(client.receive(100));
}

TEST(HttpLimits, ConnectionsBeyondTheLimitAreTold) {
  HttpServerOptions options;
  options.connections = 2;
  HttpRig rig(options);
  TestClient first(rig.port()), second(rig.port());
  for (TestClient* client : {&first, &second}) {
    client->send(http_get("/echo"));
    EXPECT_EQ(client->response().status, 200);
  }
  {
    TestClient third(rig.port());
    const TestResponse response = third.response();
    EXPECT_EQ(response.status, 503);
    EXPECT_NE(response.body.find("too_many_connections"), std::string::npos);
    EXPECT_TRUE(third.ends());
  }
  first.send(http_get("/echo"));
  EXPECT_EQ(first.response().status, 200);
  second.close();
  EXPECT_TRUE(soon([&] { return rig.server->connections() <= 1; }));
  TestClient fourth(rig.port());
  fourth.send(http_get("/echo"));
  EXPECT_EQ(fourth.response().status, 200);
}

TEST(HttpLimits, AFloodOfConnectionsIsClosed) {
  HttpServerOptions options;
  options.connections = 1;
  HttpRig rig(options);
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 100; ++i) clients.push_back(std::make_unique<TestClient>(rig.port()));
  EXPECT_TRUE(clients.back()->ends());
  EXPECT_LE(rig.server->connections(), 65u);
}

TEST(HttpLimits, HeadsAndBodiesAreBounded) {
  HttpServerOptions options;
  options.limits = {.header_bytes = 300, .headers = 5, .body_bytes = 10};
  HttpRig rig(options);
  const auto ask = [&](const std::string& bytes) {
    TestClient client(rig.port());
    client.send(bytes);
    const int status = client.response().status;
    EXPECT_TRUE(status == 200 || client.ends());
    return status;
  };
  const std::string post = "POST /echo HTTP/1.1\r\n" + kJson;
  EXPECT_EQ(ask(http_post("/echo", std::string(10, 'x'))), 200);
  EXPECT_EQ(ask(http_post("/echo", std::string(11, 'x'))), 413);
  EXPECT_EQ(ask(post + "Transfer-Encoding: chunked\r\n\r\n9\r\n123456789\r\n2\r\n"), 413);
  EXPECT_EQ(ask(post + "X: " + std::string(300, 'x') + "\r\n\r\n"), 431);
  EXPECT_EQ(ask(post + "A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\n\r\n"), 431);
}

TEST(HttpLimits, BodiesAreBoundedTogether) {
  HttpServerOptions options;
  options.all_bodies = 1000;
  HttpRig rig(options);
  const std::string head = "POST /echo HTTP/1.1\r\n" + kJson + "Content-Length: 700\r\n\r\n";
  for (int round = 0; round < 3; ++round) {
    TestClient one(rig.port()), two(rig.port());
    one.send(head + std::string(600, 'x'));
    two.send(head + std::string(600, 'x'));
    bool first = false, second = false;
    EXPECT_TRUE(soon([&] { return (first = one.receive(1)) || (second = two.receive(1)); }));
    const TestResponse refused = (first ? one : two).response();
    EXPECT_EQ(refused.status, 503);
    EXPECT_NE(refused.body.find("too_many_bytes"), std::string::npos);
    TestClient& other = first ? two : one;
    other.send(std::string(100, 'x'));
    EXPECT_EQ(other.response().status, 200);
  }
  // A client that goes with half a body leaves nothing behind.
  const auto connections = [&](size_t count) {
    return soon([&] { return rig.server->connections() == count; });
  };
  EXPECT_TRUE(connections(0));
  {
    TestClient half(rig.port());
    half.send(head + std::string(600, 'x'));
    EXPECT_TRUE(connections(1));
  }
  EXPECT_TRUE(connections(0));
  TestClient last(rig.port());
  last.send(http_post("/echo", std::string(900, 'x')));
  EXPECT_EQ(last.response().status, 200);
}

TEST(HttpLimits, AReaderThatStopsIsPausedThenDropped) {
  HttpServerOptions options;
  options.stall_time = 1s;
  HttpRig rig(options);
  TestClient stopped(rig.port(), 4096);
  stopped.send(http_get("/stream"));
  const auto reply = rig.reply();
  HttpEvent gone;
  reply->on_gone([&] { gone.happen(); });
  write_for_ever(reply);
  EXPECT_TRUE(soon([&] { return reply->unsent() > 0; }));
  // Others go on.
  TestClient other(rig.port());
  for (int i = 0; i < 20; ++i) {
    other.send(http_get("/echo"));
    EXPECT_EQ(other.response().status, 200);
  }
  EXPECT_TRUE(gone.wait());
  EXPECT_EQ(reply->unsent(), 0u);
  other.send(http_get("/echo"));
  EXPECT_EQ(other.response().status, 200);
}

TEST(HttpLimits, AReaderThatGoesOnInTimeIsKept) {
  HttpServerOptions options;
  options.stall_time = 10s;
  HttpRig rig(options);
  TestClient client(rig.port(), 4096);
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const auto reply = rig.reply();
  reply->begin(200, "text/plain", "");
  const std::string piece(8 << 20, 'x');
  reply->write(piece);
  HttpEvent sent;
  reply->on_sent([&] { sent.happen(); });
  std::this_thread::sleep_for(50ms);
  EXPECT_GT(reply->unsent(), 0u);
  EXPECT_EQ(sent.times(), 0);
  reply->end();
  const TestResponse response = client.response();
  EXPECT_TRUE(response.whole);
  EXPECT_EQ(response.body.size(), piece.size());
  EXPECT_TRUE(sent.wait());
}

TEST(HttpLimits, WhatWaitsForAReaderIsBounded) {
  HttpServerOptions options;
  options.most_unsent = 8 << 20;
  HttpRig rig(options);
  TestClient client(rig.port(), 4096);
  client.send(http_get("/stream"));
  const auto reply = rig.reply();
  HttpEvent gone;
  reply->on_gone([&] { gone.happen(); });
  reply->begin(200, "text/plain", "");
  for (int i = 0; i < 200 && gone.times() == 0; ++i) reply->write(std::string(100'000, 'x'));
  EXPECT_TRUE(gone.wait());
  EXPECT_EQ(reply->unsent(), 0u);
}

// What the handler never sees is told all the same.
TEST(HttpLimits, RefusalsAreTold) {
  std::mutex mutex;
  std::vector<HttpRefusal> told;
  HttpServerOptions options;
  options.port = 0;
  options.limits.body_bytes = 10;
  HttpServer server(
      options,
      [](HttpRequest, const std::shared_ptr<HttpReply>& reply) { reply->send(200, "text/plain", ""); },
      [&](const HttpRefusal& refusal) {
        const std::lock_guard lock(mutex);
        told.push_back(refusal);
      });
  server.start();
  for (const std::string& bytes :
       {http_get("/well"), std::string("GET /evil HTTP/1.1\r\nHost: evil.com\r\n\r\n"),
        http_post("/large", std::string(11, 'x')), std::string("nonsense\r\n\r\n")}) {
    TestClient client(server.port());
    client.send(bytes);
    EXPECT_NE(client.response().status, 0);
  }
  server.stop();
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[0].status, 403);
  EXPECT_EQ(told[0].method, "GET");
  EXPECT_EQ(told[0].path, "/evil");
  EXPECT_FALSE(told[0].message.empty());
  EXPECT_EQ(told[1].status, 413);
  EXPECT_EQ(told[2].status, 400);
  EXPECT_EQ(told[2].path, "");
}

}  // namespace
}  // namespace fathom
