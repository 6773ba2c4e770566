#include "cli/bench_table.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/progress.h"
#include "cli/bandwidth.h"
#include "cli/bench_lines.h"
#include "cli/bench_runner.h"
#include "cli/interrupt.h"
#include "cli/output.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kBenchParts[] = {"decode", "context", "prefill", "batch",
                                            "verify", "skip",    "routers", "load"};
constexpr int64_t kLongContext = 1900, kSequences = 16, kBatchPrompt = 16, kVerifyContext = 128,
                  kShortDecode = 32;

bool has_part(const std::string& parts, std::string_view part) {
  return parts == "all" || fmt::format(",{},", parts).find(fmt::format(",{},", part)) != std::string::npos;
}

void check_parts(const std::string& parts) {
  for (size_t begin = 0; begin <= parts.size() && parts != "all";) {
    const size_t end = std::min(parts.find(',', begin), parts.size());
    const std::string part = parts.substr(begin, end - begin);
    if (std::find(std::begin(kBenchParts), std::end(kBenchParts), part) == std::end(kBenchParts))
      throw UsageError(
          fmt::format("--table must be all or some of {}, got '{}'", table_parts(), printable(part)));
    begin = end + 1;
  }
}

class PartTable {
 public:
  PartTable(const TableOptions& o, Session& session)
      : o_(o),
        session_(session),
        bandwidth_(read_bandwidth(session.ctx())),
        dense_(add_runner({.tokens = std::max(o.prompt, o.tokens)})) {
    dense_decode_ = lines_.measure("dense", true, [this] { return dense_.decode(0, o_.tokens); });
    if (has_part(o.parts, "decode")) add_decode();
    if (has_part(o.parts, "context")) add_context();
    dense_prefill_ = lines_.measure("dense", true, [this] { return dense_.prefill(o_.prompt); });
    if (has_part(o.parts, "prefill")) add_prefill();
    if (has_part(o.parts, "batch")) add_batch();
    if (has_part(o.parts, "verify")) add_verify();
    if (has_part(o.parts, "skip")) add_skipping();
    if (has_part(o.parts, "routers")) add_routers();
    if (has_part(o.parts, "load")) add_load();
  }

  void run() {
    lines_.warm_up();
    Progress progress("bench", o_.repeats);
    for (int64_t i = 0; i < o_.repeats && !interrupted(); ++i) {
      lines_.round();
      progress.add(1);
    }
  }

  Json json() const {
    Json out{{"model", session_.model().path},
             {"prefill_tokens_per_s", lines_.samples_of(dense_prefill_).json()},
             {"decode_tokens_per_s", lines_.samples_of(dense_decode_).json()},
             {"weight_bytes", session_.model().weight_bytes()},
             {"bandwidth_bytes_per_s", bandwidth_}};
    out["bandwidth_share"] =
        dense_.decode_bytes() * out["decode_tokens_per_s"]["median"].get<double>() / bandwidth_;
    add_savings(out, dense_.savings());
    out["threads"] = threads();
    out["isa"] = name_of(session_.ctx().isa());
    out["repeats"] = o_.repeats;
    out["lines"] = lines_.json();
    return out;
  }

 private:
  BenchRunner& add_runner(BenchRunner::Options options) {
    options.chunk = o_.chunk;
    if (options.tokens > session_.context())
      fail("bench: {} tokens are to be in the cache, the context has {}: raise -c or leave that part out",
           options.tokens, session_.context());
    return runners_.emplace_back(session_, options);
  }
  BenchRunner& add_skipping_method(const Json& method, SkippedKv skipped_kv) {
    return add_runner(
        {.method = method.dump(), .skipped_kv = skipped_kv, .tokens = std::max(o_.prompt, o_.tokens)});
  }
  int ours(const std::string& name, std::function<double()> run) {
    return lines_.measure(name, true, std::move(run));
  }
  // Measured right after what is held against it. None without a peer.
  int peer(std::function<double()> run) {
    return o_.peer ? lines_.measure("llama.cpp", false, std::move(run)) : kNoMeasure;
  }
  const std::string& path() const { return session_.model().path; }
  int threads() const { return session_.ctx().pool().threads(); }
  int64_t short_decode() const { return std::min(o_.tokens, kShortDecode); }
  std::function<Note(double)> bandwidth_share(const BenchRunner& runner) const {
    return [this, &runner](double speed) {
      return Note{"% of the bandwidth", 100 * runner.decode_bytes() * speed / bandwidth_};
    };
  }

