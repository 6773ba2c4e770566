// What the command line of fathom serve becomes; no server is started.
#include "cli/serve_options.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/format.h"

namespace fathom {
namespace {

ServeOptions parsed(const Arguments& more) {
  Arguments words{"-m", "builtin"};
  words.insert(words.end(), more.begin(), more.end());
  Args args("serve", "", "");
  ServeOptions options;
  EXPECT_TRUE(parse_serve_options(args, options, words));
  return options;
}

std::string refusal(const Arguments& more) {
  try {
    parsed(more);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was refused";
}

std::string joined(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, "|"));
}

// An option, and the field that it is for, as a text.
struct Wire {
  Arguments words;
  std::string value;  // of the field
  std::function<std::string(const ServeOptions&)> field;
};

template <class F>
Wire number(const char* name, int64_t given, F field, int64_t value = -1) {
  return {{name, std::to_string(given)},
          std::to_string(value < 0 ? given : value),
          [field](const ServeOptions& o) { return std::to_string(static_cast<int64_t>(field(o))); }};
}
template <class F>
Wire seconds(const char* name, int64_t given, F field) {
  return number(
      name, given, [field](const ServeOptions& o) { return field(o).count(); }, 1000 * given);
}
template <class F>
Wire flag(const char* name, F field) {
  return {{name}, "true", [field](const ServeOptions& o) { return field(o) ? "true" : "false"; }};
}

std::vector<Wire> wires() {
  using O = ServeOptions;
  return {
      number("--max-choices", 11, [](const O& o) { return o.api.limits.choices; }),
      number("--max-request-tokens", 12, [](const O& o) { return o.api.limits.tokens; }),
      number("--max-logprobs", 33, [](const O& o) { return o.api.limits.log_probs; }),
      number("--max-stops", 13, [](const O& o) { return o.api.limits.stops; }),
      number("--max-stop-bytes", 14, [](const O& o) { return o.api.limits.stop_bytes; }),
      number("--max-bias", 15, [](const O& o) { return o.api.limits.bias_entries; }),
      number("--max-json-depth", 17, [](const O& o) { return o.api.limits.json_depth; }),
      number("--max-body", 18, [](const O& o) { return o.http.limits.body_bytes; }),
      number(
          "--max-header-kb", 19, [](const O& o) { return o.http.limits.header_bytes; }, 19 * 1024),
      number("--connections", 20, [](const O& o) { return o.http.connections; }),
      seconds("--request-seconds", 21, [](const O& o) { return o.http.request_time; }),
      seconds("--idle-seconds", 22, [](const O& o) { return o.http.idle_time; }),
      seconds("--stall-seconds", 23, [](const O& o) { return o.http.stall_time; }),
      seconds("--ping-seconds", 24, [](const O& o) { return o.http.ping_time; }),
      number("--drain-seconds", 25, [](const O& o) { return o.drain_seconds; }),
      number("--http-threads", 26, [](const O& o) { return o.http.threads; }),
      number("--port", 27, [](const O& o) { return o.http.port; }),
      number("--parallel", 28, [](const O& o) { return o.api.parallel; }),
      number("--queue", 29, [](const O& o) { return o.api.queue; }),
      number("--timeout", 30, [](const O& o) { return o.api.limits.timeout_seconds; }),
      number("--cache-size", 31, [](const O& o) { return o.cache_bytes; }),
      number("--target-latency", 32, [](const O& o) { return o.api.target_latency; }),
      {{"--budget-floor", "0.5"},
       "0.5",
       [](const O& o) { return o.api.budget_floor ? fmt::format("{:g}", *o.api.budget_floor) : ""; }},
      {{"--host", "::1"}, "::1", [](const O& o) { return o.http.host; }},
      {{"--api-key-file", "k"}, "k", [](const O& o) { return o.http.key_file; }},
      {{"--tls-cert", "c", "--tls-key", "d"},
       "c d",
       [](const O& o) { return o.http.tls_certificate + " " + o.http.tls_key; }},
      {{"--allow-host", "a", "--allow-host", "b:1"},
       "a|b:1",
       [](const O& o) { return joined(o.http.allow_hosts); }},
      {{"--allow-origin", "https://a"}, "https://a", [](const O& o) { return joined(o.http.allow_origins); }},
      {{"--alias", "x", "--alias", "y"}, "x|y", [](const O& o) { return joined(o.api.names); }},
      {{"--chat-template", "chatml"}, "chatml", [](const O& o) { return o.chat_template; }},
      flag("--share-prefixes", [](const O& o) { return o.api.share_prefixes; }),
      flag("--auto-budget", [](const O& o) { return o.api.auto_budget; }),
      flag("--log-prompts", [](const O& o) { return o.api.log_prompts; }),
      flag("--speculate", [](const O& o) { return o.speculate; }),
      {{"--log-format", "json"}, "true", [](const O& o) { return o.api.json_logs ? "true" : "false"; }},
  };
}

// Each option reaches its field, and no other option's.
TEST(ServeOptions, EveryOptionReachesItsFieldAlone) {
  const std::vector<Wire> all = wires();
  const ServeOptions defaults = parsed({});
  for (const Wire& given : all) {
    const ServeOptions options = parsed(given.words);
    for (const Wire& other : all) {
      const bool same = &other == &given;
      EXPECT_EQ(other.field(options), same ? given.value : other.field(defaults))
          << given.words[0] << ", the field of " << other.words[0];
    }
    EXPECT_NE(given.field(defaults), given.value) << given.words[0] << ": the test gives the default";
  }
}

// As of a variable that is not set: protection must not go silently.
TEST(ServeOptions, EmptyValuesAreRefused) {
  for (const char* name : {"--host", "--api-key-file", "--tls-cert", "--tls-key", "--alias"})
    EXPECT_EQ(refusal({name, ""}), std::string(name) + " is empty: give it a value or leave it out");
  EXPECT_EQ(refusal({"--tls-cert", "", "--tls-key", ""}),
            "--tls-cert is empty: give it a value or leave it out");
  for (const char* name : {"--max-body", "--cache-size", "--allow-host", "--allow-origin"})
    EXPECT_TRUE(refusal({name, ""}).starts_with(name)) << refusal({name, ""});
}

TEST(ServeOptions, NamesThatNothingMatchesAreRefused) {
  EXPECT_EQ(refusal({"--allow-origin", "nonsense"}),
            "--allow-origin must be SCHEME://NAME or SCHEME://NAME:PORT or *, got 'nonsense'");
  EXPECT_EQ(refusal({"--allow-origin", "https://x/"}),
            "--allow-origin must be SCHEME://NAME or SCHEME://NAME:PORT or *, got 'https://x/'");
  EXPECT_EQ(refusal({"--allow-host", "a b"}),
            "--allow-host must be NAME or NAME:PORT (IPv6 in brackets) or *, got 'a b'");
}

TEST(ServeOptions, ATimeoutThatNoClockHoldsIsRefused) {
  EXPECT_EQ(refusal({"--timeout", "1e10"}), "--timeout must be from 0 to 1000000 seconds");
  EXPECT_EQ(refusal({"--timeout", "-1"}), "--timeout must be from 0 to 1000000 seconds");
  EXPECT_EQ(parsed({"--timeout", "1e6"}).api.limits.timeout_seconds, 1e6);
}

}  // namespace
}  // namespace fathom
