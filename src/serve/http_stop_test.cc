// How a server ends: with its replies, or at once; and what is left of it.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "serve/http_rig_test.h"
#include "serve/http_server.h"

namespace fathom {
namespace {

using namespace std::chrono_literals;

size_t entries(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

TEST(HttpStop, DrainLetsRepliesFinish) {
  HttpRig rig;
  TestClient whole(rig.port()), streamed(rig.port()), idle(rig.port());
  idle.send(http_get("/echo"));
  EXPECT_EQ(idle.response().status, 200);
  whole.send(http_get("/wait"));
  const auto first = rig.reply(0);
  streamed.send(http_get("/wait"));
  const auto second = rig.reply(1);
  second->begin(200, "text/plain", "");
  second->write("half ");
  std::thread draining([&] { rig.server->drain(std::chrono::milliseconds(kPatience)); });
  EXPECT_TRUE(idle.ends());  // no request is under way there
  EXPECT_TRUE(soon([&] { return !TestClient(rig.port()).connected(); }));
  first->send(200, "text/plain", "whole");
  second->write("other half");
  second->end();
  const TestResponse response = whole.response();
  EXPECT_EQ(response.body, "whole");
  EXPECT_EQ(response.headers.at("connection"), "close");
  EXPECT_EQ(streamed.response().body, "half other half");
  whole.close();
  streamed.close();
  draining.join();
  EXPECT_EQ(rig.server->connections(), 0u);
}

TEST(HttpStop, DrainEndsAtItsBound) {
  HttpRig rig;
  TestClient client(rig.port());
  client.send(http_get("/wait"));
  const auto reply = rig.reply();
  HttpEvent gone;
  reply->on_gone([&] { gone.happen(); });
  rig.server->drain(50ms);
  EXPECT_EQ(gone.times(), 1);
  EXPECT_TRUE(client.ends());
  EXPECT_EQ(rig.server->connections(), 0u);
}

// A request that is half there would be refused when it is whole: it does not hold the server up.
TEST(HttpStop, ADrainWaitsForNoHalfRequest) {
  HttpRig rig;
  TestClient head(rig.port()), body(rig.port());
  head.send("POST /ec");
  body.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
      "9\r\n\r\n{");
  EXPECT_TRUE(soon([&] { return rig.server->connections() == 2; }));
  std::this_thread::sleep_for(30ms);  // what was sent has been read
  std::thread draining([&] { rig.server->drain(std::chrono::hours(1)); });
  for (TestClient* client : {&head, &body}) {
    EXPECT_EQ(client->response().status, 408);
    EXPECT_TRUE(client->ends());
  }
  draining.join();
}

TEST(HttpStop, StopCutsADrainShort) {
  HttpRig rig;
  TestClient client(rig.port());
  client.send(http_get("/wait"));
  const auto reply = rig.reply();
  HttpEvent gone;
  reply->on_gone([&] { gone.happen(); });
  std::thread draining([&] { rig.server->drain(std::chrono::hours(1)); });
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(gone.times(), 0);
  rig.server->stop();
  draining.join();
  EXPECT_EQ(gone.times(), 1);
  EXPECT_TRUE(client.ends());
}

TEST(HttpStop, RepliesOutliveTheServer) {
  std::shared_ptr<HttpReply> reply;
  {
    HttpRig rig;
    TestClient client(rig.port());
    client.send(http_get("/wait"));
    reply = rig.reply();
    reply->begin(200, "text/plain", "");
  }
  reply->write("x");
  reply->post([] { FAIL() << "the server's threads have ended"; });
  bool told = false;
  reply->on_gone([&] { told = true; });
  EXPECT_TRUE(told);
  reply->end();
  EXPECT_EQ(reply->unsent(), 0u);
}

TEST(HttpStop, WritersMayGoOnWhileTheServerStops) {
  for (int round = 0; round < 10; ++round) {
    HttpRig rig;
    TestClient client(rig.port());
    client.send(http_get("/stream"));
    const auto reply = rig.reply();
    reply->begin(200, "text/plain", "");
    HttpEvent gone;
    reply->on_gone([&] { gone.happen(); });
    std::thread writer([&] {
      while (gone.times() == 0) {
        reply->write("piece");
        reply->post([] {});
      }
    });
    client.until("piece");
    rig.server->stop();
    writer.join();
  }
}

TEST(HttpStop, NothingIsLeft) {
  HttpRig warm;  // what the libraries make once and keep
  const size_t sockets = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  for (int round = 0; round < 3; ++round) {
    HttpRig rig;
    TestClient answered(rig.port()), waiting(rig.port()), streaming(rig.port()), begun(rig.port()),
        silent(rig.port());
    answered.send(http_get("/echo"));
    EXPECT_EQ(answered.response().status, 200);
    waiting.send(http_get("/wait"));
    rig.reply(0);
    streaming.send(http_get("/wait"));
    rig.reply(1)->begin(200, "text/plain", "");
    begun.send("POST /");
    EXPECT_GT(entries("/proc/self/task"), threads);
    EXPECT_GT(entries("/proc/self/fd"), sockets + 5);
  }
  EXPECT_EQ(entries("/proc/self/fd"), sockets);
  // A thread that has been joined stays in the list for a moment.
  EXPECT_TRUE(soon([&] { return entries("/proc/self/task") <= threads; }));
}

TEST(HttpStop, ClosedConnectionsAreForgotten) {
  HttpRig rig;
  { TestClient(rig.port()).send(http_get("/echo")); }
  EXPECT_TRUE(soon([&] { return rig.server->connections() == 0; }));
  const size_t sockets = entries("/proc/self/fd");
  for (int i = 0; i < 50; ++i) {
    TestClient client(rig.port());
    client.send(i % 2 ? http_get("/echo") : http_get("/wait"));
    if (i % 2) client.response();
  }
  EXPECT_TRUE(soon([&] { return rig.server->connections() == 0; }));
  rig.let_go();
  EXPECT_TRUE(soon([&] { return entries("/proc/self/fd") <= sockets; }));
}

TEST(HttpStop, StopsTwiceAndWithoutAStart) {
  HttpServer server({.port = 0}, [](HttpRequest, std::shared_ptr<HttpReply>) {});
  server.stop();
  HttpRig rig;
  rig.server->stop();
  rig.server->stop();
  rig.server->drain(1s);
}

}  // namespace
}  // namespace fathom