  void add_decode() {
    const int theirs =
        peer([this] { return o_.peer->run(path(), 0, o_.tokens, 0, threads()).decode_tokens_per_s; });
    lines_.line({fmt::format("decode {}", o_.tokens), dense_decode_, theirs, 1.3, kNoMeasure,
                 bandwidth_share(dense_)});
  }

  void add_context() {
    const int64_t steps = short_decode();
    BenchRunner& runner = add_runner({.tokens = kLongContext + steps});
    const int mine = ours("fathom", [&runner, steps] { return runner.decode(kLongContext, steps); });
    const int theirs = peer([this, steps] {
      return o_.peer->run(path(), 0, steps, kLongContext, threads()).decode_tokens_per_s;
    });
    lines_.line({fmt::format("decode {} at context {}", steps, kLongContext), mine, theirs, 2.0, kNoMeasure,
                 bandwidth_share(runner)});
    lines_.line({"  against an empty cache", mine, dense_decode_, 0, kNoMeasure, [this, &runner](double) {
                   return Note{"by bytes", dense_.decode_bytes() / runner.decode_bytes()};
                 }});
  }

  void add_prefill() {
    const int theirs =
        peer([this] { return o_.peer->run(path(), o_.prompt, 0, 0, threads()).prefill_tokens_per_s; });
    lines_.line(
        {fmt::format("prefill {}", o_.prompt), dense_prefill_, theirs, 1.3, kNoMeasure, [this](double speed) {
           return Note{"Gop/s a thread", 2e-9 * dense_.prefill_madds() * speed / threads()};
         }});
  }

  void add_batch() {
    const int64_t steps = short_decode();
    BenchRunner& runner = add_runner({.tokens = kBatchPrompt + steps, .sequences = kSequences});
    const int mine = ours("fathom", [&runner, steps] { return runner.decode(kBatchPrompt, steps); });
    const int theirs = peer(
        [this, steps] { return o_.peer->run_batch(path(), kSequences, kBatchPrompt, steps, threads()); });
    lines_.line(
        {fmt::format("decode {}, {} sequences", steps, kSequences), mine, theirs, 1.3, dense_decode_});
  }

  void add_verify() {
    constexpr std::pair<int64_t, double> kBars[] = {{2, 1.8}, {4, 3.2}, {8, 0.0}};
    const int64_t passes = short_decode();
    BenchRunner& runner = add_runner({.tokens = kVerifyContext + 8});
    const auto rows_at_once = [&runner, passes](int64_t rows) {
      return [&runner, passes, rows] { return runner.verify(kVerifyContext, rows, passes); };
    };
    const int one = ours("one row", rows_at_once(1));
    for (const auto& [rows, bar] : kBars) {
      const std::string name = fmt::format("{} rows of a sequence", rows);
      lines_.line({name, ours(name, rows_at_once(rows)), one, bar});
    }
  }

