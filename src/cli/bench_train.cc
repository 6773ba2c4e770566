// fathom bench --train: a training step, dense, with rows that skip, and with fewer blocks; PyTorch in turns.
#include "cli/bench_train.h"

#include <sys/resource.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/process.h"
#include "base/progress.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/samples.h"
#include "model/flops.h"
#include "train/config.h"
#include "train/step_timer.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

struct TrainShape {
  const char* name;
  int64_t width, layers, heads, kv_heads, ffn, vocab, batch, context;
  bool dense_only = false;  // one model of this size at a time
};
constexpr TrainShape kShapes[] = {{"small", 256, 12, 4, 4, 1024, 4096, 8, 256},
                                  {"smollm2", 576, 30, 9, 3, 1536, 49152, 2, 256},
                                  {"smollm2-16k", 576, 30, 9, 3, 1536, 49152, 16, 1024},
                                  {"smollm2-64k", 576, 30, 9, 3, 1536, 49152, 64, 1024},
                                  {"llama-1b", 2048, 16, 32, 8, 8192, 128256, 8, 2048, true}};

const TrainShape& shape_named(const std::string& name) {
  for (const TrainShape& shape : kShapes) {
    if (name == shape.name) return shape;
  }
  std::string names;
  for (const TrainShape& shape : kShapes) names += (names.empty() ? "" : ", ") + std::string(shape.name);
  throw UsageError(fmt::format("--shape must be one of {}, got '{}'", names, printable(name)));
}

// What is timed, each against the first.
struct Variant {
  const char* name;
  const char* method;
  bool half;                  // of the blocks
  int64_t mean_document = 0;  // 0: sequences as long as the context
};
// The first four, which other figures are computed from, on every device; the rest on a GPU, where a step
// takes little time.
constexpr size_t kEverywhere = 4, kDistilled = 5;
constexpr int kWaitSteps = 5;  // in which a GPU's waits are measured, apart from those that are timed
constexpr Variant kVariants[] = {
    {"dense", R"({"name": "dense"})", false},
    {"half the blocks removed", R"({"name": "dense"})", true},
    {"half the rows kept",
     R"({"name": "random", "units": "block", "share_end": 0.5, "train_skipped_kv": "hide"})", false},
    {"no row kept", R"({"name": "random", "units": "block", "share_end": 0, "train_skipped_kv": "hide"})",
     false},
    {"documents of 300", R"({"name": "dense"})", false, 300},
    {"distilled", R"({"name": "dense", "objective": "distill"})", false},
    {"SkipLayer, K/V projected", R"({"name": "skip_layer", "share_end": 0.5, "train_skipped_kv": "project"})",
     false},
    {"priced at 0.75, drop",
     R"({"name": "priced", "st_skipped": "drop", "share_end": 0.75, "init": "paper"})", false}};

ModelConfig model_of(const TrainShape& shape, bool half) {
  TrainConfig config;
  config.context = shape.context;
  config.model.width = shape.width;
  config.model.layers = half ? shape.layers / 2 : shape.layers;
  config.model.heads = shape.heads;
  config.model.kv_heads = shape.kv_heads;
  config.model.ffn_width = shape.ffn;
  config.model.vocab = shape.vocab;
  config.model.context = shape.context;
  config.model.tied = true;
  return complete_model(config.model, config, nullptr);
}

// One repetition of PyTorch's: `command` (words) with the shape behind it prints {"tokens_per_s",
// "peak_bytes"}.
Json run_torch(const std::string& command, const TrainShape& s, const char* precision, int threads,
               const std::string& device, const char* objective) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < command.size();) {
    const size_t end = std::min(command.find(' ', begin), command.size());
    if (end > begin) words.push_back(command.substr(begin, end - begin));
    begin = end + 1;
  }
  for (const int64_t value : {s.width, s.layers, s.heads, s.kv_heads, s.ffn, s.vocab, s.batch, s.context})
    words.push_back(std::to_string(value));
  words.insert(words.end(), {precision, std::to_string(threads), device, objective});
  const ProcessResult result = run_process(words);
  const Json json = Json::parse(result.out, nullptr, false);
  if (result.exit_code != 0 || !json.is_object()) fail_process(command, result);
  return json;
}

int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

