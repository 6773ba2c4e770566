// fathom bench: speed, with its spread, beside what the memory allows and what a peer does in the same run.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/format.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/bandwidth.h"
#include "cli/bench_passes.h"
#include "cli/bench_peer.h"
#include "cli/bench_table.h"
#include "cli/bench_train.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/samples.h"
#include "cli/savings_line.h"
#include "cli/verbs.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

struct BenchChoice {
  ModelOptions model;
  std::vector<std::string> models, dtypes, budgets;
  int64_t prompt = 512, tokens = 128, repeats = 5, context = 0, batch = 1, chunk = 512;
  std::string peer, table, shape = "small";
  bool train = false;
};

// One model as it is measured: its own session, and what was seen of it.
struct Setting {
  std::string name;
  std::unique_ptr<Session> session;
  Samples prefill, decode, peer_prefill, peer_decode;
  Work decode_work;  // of all decode passes together
  int64_t decode_passes = 0;
  double decode_seconds = 0;
};

bool parse(Args& args, BenchChoice& o, const Arguments& arguments) {
  args.integer("-p,--prompt", o.prompt, "Tokens of the prefill test; 0: no such test", 0, 1 << 20);
  args.integer("-n,--tokens", o.tokens, "Tokens of the decode test; 0: no such test", 0, 1 << 20);
  args.integer("-r,--repeats", o.repeats, "Repetitions, after one to warm up", 1, 1000);
  args.integer("--context", o.context, "Tokens already in the cache when decode starts", 0, 1 << 20);
  args.integer("--batch", o.batch, "Sequences decoded together", 1, 4096);
  args.integer("--chunk", o.chunk, "Rows of a prefill pass", 1, 1 << 20);
  args.texts("--also", o.models, "MODEL", "Another model, measured in turns with the first; may be repeated");
  args.texts("--also-dtype", o.dtypes, "TYPE",
             "The first model again, its weights converted; may be repeated");
  args.texts("--also-budget", o.budgets, "B",
             "The first model again, at this budget (own: the method's own rule); may be repeated");
  args.text("--peer", o.peer, "llama.cpp=PATH",
            "llama.cpp's llama-bench or its folder, run in turns with us on the same files; with --train, "
            "torch=COMMAND");
  args.text("--table", o.table, "PARTS",
            "The table of docs/benchmarks.md: all, or some of " + table_parts() + ", with commas between");
  args.flag("--train", o.train, "Measure a training step instead, of a model of random weights");
  args.text(
      "--shape", o.shape, "SHAPE",
      "Of the model trained: small (12 x 256), smollm2, or for a GPU smollm2-16k, smollm2-64k (16 and 64 x "
      "1024 tokens) and llama-1b");
  add_model_options(args, o.model, true);
  if (!args.parse(arguments)) return false;
  if (o.train) {
    set_log_level(o.model.quiet ? LogLevel::kWarn : LogLevel::kInfo);
    warn_about_threads(o.model.threads);
    return true;
  }
  check_model_options(args, o.model);
  if (o.prompt == 0 && o.tokens == 0) throw UsageError("bench: -p 0 and -n 0 leave nothing to measure");
  return true;
}

void decode(Setting& setting, const BenchChoice& o, bool counts) {
  Session& session = *setting.session;
  std::vector<int32_t> sequences;
  for (int32_t s = 0; s < o.batch; ++s) {
    sequences.push_back(s);
    time_prefill(session.feeder(), s, o.context, o.chunk);
  }
  const Work before = session.feeder().work();
  const double seconds = time_decode(session.feeder(), sequences, o.tokens);
  if (!counts) return;
  const Work work = session.feeder().work() - before;
  setting.decode.values.push_back(static_cast<double>(o.tokens * o.batch) / seconds);
  setting.decode_work.weight_bytes += work.weight_bytes;
  setting.decode_work.cache_bytes += work.cache_bytes;
  setting.decode_passes += o.tokens;
  setting.decode_seconds += seconds;
}

void run_peer(const Peer& peer, Setting& setting, const BenchChoice& o) {
  const std::string& model = setting.session->model().path;
  const int threads = setting.session->ctx().pool().threads();
  if (o.prompt > 0)
    setting.peer_prefill.values.push_back(peer.run(model, o.prompt, 0, 0, threads).prefill_tokens_per_s);
  if (o.tokens == 0) return;
  setting.peer_decode.values.push_back(
      o.batch > 1 ? peer.run_batch(model, o.batch, std::max<int64_t>(1, o.context), o.tokens, threads)
                  : peer.run(model, 0, o.tokens, o.context, threads).decode_tokens_per_s);
}

