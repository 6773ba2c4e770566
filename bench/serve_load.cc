// Load for any server with OpenAI's API: C clients that each wait for their answer (closed loop), or Poisson
// arrivals that wait for none (open loop); streaming, greedy, distinct prompts. Several servers, and several
// sets of fields, are measured in turns.
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/format.h"
#include "base/mapped_file.h"
#include "cli/args.h"
#include "cli/output.h"
#include "load/load_report.h"
#include "load/prompts.h"
#include "load/thread_times.h"

namespace {

using namespace fathom;
using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> servers, fields;
  std::string clients = "1", rates, text, plot, plotted = "total";
  int64_t requests = 0, prompt_tokens = 128, new_tokens = 128, vocab = 32000, seed = 1, arrival_seed = -1,
          rounds = 1, warm = 1, pid = 0;
  double seconds = 30;
  bool json = false;
};

// A line of the picture: who is asked, and with which fields.
struct Line {
  std::string name;
  Server server;
  Json fields;
};

std::pair<std::string, std::string> named(const std::string& option, const std::string& text) {
  const size_t at = text.find('=');
  if (at == std::string::npos || at == 0)
    throw UsageError(fmt::format("{} must be NAME=VALUE, got {}", option, printable(text)));
  return {text.substr(0, at), text.substr(at + 1)};
}

Server server_of(const std::string& text) {
  const auto [name, address] = named("--server", text);
  const size_t colon = address.find(':');
  if (colon == std::string::npos)
    throw UsageError(fmt::format("--server must be NAME=ADDRESS:PORT, got {}", printable(text)));
  const int64_t port = parse_integer("--server", address.substr(colon + 1), 1, 65535);
  return {name, address.substr(0, colon), static_cast<uint16_t>(port)};
}

Json fields_of(const std::string& text) {
  Json fields = Json::parse(text, nullptr, false);
  if (!fields.is_object())
    throw UsageError("--fields must be NAME={…} with a JSON object, got " + printable(text));
  return fields;
}

std::vector<Line> lines_of(const Options& o) {
  std::vector<Line> lines;
  const auto servers = o.servers.empty() ? std::vector<std::string>{"server=127.0.0.1:8080"} : o.servers;
  for (const std::string& each : servers) {
    const Server server = server_of(each);
    if (o.fields.empty()) lines.push_back({server.name, server, Json::object()});
    for (const std::string& text : o.fields) {
      const auto [name, fields] = named("--fields", text);
      lines.push_back({servers.size() > 1 ? server.name + ", " + name : name, server, fields_of(fields)});
    }
  }
  return lines;
}

std::vector<double> loads_of(const Options& o) {
  const bool open = !o.rates.empty();
  const char* name = open ? "--rate" : "--clients";
  std::vector<double> loads;
  for (const std::string& text : split_list(name, open ? o.rates : o.clients)) {
    loads.push_back(open ? parse_number(name, text)
                         : static_cast<double>(parse_integer(name, text, 1, 10000)));
    if (loads.back() <= 0) throw UsageError(fmt::format("{} must be above 0, got {}", name, text));
  }
  return loads;
}

std::string body_of(const Options& o, const Line& line, const std::vector<int32_t>& prompt) {
  Json body{{"prompt", prompt}, {"max_tokens", o.new_tokens},
            {"temperature", 0}, {"ignore_eos", true},
            {"stream", true},   {"stream_options", {{"include_usage", true}}}};
  body.update(line.fields);
  return body.dump();
}

class Measurement {
 public:
  explicit Measurement(const Options& o)
      : o_(o), open_(!o.rates.empty()), lines_(lines_of(o)), loads_(loads_of(o)) {
    for (const Line& line : lines_)
      prompts_.push_back(o.text.empty() ? Prompts(static_cast<int32_t>(o.vocab))
                                        : Prompts(line.server, read_text_file(o.text)));
  }

  bool open_loop() const { return open_; }

