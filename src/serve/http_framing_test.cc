#include "serve/http_framing.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fathom {
namespace {

using namespace std::string_literals;

constexpr HttpLimits kSmall{.header_bytes = 512, .headers = 8, .body_bytes = 64};

// What a stream of bytes is read as: requests as "METHOD path|query body", then "STATUS: message" of a fault
// or "…" for a request that is not whole. The bytes come in pieces of `piece`.
std::vector<std::string> read(std::string_view bytes, size_t piece, const HttpLimits& limits = kSmall) {
  std::vector<std::string> out;
  RequestReader reader(limits);
  std::string ahead;
  while (!bytes.empty() || !ahead.empty()) {
    const size_t before = ahead.size();
    ahead += bytes.substr(0, piece);
    bytes.remove_prefix(std::min(piece, bytes.size()));
    size_t taken = 0;
    do {
      taken = reader.take(ahead);
      ahead.erase(0, taken);
      if (reader.step() == RequestReader::Step::kFault) {
        out.push_back(std::to_string(reader.fault().status) + ": " + reader.fault().message);
        return out;
      }
      if (reader.step() == RequestReader::Step::kWhole) {
        const RequestHead& head = reader.head();
        out.push_back(head.method + " " + head.path + "|" + head.query + " " + reader.take_body());
        reader.restart();
      }
    } while (taken > 0 && !ahead.empty());
    if (bytes.empty() && ahead.size() == before && taken == 0) break;
  }
  if (reader.started()) out.emplace_back("…");
  return out;
}

// The same at every size of the pieces: where the network cuts the bytes must not matter.
std::vector<std::string> read(std::string_view bytes) {
  const std::vector<std::string> whole = read(bytes, bytes.size() + 1);
  for (const size_t piece : {1, 2, 3, 5, 7, 16}) {
    EXPECT_EQ(read(bytes, piece), whole) << "pieces of " << piece << " of " << bytes;
  }
  return whole;
}

using Outcome = std::vector<std::string>;

std::string head(const std::string& more) {
  return "POST /p HTTP/1.1\r\nHost: h\r\n" + more + "\r\n";
}
std::string chunked(const std::string& body) {
  return head("Transfer-Encoding: chunked\r\n") + body;
}

TEST(HttpFraming, ReadsRequests) {
  EXPECT_EQ(read("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), Outcome{"GET /| "});
  EXPECT_EQ(read("GET /a/b%20c?x=1?y HTTP/1.1\r\nHost: h\r\n\r\n"), Outcome{"GET /a/b%20c|x=1?y "});
  EXPECT_EQ(read("GET /a? HTTP/1.0\r\n\r\n"), Outcome{"GET /a| "});
  EXPECT_EQ(read("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n"), Outcome{"OPTIONS *| "});
  EXPECT_EQ(read("GET http://h/a?b HTTP/1.1\r\nHost: H\r\n\r\n"), Outcome{"GET /a|b "});
  EXPECT_EQ(read("GET http://h?b HTTP/1.1\r\nHost: h\r\n\r\n"), Outcome{"GET /|b "});
  EXPECT_EQ(read("GET /a://b HTTP/1.1\r\nHost: h\r\n\r\n"), Outcome{"GET /a://b| "});
  EXPECT_EQ(read("\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n"), Outcome{"GET /| "});
  EXPECT_EQ(read(head("Content-Length: 5\r\n") + "a\r\n\0b"s), Outcome{"POST /p| a\r\n\0b"s});
  EXPECT_EQ(read(head("Content-Length:\t 0005 \t\r\n") + "abcde"), Outcome{"POST /p| abcde"});
  EXPECT_EQ(read(head("Content-Length: 0\r\n")), Outcome{"POST /p| "});
  EXPECT_EQ(read(head("X: \x80\xff\r\nY:\r\n")), Outcome{"POST /p| "});
}

TEST(HttpFraming, ReadsChunks) {
  EXPECT_EQ(read(chunked("3\r\nabc\r\n0\r\n\r\n")), Outcome{"POST /p| abc"});
  EXPECT_EQ(read(chunked("1\r\na\r\n00A;x=\"y\"\r\n0123456789\r\n000\r\n\r\n")),
            Outcome{"POST /p| a0123456789"});
  EXPECT_EQ(read(chunked("1\r\na\r\n0\r\nX: y\r\nContent-Length: 9\r\n\r\n")), Outcome{"POST /p| a"});
  EXPECT_EQ(read(chunked("1\r\na\r\n0\r\nTransfer-Encoding: gzip\r\n\r\n")), Outcome{"POST /p| a"});
  EXPECT_EQ(read(chunked("0\r\n\r\n")), Outcome{"POST /p| "});
  EXPECT_EQ(read(head("transfer-encoding:  CHUNKED \r\n") + "0\r\n\r\n"), Outcome{"POST /p| "});
  std::string many, text;
  for (int i = 0; i < 64; ++i) {
    many += "1\r\nx\r\n";
    text += "x";
  }
  EXPECT_EQ(read(chunked(many + "0\r\n\r\n")), Outcome{"POST /p| " + text});
}

TEST(HttpFraming, ReadsOneRequestAfterTheOther) {
  const std::string get = "GET /g HTTP/1.1\r\nHost: h\r\n\r\n";
  EXPECT_EQ(read(chunked("3\r\nabc\r\n0\r\n\r\n") + get + head("Content-Length: 2\r\n") + "xy" + get + "GE"),
            (Outcome{"POST /p| abc", "GET /g| ", "POST /p| xy", "GET /g| ", "…"}));
  EXPECT_EQ(read(get + "\r\n" + get + "\r\n\r\n" + get),
            (Outcome{"GET /g| ", "GET /g| ", "400: the request line must be METHOD TARGET HTTP/1.1"}));
}

struct Hostile {
  const char* what;
  std::string bytes;
  const char* fault;  // a part of "STATUS: message"
};

// One fault, that one, and no request before it.
void expect_fault(std::string_view bytes, const char* fault, const char* what) {
  const Outcome outcome = read(bytes);
  ASSERT_EQ(outcome.size(), 1u) << what;
  EXPECT_NE(outcome[0].find(fault), std::string::npos) << what << ": " << outcome[0];
}

// Each of these ends in a fault, and no byte of it is read as a request.
TEST(HttpFraming, RefusesWhatCanBeReadInTwoWays) {
  const std::string get = "GET / HTTP/1.1\r\nHost: h\r\n";
  const Hostile cases[] = {
      {"gzip", head("Transfer-Encoding: gzip\r\n"), "400: the only Transfer-Encoding"},
      {"gzip, chunked", head("Transfer-Encoding: gzip, chunked\r\n"), "400: the only Transfer-Encoding"},
      {"chunked, gzip", head("Transfer-Encoding: chunked, gzip\r\n"), "400: the only Transfer-Encoding"},
      {"chunked twice in one", head("Transfer-Encoding: chunked, chunked\r\n"),
       "400: the only Transfer-Encoding"},
      {"chunked twice", head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
       "400: Transfer-Encoding must come once"},
      {"chunked and identity", head("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"),
       "400: Transfer-Encoding must come once"},
      {"identity", head("Transfer-Encoding: identity\r\n"), "400: the only Transfer-Encoding"},
      {"xchunked", head("Transfer-Encoding: xchunked\r\n"), "400: the only Transfer-Encoding"},
      {"chunked;q=1", head("Transfer-Encoding: chunked;q=1\r\n"), "400: the only Transfer-Encoding"},
      {"identity and chunked", head("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n"),
       "400: the header transfer-encoding comes twice"},
      {"gzip and a length", head("Transfer-Encoding: gzip\r\nContent-Length: 3\r\n"),
       "400: the only Transfer-Encoding"},
      {"empty coding", head("Transfer-Encoding:\r\n"), "400: the only Transfer-Encoding"},
      {"vertical tab before chunked",
       head("Transfer-Encoding: \x0b"
            "chunked\r\n"),
       "400: a line has a control"},
      {"chunked and a length", head("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"),
       "400: Content-Length must be one number, once, and without Transfer-Encoding"},
      {"a length and chunked", head("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"),
       "400: Transfer-Encoding must come once, and without Content-Length"},
      {"chunked and a length of 0", head("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"),
       "400: Transfer-Encoding must come once, and without Content-Length"},
      {"chunked in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
       "400: Transfer-Encoding is not part"},
      {"two lengths", head("Content-Length: 3\r\nContent-Length: 4\r\n"),
       "400: Content-Length must be one number, once"},
      {"the same length twice", head("Content-Length: 3\r\nContent-Length: 3\r\n"),
       "400: the header content-length comes twice"},
      {"two lengths in one", head("Content-Length: 3, 3\r\n"), "400: Content-Length must be one number"},
      {"a negative length", head("Content-Length: -3\r\n"), "400: Content-Length must be one number"},
      {"a plus", head("Content-Length: +3\r\n"), "400: Content-Length must be one number"},
      {"hexadecimal length", head("Content-Length: 0x3\r\n"), "400: Content-Length must be one number"},
      {"a fraction", head("Content-Length: 3.0\r\n"), "400: Content-Length must be one number"},
      {"an empty length", head("Content-Length:\r\n"), "400: Content-Length must be one number"},
      {"a space in a length", head("Content-Length: 1 2\r\n"), "400: Content-Length must be one number"},
      {"a length past 2^64", head("Content-Length: 18446744073709551616\r\n"),
       "400: Content-Length must be one number"},
      {"2^64 - 1", head("Content-Length: 18446744073709551615\r\n"), "413: the body is longer"},
      {"one byte more than the limit", head("Content-Length: 65\r\n"), "413: the body is longer"},
      {"obs-fold", get + "X: a\r\n b\r\n\r\n", "400: a header goes on"},
      {"obs-fold with a tab", get + "X: a\r\n\tb\r\n\r\n", "400: a header goes on"},
      {"a space before the first header", "GET / HTTP/1.1\r\n Host: h\r\n\r\n", "400: a header goes on"},
      {"NUL in a value", get + "X: a\0b\r\n\r\n"s, "400: a line has a control"},
      {"NUL in a name", get + "X\0: a\r\n\r\n"s, "400: a line has a control"},
      {"NUL in the target", "GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n"s, "400: a line has a control"},
      {"bare LF behind the request line", "GET / HTTP/1.1\nHost: h\r\n\r\n", "400: a line ends with LF"},
      {"bare LF behind a header", get + "X: a\nY: b\r\n\r\n", "400: a line ends with LF"},
      {"bare LF as the last line", get + "\n", "400: a line ends with LF"},
      {"bare CR in a value", get + "X: a\rb\r\n\r\n", "400: a CR in a line"},
      {"bare CR as the last line", get + "\rX: a\r\n\r\n", "400: a CR in a line"},
      {"CR CR LF", get + "X: a\r\r\n\r\n", "400: a CR in a line"},
      {"escape in a value", get + "X: \x1b[1m\r\n\r\n", "400: a line has a control"},
      {"delete in a value", get + "X: \x7f\r\n\r\n", "400: a line has a control"},
      {"a space before the colon", get + "Content-Length : 3\r\n\r\n", "400: a header must be NAME"},
      {"a tab before the colon", get + "X\t: 3\r\n\r\n", "400: a header must be NAME"},
      {"no name", get + ": a\r\n\r\n", "400: a header must be NAME"},
      {"no colon", get + "X\r\n\r\n", "400: a header must be NAME"},
      {"a name in parentheses", get + "X(y): a\r\n\r\n", "400: a header must be NAME"},
      {"a name with a letter beyond ASCII", get + "X\xc3\xa4: a\r\n\r\n", "400: a header must be NAME"},
      {"no Host", "GET / HTTP/1.1\r\n\r\n", "400: the header Host is missing"},
      {"two Hosts", get + "Host: h\r\n\r\n", "400: the header host comes twice"},
      {"another Host in the target", "GET http://evil/ HTTP/1.1\r\nHost: h\r\n\r\n",
       "400: the target and the header Host"},
      {"a Host in the target alone", "GET http://evil/ HTTP/1.0\r\n\r\n",
       "400: the target and the header Host"},
      {"two Origins", get + "Origin: a\r\nOrigin: b\r\n\r\n", "400: the header origin comes twice"},
      {"two keys", get + "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
       "400: the header authorization comes twice"},
      {"two types", get + "Content-Type: text/plain\r\nContent-Type: application/json\r\n\r\n",
       "400: the header content-type comes twice"},
      {"no list in Connection", head("Connection: \"close\"\r\n"), "400: Connection and Proxy-Connection"},
      {"another Expect", head("Expect: gold\r\n"), "417: Expect: only 100-continue"},
  };
  for (const Hostile& hostile : cases) {
    expect_fault(hostile.bytes + "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n", hostile.fault, hostile.what);
  }
}

TEST(HttpFraming, RefusesBadRequestLines) {
  const char* const lines[] = {
      "GET  / HTTP/1.1",
      "GET / HTTP/1.1 ",
      " GET / HTTP/1.1",
      "GET /",
      "GET",
      "GET / a HTTP/1.1",
      "GET\t/\tHTTP/1.1",
      "G=T / HTTP/1.1",
      "GET / HTTP/1.2",
      "GET / HTTP/2.0",
      "GET / HTTP/0.9",
      "GET / http/1.1",
      "GET / HTTP/1.1x",
      "GET / HTTP/11",
      "GET / HTTP/1",
      "GET a HTTP/1.1",
      "GET * HTTP/1.1",
      "CONNECT h:1 HTTP/1.1",
      "GET ftp://h/ HTTP/1.1",
      "GET http:// HTTP/1.1",
      "GET /#a HTTP/1.1",
      "GET /\xc3\xa4 HTTP/1.1",
      "PRI * HTTP/2.0",
      "\x16\x03\x01",
      "GET /\x7f HTTP/1.1",
      "GETTHISISMUCHTOOLONGFORTHENAMEOFAMETHOD / HTTP/1.1",
  };
  for (const char* line : lines) expect_fault(line + "\r\nHost: h\r\n\r\n"s, "400: ", line);
}

TEST(HttpFraming, RefusesBadChunks) {
  const Hostile cases[] = {
      {"no size", "\r\nabc\r\n0\r\n\r\n", "400: a chunk's size must be hexadecimal"},
      {"no number", "x\r\n", "400: a chunk's size must be hexadecimal"},
      {"a minus", "-1\r\n", "400: a chunk's size must be hexadecimal"},
      {"a plus", "+1\r\n", "400: a chunk's size must be hexadecimal"},
      {"0x", "0x1\r\na\r\n", "400: a chunk's size must be hexadecimal"},
      {"a space before", " 1\r\na\r\n", "400: a chunk's size must be hexadecimal"},
      {"a space behind", "1 \r\na\r\n", "400: a chunk's size must be hexadecimal"},
      {"past 2^64", "10000000000000000\r\n", "400: a chunk's size must be hexadecimal"},
      {"2^64 - 1", "ffffffffffffffff\r\n", "413: the body is longer"},
      {"wraps the sum", "1\r\na\r\nffffffffffffffff\r\n", "413: the body is longer"},
      {"past the limit", "41\r\n", "413: the body is longer"},
      {"past the limit in sum", "40\r\n" + std::string(64, 'x') + "\r\n1\r\n", "413: the body is longer"},
      {"longer than its size", "1\r\nab\r\n0\r\n\r\n", "400: a chunk is longer"},
      {"shorter than its size", "3\r\na\r\n0\r\n\r\n", "400: a chunk is longer"},
      {"bare LF behind the size", "1\na\r\n0\r\n\r\n", "400: a line ends with LF"},
      {"bare LF behind the data", "1\r\na\n0\r\n\r\n", "400: a line ends with LF"},
      {"bare CR behind the size", "1\ra\r\n0\r\n\r\n", "400: a CR in a line"},
      {"bare LF at the end", "0\r\n\n", "400: a line ends with LF"},
      {"a long extension", "1;" + std::string(300, 'e') + "\r\na\r\n", "400: a chunk's size and extensions"},
      {"a space before an extension", "1 ;e\r\na\r\n", "400: a chunk's size must be hexadecimal"},
      {"no name of an extension", "1;=e\r\na\r\n", "400: a chunk's size must be hexadecimal"},
      {"no quote ends an extension", "1;e=\"\r\na\r\n", "400: a chunk's size must be hexadecimal"},
      {"no quote ends the last extension", "0;e=\"\r\nX: \"\r\n\r\n",
       "400: a chunk's size must be hexadecimal"},
      {"a control character in an extension", "1;\x01\r\na\r\n", "400: a line has a control"},
      {"a trailer without a colon", "0\r\nX\r\n\r\n", "400: a trailer must be"},
      {"a trailer with a space before the colon", "0\r\nX : a\r\n\r\n", "400: a trailer must be"},
      {"a folded trailer", "0\r\nX: a\r\n b\r\n\r\n", "400: a trailer must be"},
      {"a long trailer", "0\r\nX: " + std::string(600, 'a') + "\r\n\r\n",
       "431: the chunk extensions and trailers"},
  };
  for (const Hostile& hostile : cases) {
    const std::string bytes = chunked(hostile.bytes) + "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n";
    expect_fault(bytes, hostile.fault, hostile.what);
  }
  std::string extensions, trailers = "0\r\n";
  for (int i = 0; i < 10; ++i) extensions += "1;" + std::string(100, 'e') + "\r\na\r\n";
  for (int i = 0; i < 9; ++i) trailers += "X: a\r\n";
  expect_fault(chunked(extensions), "431: the chunk extensions", "many extensions");
  expect_fault(chunked(trailers), "431: the request has more than 8 trailers", "many trailers");
}

// Faults are logged, and prompts are not.
TEST(HttpFraming, FaultsDoNotQuoteTheBody) {
  const std::string bytes = chunked("{\"prompt\": \"a secret\"}\r\n");
  RequestReader reader(kSmall);
  for (std::string_view left = bytes; !left.empty() && reader.step() != RequestReader::Step::kFault;)
    left.remove_prefix(reader.take(left));
  ASSERT_EQ(reader.step(), RequestReader::Step::kFault);
  EXPECT_EQ(reader.fault().message, "a chunk's size must be hexadecimal and its extensions ;NAME=VALUE");
}

TEST(HttpFraming, BoundsTheHead) {
  const std::string first = "GET / HTTP/1.1\r\nHost: h\r\nX: ";
  const size_t room = kSmall.header_bytes - first.size() - 4;
  EXPECT_EQ(read(first + std::string(room, 'x') + "\r\n\r\n"), Outcome{"GET /| "});
  expect_fault(first + std::string(room + 1, 'x') + "\r\n\r\n", "431: the request line and headers",
               "long header");
  expect_fault("GET /" + std::string(600, 'x'), "431: the request line and headers", "long target");
  std::string many = "GET / HTTP/1.1\r\nHost: h\r\n";
  for (int i = 0; i < 7; ++i) many += "X: y\r\n";
  EXPECT_EQ(read(many + "\r\n"), Outcome{"GET /| "});
  expect_fault(many + "X: y\r\n\r\n", "431: the request has more than 8 headers", "many headers");
}

TEST(HttpFraming, BoundsTrailersForThemselves) {
  const std::string long_head = head("Transfer-Encoding: chunked\r\nX: " + std::string(400, 'x') + "\r\n");
  EXPECT_EQ(read(long_head + "0\r\nY: " + std::string(400, 'y') + "\r\n\r\n"), Outcome{"POST /p| "});
}

// The bytes that decide are looked at as they come: no client can keep a connection waiting with half a
// fault.
TEST(HttpFraming, RefusesBeforeTheLineIsWhole) {
  expect_fault("\x16\x03\x01\x02", "400: a line has a control", "TLS");
  expect_fault("GET / HTTP/1.1\n", "400: a line ends with LF", "LF");
  expect_fault(chunked("1\r\nabc"), "400: a chunk is longer", "a longer chunk");
}

TEST(HttpFraming, StopsBehindTheHead) {
  RequestReader reader(kSmall);
  const std::string bytes = head("Content-Length: 2\r\nExpect: 100-Continue\r\n");
  EXPECT_EQ(reader.take(bytes + "xyz"), bytes.size());
  EXPECT_EQ(reader.step(), RequestReader::Step::kBody);
  EXPECT_TRUE(reader.head().expects_continue);
  EXPECT_EQ(*reader.head().find("content-length"), "2");
  EXPECT_EQ(reader.take("xyz"), 2u);
  EXPECT_EQ(reader.step(), RequestReader::Step::kWhole);
  EXPECT_EQ(reader.take("z"), 0u);
  EXPECT_EQ(reader.take_body(), "xy");
}

TEST(HttpFraming, KeepsTheConnectionOrNot) {
  const auto keeps = [](const std::string& version, const std::string& more) {
    RequestReader reader(kSmall);
    reader.take("GET / HTTP/" + version + "\r\nHost: h\r\n" + more + "\r\n");
    EXPECT_EQ(reader.step(), RequestReader::Step::kWhole);
    return reader.head().keep_alive;
  };
  EXPECT_TRUE(keeps("1.1", ""));
  EXPECT_FALSE(keeps("1.1", "Connection: Close\r\n"));
  EXPECT_FALSE(keeps("1.1", "Connection: x, close ,y\r\n"));
  EXPECT_FALSE(keeps("1.1", "Connection: keep-alive\r\nConnection: close\r\n"));
  EXPECT_FALSE(keeps("1.0", ""));
  EXPECT_TRUE(keeps("1.0", "Connection: Keep-Alive\r\n"));
  EXPECT_FALSE(keeps("1.0", "Connection: keep-alive, close\r\n"));
  EXPECT_FALSE(keeps("1.0", "Proxy-Connection: keep-alive\r\n"));
}

}  // namespace
}  // namespace fathom
