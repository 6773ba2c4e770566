#include "serve/http_gate.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <string>

#include "base/error.h"

namespace fathom {
namespace {

RequestHead request(std::string method, HttpHeaders headers, std::string path = "/v1/models") {
  RequestHead head;
  head.method = std::move(method);
  head.path = std::move(path);
  head.headers = std::move(headers);
  return head;
}

int status(const GateOptions& options, std::string method, HttpHeaders headers,
           std::string path = "/v1/models") {
  return judge_request(options, request(std::move(method), std::move(headers), std::move(path))).status;
}

std::map<std::string, std::string> headers_of(const GateVerdict& verdict) {
  return {verdict.headers.begin(), verdict.headers.end()};
}

TEST(HttpGate, TakesOurHostsOnly) {
  const GateOptions options{.hosts = {"box.lan", "other:99", "[fe80::1]"}};
  for (const char* host : {"localhost", "LOCALHOST:8080", "127.0.0.1", "127.9.8.7:1", "[::1]", "[::1]:80",
                           "box.lan", "Box.LAN:8080", "other:99", "[FE80::1]:7"}) {
    EXPECT_EQ(status(options, "GET", {{"host", host}}), 0) << host;
  }
  for (const char* host : {"evil.com",
                           "localhost.evil.com",
                           "127.0.0.1.evil.com",
                           "127.0.0",
                           "127.0.0.1.1",
                           "127.0.0.256",
                           "127.1",
                           "0x7f.0.0.1",
                           "127.0.0.01234",
                           "128.0.0.1",
                           "0.0.0.0",
                           "localhost@evil",
                           "evil:80@localhost",
                           "localhost:x",
                           "localhost:70000",
                           "localhost:-1",
                           "localhost:",
                           "localhost:80:80",
                           "",
                           ":80",
                           "[::1",
                           "[::1]x",
                           "::1",
                           "[::2]",
                           "other",
                           "other:98",
                           "xbox.lan",
                           "localhost, evil",
                           "localhost/",
                           "127.0.0.",
                           "127..0.1"}) {
    EXPECT_EQ(status(options, "GET", {{"host", host}}), 403) << host;
  }
  EXPECT_EQ(status({.hosts = {"*"}}, "GET", {{"host", "evil.com"}}), 0);
  for (const char* host : {"a@b", "[::1]x", "[::1]x:80", "a:b", ""}) {
    EXPECT_EQ(status({.hosts = {"*"}}, "GET", {{"host", host}}), 403) << host;
  }
  EXPECT_EQ(status({}, "GET", {}), 0);  // HTTP/1.0
}

TEST(HttpGate, EntriesThatCannotMatchAreKnown) {
  for (const char* host : {"*", "example.com", "Example.com:8080", "[::1]", "[fe80::1]:80", "10.0.0.1"})
    EXPECT_TRUE(is_host_entry(host)) << host;
  for (const char* host : {"", "a b", "http://a", "a/", "::1", "a:", "a:x", "a:65536", "*.a", "[::1", "a,b",
                           "\xc3\xa4.example", "a\n"})
    EXPECT_FALSE(is_host_entry(host)) << host;
  for (const char* origin : {"*", "https://x", "http://x:3000", "HTTP://[::1]:80", "chrome-extension://abc"})
    EXPECT_TRUE(is_origin_entry(origin)) << origin;
  for (const char* origin : {"", "nonsense", "x.example", "https://", "https://x/", "https://x/path", "://x",
                             "https://x:", "ht tp://x", "https://*.x", "https://a b", "1http://x", "null"})
    EXPECT_FALSE(is_origin_entry(origin)) << origin;
}

TEST(HttpGate, TakesNamedOriginsOnly) {
  const GateOptions options{.origins = {"https://chat.example"}};
  const auto from = [&](const char* origin) {
    return judge_request(options, request("GET", {{"host", "localhost:8080"}, {"origin", origin}}));
  };
  for (const char* origin : {"https://evil.com", "null", "", "http://localhost:3000", "http://localhost",
                             "https://chat.example.evil.com", "http://chat.example", "localhost:8080"}) {
    EXPECT_EQ(from(origin).status, 403) << origin;
    EXPECT_TRUE(from(origin).headers.empty()) << origin;
  }
  EXPECT_EQ(from("http://localhost:8080").status, 0);
  EXPECT_TRUE(from("http://localhost:8080").headers.empty());
  EXPECT_EQ(from("https://chat.example").status, 0);
  EXPECT_EQ(headers_of(from("https://chat.example")).at("Access-Control-Allow-Origin"),
            "https://chat.example");
  EXPECT_EQ(headers_of(from("https://chat.example")).at("Vary"), "Origin");
  // A Host that an attacker's name server made ours is no way round: the Host is judged first.
  EXPECT_EQ(status({}, "GET", {{"host", "evil.com"}, {"origin", "http://evil.com"}}), 403);
  EXPECT_EQ(status({.origins = {"*"}}, "GET", {{"host", "localhost"}, {"origin", "null"}}), 0);
}

TEST(HttpGate, AnswersPreflightsOfNamedOrigins) {
  const GateOptions options{.origins = {"https://chat.example"}, .keys = {make_api_key("a", "secret")}};
  HttpHeaders asked = {{"host", "localhost"},
                       {"origin", "https://chat.example"},
                       {"access-control-request-method", "POST"},
                       {"access-control-request-headers", "authorization,x-stainless-os"}};
  const GateVerdict verdict = judge_request(options, request("OPTIONS", asked));
  EXPECT_EQ(verdict.status, 204);
  EXPECT_EQ(headers_of(verdict).at("Access-Control-Allow-Headers"), "authorization,x-stainless-os");
  EXPECT_EQ(headers_of(verdict).at("Access-Control-Allow-Methods"), "GET, POST, OPTIONS");
  asked[1].second = "https://evil.com";
  EXPECT_EQ(judge_request(options, request("OPTIONS", asked)).status, 403);
  // An OPTIONS that is no preflight needs what every request needs.
  EXPECT_EQ(status(options, "OPTIONS", {{"host", "localhost"}}), 401);
  EXPECT_EQ(status({}, "OPTIONS", {{"host", "localhost"}}), 204);
}

TEST(HttpGate, AsksForAKey) {
  const GateOptions options{.origins = {"https://chat.example"},
                            .keys = {make_api_key("anna", "key-1"), make_api_key("ben", "key-22")}};
  const auto with = [&](const char* authorization, const char* path = "/v1/models") {
    return judge_request(options,
                         request("GET", {{"host", "localhost"}, {"authorization", authorization}}, path));
  };
  EXPECT_EQ(with("Bearer key-1").status, 0);
  EXPECT_EQ(with("Bearer key-1").key, "anna");
  EXPECT_EQ(with("bearer  key-22 ").key, "ben");
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer key-2", "Bearer key-11", "Bearer key",
                            "Basic key-1", "key-1", "Bearer KEY-1", "Bearer key-1 key-22", "Bearerkey-1"}) {
    const GateVerdict verdict = with(wrong);
    EXPECT_EQ(verdict.status, 401) << wrong;
    EXPECT_EQ(verdict.code, "invalid_api_key");
    EXPECT_TRUE(headers_of(verdict).at("WWW-Authenticate").starts_with("Bearer")) << wrong;
    EXPECT_EQ(verdict.message.find("key-"), std::string::npos) << verdict.message;
  }
  EXPECT_EQ(status(options, "GET", {{"host", "localhost"}}), 401);
  EXPECT_EQ(status(options, "GET", {{"host", "localhost"}}, "/health"), 0);
  EXPECT_EQ(status(options, "GET", {{"host", "localhost"}}, "/health/"), 401);
  EXPECT_EQ(status(options, "GET", {{"host", "localhost"}}, "/metrics"), 401);
  // A page may read why it was refused.
  const GateVerdict page =
      judge_request(options, request("GET", {{"host", "localhost"}, {"origin", "https://chat.example"}}));
  EXPECT_EQ(page.status, 401);
  EXPECT_EQ(headers_of(page).at("Access-Control-Allow-Origin"), "https://chat.example");
}