  // The same share of units per row: at random, and the same ones for all rows, known before. What is made of
  // the skipped rows' keys and values is the same for both, so that the two differ in nothing else.
  void add_skipping() {
    const int64_t layers = session_.model().config.layers;
    for (const SkippedKv rule : {SkippedKv::kProject, SkippedKv::kCopyFromBelow, SkippedKv::kHide}) {
      const std::string_view kv = enum_names(rule)[static_cast<size_t>(rule)];
      for (const double share : {0.25, 0.5}) {
        const auto count = static_cast<int64_t>(std::lround(share * static_cast<double>(layers)));
        std::vector<int64_t> drop;
        for (int64_t layer = 0; layer < layers; ++layer) {
          if ((layer + 1) * count / layers == layer * count / layers) continue;
          drop.insert(drop.end(), {2 * layer, 2 * layer + 1});
        }
        const double kept = 1 - static_cast<double>(count) / static_cast<double>(layers);
        add_skipping_lines(fmt::format("{:.0f} % skipped, {}", 100 * share, kv),
                           add_skipping_method({{"name", "random"}, {"rows_kept", kept}}, rule),
                           add_skipping_method({{"name", "harm_order"}, {"drop", drop}}, rule));
      }
    }
  }
  void add_skipping_lines(const std::string& name, BenchRunner& random, BenchRunner& fixed) {
    int mine = ours("random", [this, &random] { return random.decode(0, o_.tokens); });
    int theirs = ours("removed", [this, &fixed] { return fixed.decode(0, o_.tokens); });
    lines_.line({"decode, " + name, mine, theirs, 0.9, dense_decode_, [this, &random](double) {
                   return Note{"by bytes", dense_.decode_bytes() / random.decode_bytes()};
                 }});
    mine = ours("random", [this, &random] { return random.prefill(o_.prompt); });
    theirs = ours("removed", [this, &fixed] { return fixed.prefill(o_.prompt); });
    lines_.line({"prefill, " + name, mine, theirs, 0.9, dense_prefill_, [this, &random](double) {
                   return Note{"by multiply-adds", dense_.prefill_madds() / random.prefill_madds()};
                 }});
  }

  // Every unit asks and every row stays.
  void add_routers() {
    struct Kind {
      const char *name, *method;
      float threshold;  // below every score
      double bar;
    };
    constexpr Kind kKinds[] = {{"scalar routers", R"({"name": "priced"})", 0.0f, 0.97},
                               {"vector gates", R"({"name": "gate_skip"})", -1.0f, 0.0}};
    for (const Kind& kind : kKinds) {
      BenchRunner& runner = add_runner({.method = kind.method,
                                        .threshold = kind.threshold,
                                        .has_threshold = true,
                                        .tokens = std::max(o_.prompt, o_.tokens)});
      const int decode = ours(kind.name, [this, &runner] { return runner.decode(0, o_.tokens); });
      const int again = ours("dense", [this] { return dense_.decode(0, o_.tokens); });
      lines_.line({fmt::format("decode, {}", kind.name), decode, again, kind.bar});
      const int prefill = ours(kind.name, [this, &runner] { return runner.prefill(o_.prompt); });
      const int prefill_again = ours("dense", [this] { return dense_.prefill(o_.prompt); });
      lines_.line({fmt::format("prefill, {}", kind.name), prefill, prefill_again, kind.bar});
    }
  }

  void add_load() {
    // The second of two: the file is in the page cache, and the memory that the first one gave back is at
    // hand (a virtual machine may have to ask its host for it again after a while).
    const int mine = ours("fathom", [this] {
      load_to_run(load_request(o_.model));
      return 1 / load_to_run(load_request(o_.model)).load_seconds;
    });
    lines_.line({"loads a second, warm", mine, kNoMeasure, 0, kNoMeasure, [](double speed) {
                   return Note{"s", 1 / speed};
                 }});
  }

  const TableOptions& o_;
  Session& session_;
  double bandwidth_;
  std::deque<BenchRunner> runners_;  // references to them stay
  BenchRunner& dense_;
  int dense_decode_ = kNoMeasure, dense_prefill_ = kNoMeasure;
  BenchLines lines_;
};

}  // namespace

std::string table_parts() {
  std::string names;
  for (const std::string_view part : kBenchParts) names += (names.empty() ? "" : ",") + std::string(part);
  return names;
}

int run_bench_table(const TableOptions& o) {
  check_parts(o.parts);
  if (o.prompt == 0 || o.tokens == 0) throw UsageError("bench: --table needs -p and -n above 0");
  Session session(o.model);
  PartTable table(o, session);
  table.run();
  if (interrupted()) return kInterruptedExit;
  const Json out = table.json();
  if (o.model.json) {
    print_json(out);
  } else {
    print(fmt::format("{}: {} threads, {}, read bandwidth {:.1f} GB/s, median (min-max) of {} rounds\n\n{}",
                      printable(o.model.model), out["threads"].get<int>(), out["isa"].get<std::string>(),
                      out["bandwidth_bytes_per_s"].get<double>() / 1e9, o.repeats, lines_text(out["lines"])));
  }
  return 0;
}

}  // namespace fathom