void print_table(const Json& out) {
  std::string text =
      fmt::format("{}: training step of {} tokens, {} threads, {}, median (min-max) of {}\n",
                  out["shape"].get<std::string>(), out["tokens"].get<int64_t>(), out["threads"].get<int>(),
                  out["precision"].get<std::string>(), out["repeats"].get<int64_t>());
  for (const Json& v : out["variants"]) {
    const Json& speed = v["tokens_per_s"];
    text += fmt::format("  {:<24} {:9.1f} ({:.1f}-{:.1f}) tokens/s, {:.2f} x dense, skipped {:.1f} %",
                        v["name"].get<std::string>(), speed["median"].get<double>(),
                        speed["min"].get<double>(), speed["max"].get<double>(), v["speed_up"].get<double>(),
                        100 * v["skip_ratio"].get<double>());
    if (v.contains("waits_data"))
      text += fmt::format(", waits for data {:.2f} %, idle for counts {:.2f} %",
                          100 * v["waits_data"].get<double>(), 100 * v["idle_counts"].get<double>());
    text += "\n";
  }
  text += fmt::format("  dense: {:.1f} TFLOP/s, two for each multiply-add of forward and backward\n",
                      out["train_tflops"].get<double>());
  if (out.contains("share_of_ideal_speed_up")) {
    text += fmt::format("  half the rows kept gives {:.0f} % of the speed-up of half the blocks removed\n",
                        100 * out["share_of_ideal_speed_up"].get<double>());
    text += fmt::format("  no row kept takes {:.1f} % of the dense blocks' time, forward and backward\n",
                        100 * out["none_kept_share_of_blocks_time"].get<double>());
  }
  text += fmt::format("  peak memory of the dense step {}, of which activations {}\n",
                      bytes_text(out["peak_bytes"].get<int64_t>()),
                      bytes_text(out["activation_bytes"].get<int64_t>()));
  for (const Json& peer : out["peers"]) {
    const Json& speed = peer["tokens_per_s"];
    text += fmt::format(
        "  PyTorch {:<5}{:<11} {:9.1f} ({:.1f}-{:.1f}) tokens/s: ours is {:.2f} x; peak memory {}\n",
        peer["precision"].get<std::string>(), peer["objective"].get<std::string>(),
        speed["median"].get<double>(), speed["min"].get<double>(), speed["max"].get<double>(),
        peer["ratio"].get<double>(), bytes_text(peer["peak_bytes"].get<int64_t>()));
  }
  print(text);
}

// What is measured, in turns: the variants, and PyTorch where there is a command for it.
class TrainBench {
 public:
  TrainBench(const TrainBenchOptions& options, std::string torch)
      : o_(options),
        shape_(shape_named(options.shape)),
        torch_(std::move(torch)),
        ctx_(context_options(options.device, options.threads)),
        tape_(ctx_.device()) {
    const size_t count = shape_.dense_only                ? 1
                         : ctx_.device() == Device::kCuda ? std::size(kVariants)
                                                          : kEverywhere;
    for (size_t v = 0; v < count; ++v) add_timer(kVariants[v]);
  }

  void measure() {
    Progress progress("bench", o_.repeats);
    for (int64_t i = 0; i < o_.repeats && !interrupted(); ++i) {
      time_variants();
      if (!torch_.empty() && (!on_gpu() || i == 0 || i + 1 == o_.repeats)) time_peers();
      progress.add(1);
    }
    for (size_t v = 0; on_gpu() && v < timers_.size() && !interrupted(); ++v)
      waits_[v] = timers_[v]->waits(kWaitSteps);
  }

  Json json() {
    Json out;
    out["shape"] = o_.shape;
    out["tokens"] = timers_[0]->rows();
    out["device"] = o_.device;
    out["threads"] = ctx_.pool().threads();
    out["precision"] = is_f32() ? "f32" : "bf16";
    out["repeats"] = o_.repeats;
    out["variants"] = variants_json();
    out["train_tokens_per_s"] = speeds_[0].json();
    out["train_tflops"] = dense_tflops();
    if (!shape_.dense_only) {
      out["share_of_ideal_speed_up"] = seconds(1) / seconds(2);
      out["none_kept_share_of_blocks_time"] = none_kept_share();
    }
    out["peak_bytes"] = dense_peak_;
    out["activation_bytes"] = dense_activations_;
    out["peers"] = peers_json();
    return out;
  }

 private:
  // What PyTorch runs. On a GPU f32 is left out, and starting it takes a minute: first and last only.
  struct Peer {
    const char *precision, *objective;
    bool on_cpu, on_gpu;
  };
  static constexpr std::array kPeers{Peer{"f32", "ce", true, false}, Peer{"bf16", "ce", true, true},
                                     Peer{"bf16", "distill", false, true}};
  bool on_gpu() const { return ctx_.device() == Device::kCuda; }
  bool runs(const Peer& peer) const {
    if (shape_.dense_only && std::string_view(peer.objective) == "distill") return false;
    return on_gpu() ? peer.on_gpu : peer.on_cpu;
  }
  bool is_f32() const { return o_.precision == "f32"; }

