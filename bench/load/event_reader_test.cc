// Replies cut at every byte are read as they are read whole.
#include "load/event_reader.h"

#include <gtest/gtest.h>

#include <vector>

namespace fathom {
namespace {

struct Read {
  int status = 0;
  bool whole = false;
  std::string body;
  std::vector<std::string> events;
  bool operator==(const Read&) const = default;
};

Read read(std::string_view first, std::string_view rest) {
  Read got;
  EventReader reader([&](std::string_view event) { got.events.emplace_back(event); });
  reader.take(first);
  reader.take(rest);
  got.status = reader.status();
  got.whole = reader.whole();
  got.body = reader.body();
  return got;
}

void expect(const std::string& reply, const Read& want) {
  for (size_t cut = 0; cut <= reply.size(); ++cut) {
    const std::string_view bytes(reply);
    EXPECT_TRUE(read(bytes.substr(0, cut), bytes.substr(cut)) == want) << "cut at byte " << cut;
  }
}

TEST(EventReader, EventsInChunks) {
  expect(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
      "a\r\ndata: one\n\r\n9\r\n\n: ping\n\n\r\n7\r\ndata: t\r\n4\r\nwo\n\n\r\n0\r\n\r\n",
      {.status = 200, .whole = true, .body = "", .events = {"one", "two"}});
}

TEST(EventReader, ABodyOfALength) {
  expect("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 5\r\n\r\nabcde",
         {.status = 429, .whole = true, .body = "abcde", .events = {}});
  expect("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
         {.status = 204, .whole = true, .body = "", .events = {}});
}

TEST(EventReader, AReplyThatIsNotWhole) {
  const Read got = read("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "abc");
  EXPECT_FALSE(got.whole);
  EXPECT_EQ(read("HTTP/1.1 20", "").status, 0);
}

}  // namespace
}  // namespace fathom
