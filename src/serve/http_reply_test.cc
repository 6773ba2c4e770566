#include "serve/http_reply.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "serve/http_status.h"

namespace fathom {
namespace {

struct Written {
  explicit Written(ReplyForm form = {}) {
    form.most_unsent = 1000;
    reply = std::make_unique<ServerReply>(
        form, [this] { ++wakes; }, [](const std::function<void()>& call) { call(); });
  }
  // The bytes without the Date.
  std::string take() {
    std::string text = reply->take();
    const size_t date = text.find("Date: ");
    if (date != std::string::npos) text.erase(date, text.find("\r\n", date) + 2 - date);
    return text;
  }
  int wakes = 0;
  std::unique_ptr<ServerReply> reply;
};

TEST(HttpReply, IsWrittenAsHttp) {
  Written whole;
  whole.reply->send(200, "text/plain", "body", {{"X-Y", "z"}});
  EXPECT_EQ(whole.take(),
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Type: text/plain\r\nX-Content-Type-Options: "
            "nosniff\r\n"
            "X-Y: z\r\n\r\nbody");
  EXPECT_TRUE(whole.reply->whole());

  Written pieces;
  pieces.reply->begin(200, "text/plain", "ping");
  pieces.reply->write("0123456789abcdef!");
  pieces.reply->end();
  EXPECT_TRUE(
      pieces.take().ends_with("Transfer-Encoding: chunked\r\nContent-Type: text/plain\r\n"
                              "X-Content-Type-Options: nosniff\r\n\r\n11\r\n0123456789abcdef!\r\n0\r\n\r\n"));
  EXPECT_TRUE(pieces.reply->keep_alive());

  Written old({.minor = 0, .keep_alive = true});
  old.reply->begin(200, "", "");
  old.reply->write("raw");
  old.reply->end();
  EXPECT_TRUE(old.take().ends_with("Connection: close\r\n\r\nraw"));
  EXPECT_FALSE(old.reply->keep_alive());
}

TEST(HttpReply, CountsWhatIsUnsent) {
  Written written;
  int sent = 0;
  written.reply->on_sent([&] { ++sent; });
  written.reply->begin(200, "", "");
  const size_t head = written.reply->unsent();
  EXPECT_GT(head, 0u);
  EXPECT_EQ(written.reply->take().size(), head);
  EXPECT_EQ(written.reply->unsent(), head);
  written.reply->write("abc");
  written.reply->sent(head);
  EXPECT_EQ(sent, 0);
  EXPECT_EQ(written.reply->unsent(), 8u);
  written.reply->take();
  written.reply->sent(5);
  EXPECT_EQ(written.reply->unsent(), 3u);
  written.reply->sent(3);
  EXPECT_EQ(sent, 1);
}

TEST(HttpReply, WakesOnceUntilItIsTaken) {
  Written written;
  written.reply->begin(200, "", "");
  written.reply->write("a");
  written.reply->write("b");
  EXPECT_EQ(written.wakes, 1);
  written.reply->take();
  written.reply->write("c");
  written.reply->write("d");
  EXPECT_EQ(written.wakes, 2);
  written.reply->write(std::string(2000, 'x'));  // too much: the connection must know at once
  EXPECT_EQ(written.wakes, 3);
  EXPECT_TRUE(written.reply->broken());
}

TEST(HttpReply, PingsOnlyWhatIsQuiet) {
  Written written;
  written.reply->ping();
  EXPECT_EQ(written.reply->unsent(), 0u);
  written.reply->begin(200, "", "ping");
  const size_t head = written.reply->unsent();
  written.reply->ping();
  EXPECT_EQ(written.reply->unsent(), head);
  written.reply->take();
  written.reply->sent(head);
  written.reply->ping();
  EXPECT_EQ(written.take(), "4\r\nping\r\n");
  written.reply->sent(9);
  written.reply->end();
  written.take();
  written.reply->sent(5);
  written.reply->ping();
  EXPECT_EQ(written.take(), "");
}

TEST(HttpReply, CallsMayCallBack) {
  Written written;
  written.reply->begin(200, "", "");
  written.reply->on_gone([&] {
    written.reply->write("x");
    written.reply->end();
    written.reply->on_gone([] {});
    EXPECT_EQ(written.reply->unsent(), 0u);
  });
  written.reply->gone();
  EXPECT_EQ(written.take(), "");
}

TEST(HttpReply, AWholeOneHasNoNewsOfItsClient) {
  Written written;
  int told = 0;
  written.reply->on_gone([&] { ++told; });
  written.reply->send(200, "", "body");
  written.reply->gone();
  written.reply->on_gone([&] { ++told; });
  EXPECT_EQ(told, 0);
  EXPECT_EQ(written.reply->unsent(), 0u);
}

TEST(HttpStatus, ErrorsAreOpenAis) {
  EXPECT_EQ(
      error_object(401, "no \"key\"\n", "invalid_api_key"),
      R"({"error":{"message":"no \"key\"\n","type":"invalid_request_error","param":null,"code":"invalid_api_key"}})");
  EXPECT_EQ(
      error_object(503, "\xff", ""),
      "{\"error\":{\"message\":\"\xef\xbf\xbd\",\"type\":\"server_error\",\"param\":null,\"code\":null}}");
}

TEST(HttpStatus, NoValueBeginsAHeader) {
  const std::string head = reply_head(200, {{"X", "a\r\nEvil: b\x7f"}});
  EXPECT_TRUE(head.ends_with("X: a  Evil: b \r\n"));
}

}  // namespace
}  // namespace fathom
