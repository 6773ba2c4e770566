#include "cli/serve_options.h"

#include <utility>

#include "base/format.h"
#include "serve/http_gate.h"

namespace fathom {
namespace {

// Values as the command line has them, before they become the server's.
struct Written {
  int64_t port = 8080, http_threads = 2, connections = 1024, header_kb = 16, request_seconds = 30,
          idle_seconds = 75, stall_seconds = 30, ping_seconds = 15;
  std::string body_bytes = "4M", cache_size, log_format = "text";
  double floor = 0, latency = 0.1, timeout = 600;
  std::vector<std::string> names;
};

void add_listening_options(Args& args, ServeOptions& o, Written& w) {
  args.text("--host", o.http.host, "ADDRESS", "Where it listens; 0.0.0.0: everywhere");
  args.integer("--port", w.port, "Port; 0: any free one, printed on stdout", 0, 65535);
  args.texts("--alias", w.names, "NAME", "The model's name in the API, may be repeated (default: -m's)");
  args.text("--chat-template", o.chat_template, "NAME",
            "auto: the model's own; or " + ChatTemplate::known_names());
  args.integer("--parallel", o.api.parallel, "Answers that are written at the same time", 1, 1024);
  args.text(
      "--cache-size", w.cache_size, "BYTES",
      "Keys and values of all answers together, such as 4G (default: half of the free memory, or less where "
      "full contexts need less)");
  args.flag("--speculate", o.speculate, "Requests may draft (their field speculate)");
}

void add_depth_options(Args& args, ServeOptions& o, Written& w) {
  args.group("Depth that follows load");
  args.flag("--auto-budget", o.api.auto_budget,
            "Requests that name no budget get one by load, as with budget: auto");
  args.number("--budget-floor", w.floor, "The least of these; 0: the smallest calibrated one");
  args.number("--target-latency", w.latency, "Seconds between two tokens that they keep to");
}

void add_stranger_options(Args& args, ServeOptions& o) {
  args.group("Access");
  args.text("--api-key-file", o.http.key_file, "FILE",
            "One key a line, or label:key; every path but /health needs one");
  args.texts("--allow-host", o.http.allow_hosts, "NAME",
             "Host that requests may name beside the loopback's and --host; may be repeated; *: any");
  args.texts("--allow-origin", o.http.allow_origins, "ORIGIN",
             "Web page that may ask (https://name); may be repeated; *: any");
  args.text("--tls-cert", o.http.tls_certificate, "FILE", "Certificate chain, PEM; with --tls-key");
  args.text("--tls-key", o.http.tls_key, "FILE", "Private key, PEM");
  args.flag(
      "--share-prefixes", o.api.share_prefixes,
      "Computed prefixes serve every key: faster, but its timing tells one key's holder what others asked");
}

void add_limit_options(Args& args, ServeOptions& o, Written& w) {
  ApiLimits& limits = o.api.limits;
  args.group("Limits");
  args.integer("--queue", o.api.queue, "Answers that may wait for a place; more are 429", 0, 1'000'000);
  args.number("--timeout", w.timeout, "Seconds a request may take, then 504; 0: no limit");
  args.integer("--max-choices", limits.choices, "n × prompts of a request", 1, 4096);
  args.integer("--max-request-tokens", limits.tokens, "Prompts and answers of a request together", 1,
               INT32_MAX);
  args.integer("--max-logprobs", limits.log_probs,
               "Log-probabilities of a reply: choices × tokens, echoed ones included, × (logprobs + 1)", 1,
               INT32_MAX);
  args.integer("--max-stops", limits.stops, "Stop strings, and as many stop tokens", 0, 4096);
  args.integer("--max-stop-bytes", limits.stop_bytes, "Bytes of a stop string", 1, 1 << 20);
  args.integer("--max-bias", limits.bias_entries, "Entries of logit_bias", 0, 1 << 20);
  args.integer("--max-json-depth", limits.json_depth, "Nesting of a body", 4, 512);
  args.text("--max-body", w.body_bytes, "BYTES", "Most bytes of a request's body");
  args.integer("--max-header-kb", w.header_kb, "Most KiB of a request's headers", 1, 1024);
  args.integer("--connections", w.connections, "Open at the same time; more are 503", 1, 1'000'000);
  args.integer("--request-seconds", w.request_seconds, "Seconds in which a request must be whole", 1, 86400);
  args.integer("--idle-seconds", w.idle_seconds, "Seconds between two requests of a connection", 1, 86400);
  args.integer("--stall-seconds", w.stall_seconds,
               "Seconds without a byte taken, after which a client is dropped", 1, 86400);
  args.integer("--ping-seconds", w.ping_seconds,
               "Seconds without a token, after which a stream gets a comment", 1, 86400);
  args.integer("--drain-seconds", o.drain_seconds,
               "Seconds after SIGTERM or Ctrl-C in which requests may end; a second signal ends at once", 0,
               86400);
  args.integer("--http-threads", w.http_threads, "Threads of the HTTP server, beside the engine's", 1, 64);
}

void add_log_options(Args& args, ServeOptions& o, Written& w) {
  args.group("Logs, one line a request on stderr");
  args.choice("--log-format", w.log_format, {"text", "json"}, "Form of the lines");
  args.flag("--log-prompts", o.api.log_prompts, "Log prompts, too");
}

void take(const Args& args, const Written& w, ServeOptions& o) {
  using std::chrono::seconds;
  o.http.port = static_cast<uint16_t>(w.port);
  o.http.threads = static_cast<int>(w.http_threads);
  o.http.connections = static_cast<std::size_t>(w.connections);
  o.http.limits.header_bytes = static_cast<std::size_t>(w.header_kb) << 10;
  o.http.limits.body_bytes = static_cast<std::size_t>(parse_bytes("--max-body", w.body_bytes));
  o.http.request_time = seconds(w.request_seconds);
  o.http.idle_time = seconds(w.idle_seconds);
  o.http.stall_time = seconds(w.stall_seconds);
  o.http.ping_time = seconds(w.ping_seconds);
  if (args.given("--cache-size")) o.cache_bytes = parse_bytes("--cache-size", w.cache_size);
  if (w.floor != 0) o.api.budget_floor = static_cast<float>(w.floor);
  o.api.target_latency = w.latency;
  o.api.limits.timeout_seconds = w.timeout;
  o.api.json_logs = w.log_format == "json";
  o.api.context_shift = o.model.context_shift;
  o.api.names = w.names.empty() ? std::vector<std::string>{o.model.model} : w.names;
}

// An empty value, as of a variable that is not set, must not take protection away.
void check_not_empty(const Args& args, const ServeOptions& o) {
  const std::pair<const char*, const std::string*> values[] = {{"--host", &o.http.host},
                                                               {"--api-key-file", &o.http.key_file},
                                                               {"--tls-cert", &o.http.tls_certificate},
                                                               {"--tls-key", &o.http.tls_key}};
  for (const auto& [name, value] : values) {
    if (args.given(name) && value->empty())
      throw UsageError(fmt::format("{} is empty: give it a value or leave it out", name));
  }
  for (const std::string& name : o.api.names) {
    if (name.empty()) throw UsageError("--alias is empty: give it a value or leave it out");
  }
}

void check_strangers(const ServeOptions& o) {
  for (const std::string& host : o.http.allow_hosts) {
    if (!is_host_entry(host))
      throw UsageError(fmt::format("--allow-host must be NAME or NAME:PORT (IPv6 in brackets) or *, got '{}'",
                                   printable(host)));
  }
  for (const std::string& origin : o.http.allow_origins) {
    if (!is_origin_entry(origin))
      throw UsageError(fmt::format(
          "--allow-origin must be SCHEME://NAME or SCHEME://NAME:PORT or *, got '{}'", printable(origin)));
  }
}

void check(const ServeOptions& o) {
  const auto need = [](bool good, const std::string& message) {
    if (!good) throw UsageError(message);
  };
  need(o.http.tls_certificate.empty() == o.http.tls_key.empty(),
       "--tls-cert and --tls-key go together: give both");
  need(!o.api.budget_floor || (*o.api.budget_floor > 0 && *o.api.budget_floor <= 1),
       "--budget-floor must be above 0 and at most 1");
  need(o.api.target_latency > 0, "--target-latency must be above 0");
  need(o.api.limits.timeout_seconds >= 0 && o.api.limits.timeout_seconds <= kMostTimeout,
       fmt::format("--timeout must be from 0 to {:.0f} seconds", kMostTimeout));
}

}  // namespace

int64_t parse_bytes(const std::string& name, const std::string& text) {
  constexpr std::string_view kUnits = "KMGT";
  const size_t unit = text.empty() ? std::string::npos : kUnits.find(text.back());
  const bool has_unit = unit != std::string::npos;
  const int64_t scale = has_unit ? int64_t{1} << (10 * (unit + 1)) : 1;
  return scale * parse_integer(name, has_unit ? text.substr(0, text.size() - 1) : text, 1,
                               (int64_t{1} << 50) / scale);
}

bool parse_serve_options(Args& args, ServeOptions& o, const Arguments& arguments) {
  Written w;
  add_listening_options(args, o, w);
  add_model_options(args, o.model, true);
  add_depth_options(args, o, w);
  add_stranger_options(args, o);
  add_limit_options(args, o, w);
  add_log_options(args, o, w);
  if (!args.parse(arguments)) return false;
  check_model_options(args, o.model);
  take(args, w, o);
  check_not_empty(args, o);
  check_strangers(o);
  check(o);
  return true;
}

}  // namespace fathom