// Every setting once, one after the other, and the peer between: a machine that slows down slows all of them.
void run_round(std::vector<Setting>& settings, const BenchChoice& o, const std::optional<Peer>& peer,
               bool counts) {
  for (Setting& setting : settings) {
    if (interrupted()) return;
    if (o.prompt > 0) {
      const double seconds = time_prefill(setting.session->feeder(), 0, o.prompt, o.chunk);
      if (counts) setting.prefill.values.push_back(static_cast<double>(o.prompt) / seconds);
    }
    if (o.tokens > 0) decode(setting, o, counts);
    if (!peer || !counts || interrupted()) continue;
    run_peer(*peer, setting, o);
  }
}

std::vector<Setting> open_settings(const BenchChoice& o) {
  std::vector<Setting> settings;
  const auto add = [&](const std::string& name, const ModelOptions& options) {
    Setting& setting = settings.emplace_back();
    setting.name = name;
    setting.session = std::make_unique<Session>(options);
    const int64_t longest = std::max(o.prompt, o.context + o.tokens);
    if (longest > setting.session->context()) {
      fail("bench: {} tokens are to be in the cache, the context has {}: raise -c or lower -p, -n, --context",
           longest, setting.session->context());
    }
    setting.session->make_cache(longest, o.batch);
  };
  add(o.model.model + (o.model.dtype.empty() ? "" : " as " + o.model.dtype), o.model);
  log_rule(*settings.front().session);
  for (const std::string& dtype : o.dtypes) {
    ModelOptions other = o.model;
    other.dtype = dtype;
    add(o.model.model + " as " + dtype, other);
  }
  for (const std::string& budget : o.budgets) {
    ModelOptions other = o.model;
    other.saved = 0;
    other.quality.clear();
    other.has_budget = budget != "own";
    other.budget = other.has_budget ? parse_number("--also-budget", budget) : 1;
    if (!(other.budget > 0 && other.budget <= 1))
      throw UsageError(
          fmt::format("--also-budget must be above 0 and at most 1, or own, got '{}'", printable(budget)));
    add(o.model.model + " at " + (other.has_budget ? fmt::format("{:g}", other.budget) : "its own rule"),
        other);
  }
  for (const std::string& model : o.models) {
    ModelOptions other = o.model;
    other.model = model;
    add(model, other);
  }
  return settings;
}

// Bytes a second that decode read, over what the memory can give.
double bandwidth_share(const Setting& s, double bandwidth) {
  const double bytes = static_cast<double>(s.decode_work.weight_bytes + s.decode_work.cache_bytes);
  return s.decode_seconds > 0 ? bytes / s.decode_seconds / bandwidth : 0;
}

// Tokens are drawn at random, so a budget is not to be met: only what ran is said.
void log_setting(const Setting& s, const BenchChoice& o) {
  const WorkBooks& books = s.session->feeder().books();
  const Savings savings = books.savings();
  if (!s.session->method() || savings.skip_ratio <= 0) return;
  const std::optional<double> budget = asked_budget(*s.session);
  log_info(fmt::format(
      "{}, {}: {:.3f} of the blocks' multiply-adds ran, {:.3f} of the bytes were read{}", printable(s.name),
      budget ? fmt::format("budget {:g}", *budget) : "no budget", savings.block_flops, savings.net_bytes,
      budget && std::abs(savings.block_flops - *budget) > 0.03
          ? fmt::format(" (bench's {} tokens are random, unlike any text)", o.prompt + o.tokens)
          : ""));
}

Json setting_json(const Setting& s, const BenchChoice& o, double bandwidth) {
  Json out;
  out["model"] = s.name;
  out["prefill_tokens_per_s"] = s.prefill.json();
  out["decode_tokens_per_s"] = s.decode.json();
  out["weight_bytes"] = s.session->model().weight_bytes();
  const auto passes = static_cast<uint64_t>(std::max<int64_t>(1, s.decode_passes));
  out["weight_bytes_read_per_pass"] = s.decode_work.weight_bytes / passes;
  out["cache_bytes_read_per_pass"] = s.decode_work.cache_bytes / passes;
  out["bandwidth_share"] = bandwidth_share(s, bandwidth);
  add_savings(out, s.session->feeder().savings());
  if (!o.peer.empty()) {
    const auto ratio = [](const Samples& ours, const Samples& theirs) {
      return theirs.median() > 0 ? ours.median() / theirs.median() : 0;
    };
    out["peer"] = {{"name", "llama.cpp"},
                   {"prefill_tokens_per_s", s.peer_prefill.json()},
                   {"decode_tokens_per_s", s.peer_decode.json()},
                   {"prefill_ratio", ratio(s.prefill, s.peer_prefill)},
                   {"decode_ratio", ratio(s.decode, s.peer_decode)}};
  }
  return out;
}