TEST(HttpGate, PostsAreJson) {
  const auto posting = [](const char* type) {
    return status({}, "POST", {{"host", "localhost"}, {"content-type", type}});
  };
  EXPECT_EQ(posting("application/json"), 0);
  EXPECT_EQ(posting("Application/JSON ; charset=utf-8"), 0);
  for (const char* type :
       {"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp",
        "text/plain; application/json", "application/json, text/plain"}) {
    EXPECT_EQ(posting(type), 415) << type;
  }
  EXPECT_EQ(status({}, "POST", {{"host", "localhost"}}), 415);
  EXPECT_EQ(status({}, "GET", {{"host", "localhost"}}), 0);
}

TEST(ApiKeys, AreReadFromAFilesText) {
  const std::vector<ApiKey> keys = parse_api_keys("# comment\n\nanna:k1\r\n  k2  \nben: a:b\n", "file");
  ASSERT_EQ(keys.size(), 3u);
  EXPECT_EQ(find_api_key(keys, "k1"), "anna");
  EXPECT_EQ(find_api_key(keys, "k2"), "#4");
  EXPECT_EQ(find_api_key(keys, "a:b"), "ben");
  EXPECT_EQ(find_api_key(keys, ""), std::nullopt);
  EXPECT_EQ(find_api_key(keys, "k"), std::nullopt);
  EXPECT_EQ(find_api_key(keys, "anna:k1"), std::nullopt);
  for (const ApiKey& key : keys) EXPECT_EQ(key.digest.find("k1"), std::string::npos);
}

TEST(ApiKeys, RefusesWhatIsNoKey) {
  const auto error = [](const char* text) -> std::string {
    try {
      parse_api_keys(text, "file");
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(error(""), "file: no API key in this file: one a line, LABEL:KEY or KEY");
  EXPECT_EQ(error("# only a comment\n \n"), "file: no API key in this file: one a line, LABEL:KEY or KEY");
  EXPECT_EQ(error("k1\nmy secret\n"), "file, line 2: the key must be visible ASCII without spaces");
  EXPECT_EQ(error("anna:\n"), "file, line 1: the key must be visible ASCII without spaces");
  EXPECT_EQ(error(":k1\n"), "file, line 1: the label before ':' must be visible ASCII without spaces");
  EXPECT_EQ(error("k\xc3\xa4\n"), "file, line 1: the key must be visible ASCII without spaces");
  // A label is the salt of its key's prefixes: two keys with one would share them.
  EXPECT_EQ(error("anna:k1\n\n# x\nanna:k2\n"),
            "file, line 4: line 1 has the same label: give each key its own");
  EXPECT_EQ(error("anna:k1\nben:k1\n"), "file, line 2: line 1 has the same key: leave one of them out");
  EXPECT_EQ(error("k1\nk2\nanna: k2\n"), "file, line 3: line 2 has the same key: leave one of them out");
  EXPECT_EQ(error("sk:1234\nsk:5678\n").find("sk"), std::string::npos);  // perhaps keys without labels
  EXPECT_THROW(read_api_keys("/nonexistent/keys"), UserError);
  EXPECT_THROW(read_api_keys("/"), UserError);
  const std::string pipe = testing::TempDir() + "fathom-keys-" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(read_api_keys(pipe), UserError);  // at once, without a writer
  unlink(pipe.c_str());
}

}  // namespace
}  // namespace fathom