  void add_timer(const Variant& variant) {
    StepTimerOptions options;
    options.model = model_of(shape_, variant.half);
    options.precision = is_f32() ? Precision::kF32 : Precision::kBf16;
    options.batch = shape_.batch;
    options.context = shape_.context;
    options.method = variant.method;
    options.mean_document = variant.mean_document;
    timers_.push_back(std::make_unique<StepTimer>(ctx_, options, tape_));
    timers_.back()->step();
    if (timers_.size() > 1) return;  // the first one's memory, before the others take theirs
    dense_activations_ = static_cast<int64_t>(tape_.peak_bytes());
    dense_peak_ =
        on_gpu() ? static_cast<int64_t>(timers_[0]->state_bytes() + tape_.held_bytes()) : peak_memory();
  }
  void time_variants() {
    for (size_t v = 0; v < timers_.size(); ++v) {
      const StepTimer::Seconds seconds = timers_[v]->step();
      speeds_[v].values.push_back(static_cast<double>(timers_[v]->rows()) / seconds.all);
      passes_[v].values.push_back(seconds.pass);
    }
  }
  void time_peers() {
    for (size_t p = 0; p < peers_.size() && !interrupted(); ++p) {
      if (!runs(kPeers[p])) continue;
      const Json json = run_torch(torch_, shape_, kPeers[p].precision, ctx_.pool().threads(), o_.device,
                                  kPeers[p].objective);
      peers_[p].values.push_back(json.value("tokens_per_s", 0.0));
      peer_bytes_[p] = json.value("peak_bytes", int64_t{0});
    }
  }

  // Backward takes twice forward's multiply-adds.
  double dense_tflops() const {
    const DenseWork work = dense_work(model_of(shape_, false), shape_.context, 0, shape_.context);
    const auto madds = static_cast<double>(work.block_madds + work.output_madds);
    return speeds_[0].median() * 3 * 2 * madds / static_cast<double>(shape_.context) / 1e12;
  }
  double seconds(size_t v) const { return static_cast<double>(timers_[v]->rows()) / speeds_[v].median(); }
  // Blocks' time: what half of them takes, twice; the rest is embedding, output and loss.
  double none_kept_share() const {
    const double blocks = 2 * (passes_[0].median() - passes_[1].median()),
                 rest = passes_[0].median() - blocks;
    return (passes_[3].median() - rest) / blocks;
  }
  Json variants_json() const {
    Json all = Json::array();
    for (size_t v = 0; v < timers_.size(); ++v) {
      all.push_back({{"name", kVariants[v].name},
                     {"tokens_per_s", speeds_[v].json()},
                     {"speed_up", seconds(0) / seconds(v)},
                     {"skip_ratio", timers_[v]->skip_ratio()}});
      if (!on_gpu()) continue;
      all.back()["waits_data"] = waits_[v].data;
      all.back()["idle_counts"] = waits_[v].counts;
    }
    return all;
  }
  Json peers_json() const {
    Json all = Json::array();
    for (size_t p = 0; p < peers_.size() && !torch_.empty(); ++p) {
      if (!runs(kPeers[p])) continue;
      const size_t ours = std::string_view(kPeers[p].objective) == "distill" ? kDistilled : 0;
      all.push_back({{"name", "PyTorch"},
                     {"precision", kPeers[p].precision},
                     {"objective", kPeers[p].objective},
                     {"tokens_per_s", peers_[p].json()},
                     {"ratio", speeds_[ours].median() / std::max(1e-9, peers_[p].median())},
                     {"peak_bytes", peer_bytes_[p]}});
    }
    return all;
  }

  const TrainBenchOptions& o_;
  const TrainShape& shape_;
  std::string torch_;
  Context ctx_;
  Tape tape_;
  std::vector<std::unique_ptr<StepTimer>> timers_;
  std::array<Samples, std::size(kVariants)> speeds_, passes_;
  std::array<StepTimer::Waits, std::size(kVariants)> waits_{};
  std::array<Samples, kPeers.size()> peers_;
  std::array<int64_t, kPeers.size()> peer_bytes_{};
  int64_t dense_peak_ = 0, dense_activations_ = 0;
};

// The command of "torch=COMMAND"; "": there is none.
std::string torch_command(const std::string& peer) {
  constexpr std::string_view kTorch = "torch=";
  if (!peer.empty() && !peer.starts_with(kTorch))
    throw UsageError(fmt::format("--peer must be torch=COMMAND for --train, got '{}'", printable(peer)));
  return peer.empty() ? "" : peer.substr(kTorch.size());
}

}  // namespace

int run_bench_train(const TrainBenchOptions& o) {
  shape_named(o.shape);
  const std::string torch = torch_command(o.peer);
  if (!o.precision.empty() && o.precision != "f32" && o.precision != "bf16")
    throw UsageError(
        fmt::format("--dtype must be f32 or bf16 for --train, got '{}'", printable(o.precision)));
  TrainBench bench(o, torch);
  bench.measure();
  if (interrupted()) return kInterruptedExit;
  const Json out = bench.json();
  if (o.json) {
    print_json(out);
  } else {
    print_table(out);
  }
  return 0;
}

}  // namespace fathom