std::string wide_cell(const Json& samples) {
  return fmt::format("{:8.1f} ({:.1f}-{:.1f})", samples["median"].get<double>(), samples["min"].get<double>(),
                     samples["max"].get<double>());
}

void print_table(const Json& all, const BenchChoice& o, int threads) {
  std::string text = fmt::format(
      "{} threads, prefill {} tokens, decode {} tokens after {} ({} together), median (min-max) of {}\n",
      threads, o.prompt, o.tokens, o.context, o.batch, o.repeats);
  text += fmt::format("read bandwidth {:.1f} GB/s\n", all["bandwidth_bytes_per_s"].get<double>() / 1e9);
  for (const Json& s : all["settings"]) {
    text += fmt::format("\n{}\n", printable(s["model"].get<std::string>()));
    text += fmt::format("  prefill {} tokens/s\n", wide_cell(s["prefill_tokens_per_s"]));
    text += fmt::format("  decode  {} tokens/s, {:.0f} % of the bandwidth, {} of weights read for a pass\n",
                        wide_cell(s["decode_tokens_per_s"]), 100 * s["bandwidth_share"].get<double>(),
                        bytes_text(s["weight_bytes_read_per_pass"].get<int64_t>()));
    if (!s.contains("peer")) continue;
    const Json& peer = s["peer"];
    text += fmt::format("  llama.cpp prefill {} tokens/s: ours is {:.2f} x\n",
                        wide_cell(peer["prefill_tokens_per_s"]), peer["prefill_ratio"].get<double>());
    text += fmt::format("  llama.cpp decode  {} tokens/s: ours is {:.2f} x\n",
                        wide_cell(peer["decode_tokens_per_s"]), peer["decode_ratio"].get<double>());
  }
  print(text);
}

}  // namespace

int run_bench(const Arguments& arguments) {
  Args args("bench", "Measures prefill and decode. Several models and a peer take turns in one run.",
            "fathom bench -m SmolLM2-135M-Instruct.Q4_1.gguf --also-dtype q8_0 -t 2\n"
            "  fathom bench -m model-q8_0.gguf --peer llama.cpp=llama.cpp/build/bin/llama-bench\n"
            "  fathom bench -m model-q8_0.gguf --table all --peer llama.cpp=llama.cpp/build/bin\n"
            "  fathom bench --train --shape smollm2 --peer \"torch=python3 bench/torch_training.py\"");
  BenchChoice o;
  if (!parse(args, o, arguments)) return 0;
  if (o.train) {
    return run_bench_train(
        {o.shape, o.peer, o.model.dtype, o.model.device, o.model.threads, o.repeats, o.model.json});
  }
  std::optional<Peer> peer;
  if (!o.peer.empty()) peer.emplace(o.peer);
  if (!o.table.empty()) {
    return run_bench_table(
        {o.model, o.table, peer ? &*peer : nullptr, o.prompt, o.tokens, o.repeats, o.chunk});
  }
  std::vector<Setting> settings = open_settings(o);
  Context& ctx = settings.front().session->ctx();
  const double bandwidth = read_bandwidth(ctx);
  run_round(settings, o, peer, false);
  {
    Progress progress("bench", o.repeats);
    for (int64_t i = 0; i < o.repeats && !interrupted(); ++i) {
      run_round(settings, o, peer, true);
      progress.add(1);
    }
  }
  if (interrupted()) return kInterruptedExit;
  for (const Setting& setting : settings) log_setting(setting, o);

  Json out = setting_json(settings.front(), o, bandwidth);
  out["bandwidth_bytes_per_s"] = bandwidth;
  out["threads"] = ctx.pool().threads();
  out["isa"] = name_of(ctx.isa());
  out["repeats"] = o.repeats;
  for (const Setting& setting : settings) out["settings"].push_back(setting_json(setting, o, bandwidth));
  if (o.model.json) {
    print_json(out);
  } else {
    print_table(out, o, ctx.pool().threads());
  }
  return 0;
}

}  // namespace fathom