  std::vector<LoadRun> run() {
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (o_.warm > 0) run_load(plan(i, 0, std::vector<double>(static_cast<size_t>(o_.warm), 0.0), o_.warm));
    }
    std::vector<LoadRun> runs;
    for (const double load : loads_) {
      for (int64_t round = 0; round < o_.rounds; ++round) {
        for (size_t i = 0; i < lines_.size(); ++i) runs.push_back(run_one(i, load, round));
      }
    }
    return runs;
  }

 private:
  // Every plan has other prompts: a server may keep what it computed.
  LoadPlan plan(size_t line, double load, std::vector<double> arrivals, int64_t requests) {
    LoadPlan plan{.server = lines_[line].server, .bodies = {}, .arrivals = std::move(arrivals)};
    plan.clients = static_cast<int64_t>(load);
    for (int64_t i = 0; i < requests; ++i)
      plan.bodies.push_back(body_of(
          o_, lines_[line], prompts_[line].make(static_cast<uint64_t>(o_.seed), made_++, o_.prompt_tokens)));
    return plan;
  }

  // Arrivals are the same for all lines.
  LoadRun run_one(size_t line, double load, int64_t round) {
    std::vector<double> arrivals;
    int64_t requests = o_.requests > 0 ? o_.requests : static_cast<int64_t>(2 * load);
    if (open_) {
      arrivals = poisson_arrivals(load, o_.seconds, static_cast<uint64_t>(arrival_seed() * 1000 + round));
      requests = std::ssize(arrivals);
    }
    const LoadPlan ready = plan(line, load, std::move(arrivals), requests);
    const auto before = o_.pid > 0 ? thread_times(o_.pid) : std::map<std::string, double>();
    LoadRun run{.line = lines_[line].name, .load = load, .round = round, .requests = run_load(ready)};
    if (o_.pid > 0) run.threads = difference(thread_times(o_.pid), before);
    if (!o_.json)
      std::fprintf(stderr, "%s, %g, round %d: %.1f tokens/s\n", run.line.c_str(), load,
                   static_cast<int>(round + 1), tokens_per_second(run));
    return run;
  }

  int64_t arrival_seed() const { return o_.arrival_seed < 0 ? o_.seed : o_.arrival_seed; }

  const Options& o_;
  const bool open_;
  const std::vector<Line> lines_;
  const std::vector<double> loads_;
  std::vector<Prompts> prompts_;
  int64_t made_ = 0;
};

bool parse(Options& o, const std::vector<std::string>& arguments) {
  Args args("serve_load", "Measures servers with OpenAI's API under load.",
            "serve_load --clients 1,8,32 --rounds 3\n"
            "  serve_load --rate 1,2,4 --seconds 60 --fields 'full={\"budget\": 1}' --plot load.png");
  args.texts("--server", o.servers, "NAME=ADDRESS:PORT", "May be repeated (default: 127.0.0.1:8080)");
  args.texts("--fields", o.fields, "NAME={…}",
             "More fields of each request, JSON; another line, may be repeated");
  args.text("--clients", o.clients, "LIST", "Closed loop: how many at once");
  args.text("--rate", o.rates, "LIST", "Open loop: requests a second, Poisson");
  args.integer("--requests", o.requests, "Of each closed run; 0: two of each client", 0, 1'000'000);
  args.number("--seconds", o.seconds, "In which the requests of an open run arrive");
  args.integer("--prompt-tokens", o.prompt_tokens, "Of each prompt", 1, 1'000'000);
  args.integer("--new-tokens", o.new_tokens, "Of each answer", 1, 1'000'000);
  args.text("--text", o.text, "FILE", "Prompts are pieces of it (default: random tokens)");
  args.integer("--vocab", o.vocab, "Random tokens are below", 1000, 10'000'000);
  args.integer("--seed", o.seed, "Of prompts and arrivals", 0, INT32_MAX);
  args.integer("--arrival-seed", o.arrival_seed,
               "Of arrivals alone: at another rate the same ones, stretched (default: --seed)", 0, INT32_MAX);
  args.integer("--rounds", o.rounds, "Of every run, in turns", 1, 1000);
  args.integer("--warm", o.warm, "Requests before, at once, that are not counted", 0, 1000);
  args.integer("--pid", o.pid, "The server's process: its CPU time by thread is shown", 0, INT32_MAX);
  args.text("--plot", o.plot, "FILE.png", "A picture, by gnuplot");
  args.choice("--plotted", o.plotted, {"total", "first", "between"}, "The time that it shows");
  args.flag("--json", o.json, "One object instead of the table");
  return args.parse(arguments);
}

void measure(const Options& o) {
  Measurement measurement(o);
  const std::vector<LoadRun> runs = measurement.run();
  if (o.json)
    print_json(load_json(runs, measurement.open_loop()));
  else
    print(load_table(runs, measurement.open_loop()));
  const PlottedTime which = o.plotted == "first"     ? PlottedTime::kFirstToken
                            : o.plotted == "between" ? PlottedTime::kBetweenTokens
                                                     : PlottedTime::kTotal;
  if (!o.plot.empty()) plot_load(o.plot, runs, measurement.open_loop(), which);
}

}  // namespace

int main(int count, char** values) {
  try {
    Options o;
    if (parse(o, {values + 1, values + count})) measure(o);
    return 0;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "serve_load: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "serve_load: %s\n", error.what());
    return 1;
  }
}
