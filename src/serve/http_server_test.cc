#include "serve/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "serve/http_loop.h"
#include "serve/http_rig_test.h"

namespace fathom {
namespace {

TEST(HttpServer, AnswersAndKeepsTheConnection) {
  HttpRig rig;
  TestClient client(rig.port());
  for (int i = 0; i < 3; ++i) {
    client.send(http_get("/echo?n=" + std::to_string(i)));
    const TestResponse response = client.response();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "GET n=" + std::to_string(i) + " ");
    EXPECT_EQ(response.headers.at("content-type"), "text/plain");
    EXPECT_FALSE(response.headers.contains("connection"));
    EXPECT_TRUE(response.headers.contains("date"));
  }
  client.send("GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const TestResponse last = client.response();
  EXPECT_EQ(last.headers.at("connection"), "close");
  EXPECT_TRUE(client.ends());
}

TEST(HttpServer, AnswersPipelinedRequestsInTheirOrder) {
  HttpRig rig;
  TestClient client(rig.port());
  client.send(http_get("/wait") + http_post("/echo", "second") + http_get("/echo?third"));
  const auto reply = rig.reply();
  EXPECT_FALSE(client.receive(50));
  reply->send(200, "text/plain", "first");
  EXPECT_EQ(client.response().body, "first");
  EXPECT_EQ(client.response().body, "POST  second");
  EXPECT_EQ(client.response().body, "GET third ");
}

TEST(HttpServer, StreamsInChunks) {
  HttpRig rig;
  TestClient client(rig.port());
  client.send(http_post("/stream", "{}"));
  const auto reply = rig.reply();
  reply->begin(200, "text/event-stream", ": ping\n\n", {{"X-Id", "a\r\nb"}});
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    const std::string piece = "data: " + std::to_string(i) + "\n\n";
    expected += piece;
    reply->write(piece);
    reply->write("");
  }
  reply->end();
  const TestResponse response = client.response();
  EXPECT_EQ(response.headers.at("transfer-encoding"), "chunked");
  EXPECT_EQ(response.headers.at("x-id"), "a  b");
  EXPECT_TRUE(response.whole);
  EXPECT_EQ(response.body, expected);
  client.send(http_post("/echo", "again"));
  EXPECT_EQ(client.response().body, "POST  again");
}

TEST(HttpServer, PiecesComeAsTheyAreWritten) {
  HttpRig rig;
  TestClient client(rig.port());
  client.send(http_get("/stream"));
  const auto reply = rig.reply();
  reply->begin(200, "text/plain", "");
  for (const char* piece : {"one", "two", "three"}) {
    HttpEvent sent;
    reply->on_sent([&] { sent.happen(); });
    reply->write(piece);
    EXPECT_TRUE(client.until(piece).ends_with(piece));
    EXPECT_TRUE(sent.wait());
    EXPECT_EQ(reply->unsent(), 0u);
    reply->on_sent(nullptr);
  }
}

TEST(HttpServer, ReadsChunkedBodies) {
  HttpRig rig;
  TestClient client(rig.port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
  EXPECT_FALSE(client.receive(20));
  client.send("2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.response().body, "POST  abcde");
  client.send(http_get("/echo?next"));
  EXPECT_EQ(client.response().body, "GET next ");
}

TEST(HttpServer, ReadsAndWritesLargeBodies) {
  HttpServerOptions options;
  options.limits.body_bytes = 16 << 20;
  HttpRig rig(options);
  TestClient client(rig.port());
  std::string body(8 << 20, 'x');
  for (size_t i = 0; i < body.size(); i += 97) body[i] = static_cast<char>('a' + i % 23);
  client.send(http_post("/echo", body));
  const TestResponse response = client.response();
  EXPECT_TRUE(response.whole);
  EXPECT_TRUE(response.body == "POST  " + body);
}

TEST(HttpServer, SendsContinueWhenAskedTo) {
  HttpRig rig;
  TestClient client(rig.port());
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n";
  client.send(head + "Content-Length: 3\r\n\r\n");
  EXPECT_EQ(client.response().status, 100);
  client.send("abc");
  EXPECT_EQ(client.response().body, "POST  abc");
  // A body that is not wanted is not asked for.
  client.send(head + "Content-Length: 999999999\r\n\r\n");
  EXPECT_EQ(client.response().status, 413);
  EXPECT_TRUE(client.ends());
}

TEST(HttpServer, SpeaksHttp10) {
  HttpRig rig;
  {
    TestClient client(rig.port());
    client.send("GET /echo?a HTTP/1.0\r\n\r\n");
    const TestResponse response = client.response();
    EXPECT_EQ(response.body, "GET a ");
    EXPECT_EQ(response.headers.at("connection"), "close");
    EXPECT_TRUE(client.ends());
  }
  {
    TestClient client(rig.port());
    client.send("GET /echo?a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(client.response().headers.at("connection"), "keep-alive");
    client.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    const auto reply = rig.reply();
    reply->begin(200, "text/plain", "");
    reply->write("one ");
    reply->write("two");
    reply->end();
    const TestResponse response = client.response();
    EXPECT_FALSE(response.headers.contains("transfer-encoding"));
    EXPECT_EQ(response.headers.at("connection"), "close");
    EXPECT_EQ(response.body, "one two");
    EXPECT_TRUE(response.whole);
  }
}

// Such a reply is whole, and what the client has sent behind its request is not answered.
TEST(HttpServer, AStreamMayEndItsConnection) {
  HttpRig rig;
  TestClient client(rig.port());
  client.send(http_get("/stream") + http_get("/echo"));
  const auto reply = rig.reply();
  reply->begin(200, "text/plain", "");
  reply->write("an error");
  reply->end(true);
  const TestResponse response = client.response();
  EXPECT_TRUE(response.whole);
  EXPECT_EQ(response.body, "an error");
  EXPECT_EQ(client.response().status, 0);
  EXPECT_TRUE(client.ends());
}

TEST(HttpServer, AnswersHeadAndOptions) {
  HttpRig rig;
  TestClient client(rig.port());
  client.send("HEAD /echo?a HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const TestResponse head = client.response(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "6");
  client.send("HEAD /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto reply = rig.reply();
  reply->begin(200, "text/plain", "ping");
  reply->write("piece");
  reply->end();
  EXPECT_EQ(client.response(true).status, 200);
  client.send("OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const TestResponse options = client.response();
  EXPECT_EQ(options.status, 204);
  EXPECT_TRUE(options.headers.contains("allow"));
  EXPECT_FALSE(options.headers.contains("content-length"));
  client.send(http_get("/echo"));
  EXPECT_EQ(client.response().body, "GET  ");
}

TEST(HttpServer, TellsWhenTheClientGoes) {
  for (const bool streaming : {false, true}) {
    HttpRig rig;
    TestClient client(rig.port());
    client.send(http_post("/wait", "{}"));
    const auto reply = rig.reply();
    HttpEvent gone;
    reply->on_gone([&] { gone.happen(); });
    if (streaming) reply->begin(200, "text/plain", "");
    client.close();
    EXPECT_TRUE(gone.wait());
    reply->write("x");
    reply->end();
    EXPECT_EQ(reply->unsent(), 0u);
    HttpEvent again;
    reply->on_gone([&] { again.happen(); });
    EXPECT_EQ(again.times(), 1);
    EXPECT_EQ(gone.times(), 1);
  }
}

// Also one that has sent more than is read ahead, as long as the socket's buffer takes it.
TEST(HttpServer, TellsWhenAClientGoesThatHasSentMore) {
  HttpRig rig;
  TestClient client(rig.port());
  client.send(http_get("/wait") + http_post("/echo", std::string(100'000, 'x')));
  const auto reply = rig.reply();
  HttpEvent gone;
  reply->on_gone([&] { gone.happen(); });
  client.close();
  EXPECT_TRUE(gone.wait());
}

TEST(HttpServer, AnswersAClientThatWritesNoMore) {
  HttpRig rig;
  TestClient client(rig.port());
  client.send(http_get("/echo?a") + http_get("/echo?b") + "GET /half");
  client.close_writing();
  EXPECT_EQ(client.response().body, "GET a ");
  EXPECT_EQ(client.response().body, "GET b ");
  EXPECT_TRUE(client.ends());
}

TEST(HttpServer, AWholeReplyHasNoNewsOfItsClient) {
  HttpRig rig;
  TestClient client(rig.port());
  client.send(http_get("/wait"));
  const auto reply = rig.reply();
  HttpEvent gone;
  reply->on_gone([&] { gone.happen(); });
  reply->send(200, "text/plain", "done");
  EXPECT_EQ(client.response().body, "done");
  client.close();
  EXPECT_TRUE(soon([&] { return rig.server->connections() == 0; }));
  EXPECT_EQ(gone.times(), 0);
}

TEST(HttpServer, BreaksOffSoThatTheClientSees) {
  for (const char* version : {"1.1", "1.0"}) {
    HttpRig rig;
    TestClient client(rig.port());
    client.send(std::string("GET /stream HTTP/") + version + "\r\nHost: localhost\r\n\r\n");
    const auto reply = rig.reply();
    HttpEvent gone;
    reply->on_gone([&] { gone.happen(); });
    reply->begin(200, "text/plain", "");
    reply->write("half");
    EXPECT_TRUE(client.until("half").ends_with("half"));
    reply->abort();
    EXPECT_TRUE(client.ends());
    EXPECT_TRUE(client.reset()) << version;
    EXPECT_EQ(gone.times(), 0);
  }
}

TEST(HttpServer, AReplyThatIsLetGoIsAnError) {
  HttpRig rig;
  TestClient client(rig.port());
  client.send(http_get("/wait"));
  rig.reply();
  rig.let_go();
  const TestResponse response = client.response();
  EXPECT_EQ(response.status, 500);
  EXPECT_NE(response.body.find("\"type\":\"server_error\""), std::string::npos);
  client.send(http_get("/stream"));
  rig.reply()->begin(200, "text/plain", "");
  client.until("\r\n\r\n");
  rig.let_go();
  EXPECT_TRUE(client.ends());
  EXPECT_TRUE(client.reset());
}

TEST(HttpServer, AHandlerThatThrowsIsAnError) {
  HttpRig rig({}, [](HttpRequest, std::shared_ptr<HttpReply>) { throw UserError("test"); });
  TestClient client(rig.port());
  for (int i = 0; i < 2; ++i) {
    client.send(http_get("/"));
    EXPECT_EQ(client.response().status, 500);
  }
}

TEST(HttpServer, PostsRunAfterTheCaller) {
  HttpRig rig;
  TestClient client(rig.port());
  client.send(http_get("/wait"));
  const auto reply = rig.reply();
  HttpEvent ran;
  reply->post([&] {
    reply->post([&] { ran.happen(); });
    EXPECT_EQ(ran.times(), 0);
  });
  EXPECT_TRUE(ran.wait());
}

TEST(HttpServer, RefusesWithOpenAisErrorObject) {
  HttpRig rig;
  TestClient client(rig.port());
  client.send("GET / HTTP/1.1\r\nHost: localhost\r\nX : y\r\n\r\n" + http_get("/smuggled"));
  const TestResponse response = client.response();
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  EXPECT_EQ(response.headers.at("connection"), "close");
  EXPECT_TRUE(response.headers.at("x-request-id").starts_with("req-"));
  EXPECT_EQ(response.body,
            R"({"error":{"message":"a header must be NAME: VALUE without spaces before the colon",)"
            R"("type":"invalid_request_error","param":null,"code":null}})");
  EXPECT_TRUE(client.ends());
  EXPECT_TRUE(rig.requests.empty());
}

// A client that is still sending reads why it was refused: the connection is not reset before.
TEST(HttpServer, ARefusalReachesAClientThatGoesOnSending) {
  HttpServerOptions options;
  options.limits.body_bytes = 1000;
  HttpRig rig(options);
  TestClient client(rig.port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
      "3000000\r\n\r\n");
  bool sent = false;
  std::thread sender([&] { sent = client.send(std::string(3'000'000, 'x')); });
  const TestResponse response = client.response();
  EXPECT_EQ(response.status, 413);
  EXPECT_TRUE(response.whole);
  EXPECT_TRUE(client.ends());
  EXPECT_FALSE(client.reset());
  sender.join();
  EXPECT_TRUE(sent);
}

TEST(HttpServer, JudgesWhoAsks) {
  HttpServerOptions options;
  options.allow_origins = {"https://chat.example"};
  options.keys = {make_api_key("anna", "secret")};
  HttpRig rig(options);
  const auto ask = [&](const std::string& more, const char* method = "GET", const char* path = "/echo") {
    TestClient client(rig.port());
    client.send(std::string(method) + " " + path + " HTTP/1.1\r\n" + more + "\r\n");
    return client.response();
  };
  const std::string key = "Authorization: Bearer secret\r\n", host = "Host: localhost\r\n";
  EXPECT_EQ(ask(host + key).status, 200);
  EXPECT_EQ(ask("Host: evil.com\r\n" + key).status, 403);
  EXPECT_EQ(ask(key).status, 400);
  EXPECT_EQ(ask(host + key + "Origin: https://evil.com\r\n").status, 403);
  EXPECT_EQ(ask(host + key + "Content-Type: text/plain\r\n", "POST").status, 415);
  const TestResponse cors = ask(host + key + "Origin: https://chat.example\r\n");
  EXPECT_EQ(cors.status, 200);
  EXPECT_EQ(cors.headers.at("access-control-allow-origin"), "https://chat.example");
  const TestResponse preflight =
      ask(host + "Origin: https://chat.example\r\nAccess-Control-Request-Method: POST\r\n", "OPTIONS");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_TRUE(preflight.headers.contains("access-control-allow-methods"));
  const TestResponse refused = ask(host);
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("www-authenticate"), "Bearer");
  EXPECT_NE(refused.body.find("\"code\":\"invalid_api_key\""), std::string::npos);
  EXPECT_EQ(ask(host, "GET", "/health").status, 200);
}

TEST(HttpServer, NamesTheKeyByItsLabel) {
  HttpServerOptions options;
  options.keys = {make_api_key("anna", "secret")};
  HttpRig rig(options);
  TestClient client(rig.port());
  client.send("GET /wait HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\r\n");
  rig.reply();
  EXPECT_EQ(rig.requests.at(0).key, "anna");
}

TEST(HttpServer, ManyClientsAtOnce) {
  HttpRig rig;
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      TestClient client(rig.port());
      for (int i = 0; i < 50; ++i) {
        const std::string text = std::to_string(t) + "/" + std::to_string(i);
        client.send(http_post("/echo?" + text, text));
        right += client.response().body == "POST " + text + " " + text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 400);
}

TEST(HttpServer, SaysWhyItCannotListen) {
  HttpRig rig;
  const auto error = [](HttpServerOptions options) -> std::string {
    try {
      HttpServer(options, [](HttpRequest, std::shared_ptr<HttpReply>) {}).start();
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(error({.port = rig.port()}),
            "cannot listen at 127.0.0.1 port " + std::to_string(rig.port()) + ": another program uses it");
  EXPECT_EQ(error({.host = "192.0.2.1", .port = 0}),
            "cannot listen at 192.0.2.1 port 0: this machine has no such address");
  EXPECT_TRUE(error({.host = "no such host", .port = 0})
                  .starts_with("cannot listen: the host no such host is not known"));
  EXPECT_EQ(error({.port = 0, .tls_certificate = "a"}),
            "TLS needs a certificate and its key; only the certificate is given");
}

TEST(HttpServer, ListensAtEveryAddressOfAName) {
  HttpServerOptions options;
  options.host = "localhost";
  HttpRig rig(options);
  TestClient client(rig.port());  // 127.0.0.1
  client.send(http_get("/echo"));
  EXPECT_EQ(client.response().status, 200);
}

TEST(HttpServer, AListenerOutlivesAFailure) {
  HttpLoop loop(1);
  std::atomic<int> calls = 0;
  HttpListener listener(loop, "127.0.0.1", 0, [&](AcceptedSocket&) {
    if (++calls == 1) throw std::bad_alloc();
  });
  for (int i = 1; i <= 2; ++i) {  // nobody takes the sockets: they are closed
    TestClient client(listener.port());
    EXPECT_TRUE(client.ends()) << i;
    EXPECT_EQ(calls, i);
  }
}

}  // namespace
}  // namespace fathom
