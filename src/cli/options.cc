#include "cli/options.h"

#include <cctype>
#include <chrono>
#include <limits>

#include "base/format.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "quant/formats.h"

namespace fathom {
namespace {

constexpr int64_t kMostThreads = 1024;
constexpr int64_t kLongestContext = int64_t{1} << 24;

[[noreturn]] void usage(const std::string& message) {
  throw UsageError(message);
}

std::string weight_type_names() {
  std::string names;
  for (int i = 0; i < kDTypes; ++i) {
    const auto type = static_cast<DType>(i);
    if (can_encode(type)) names += (names.empty() ? "" : ", ") + std::string(name_of(type));
  }
  return names;
}

// "-1": a new one each time.
uint64_t parse_seed(const std::string& text) {
  const int64_t value = parse_integer("--seed", text, -1, INT64_MAX);
  if (value >= 0) return static_cast<uint64_t>(value);
  const auto now = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const uint64_t seed = now * 0x9E3779B97F4A7C15u >> 33;
  log_info(fmt::format("seed {}", seed));
  return seed;
}

std::pair<int32_t, float> parse_bias(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos)
    usage(fmt::format("--logit-bias must be TOKEN:VALUE, got '{}'", printable(text)));
  const std::string value = text.substr(colon + 1);
  const auto id =
      static_cast<int32_t>(parse_integer("the token of --logit-bias", text.substr(0, colon), 0, INT32_MAX));
  return {id, value == "-inf" ? -std::numeric_limits<float>::infinity()
                              : static_cast<float>(parse_number("the value of --logit-bias", value))};
}

}  // namespace

void add_model_options(Args& args, ModelOptions& o, bool runs) {
  args.group("Model");
  args.text(
      "-m,--model", o.model, "MODEL",
      "Hugging Face folder, .gguf, llama2.c .bin (with --tokenizer), a checkpoint of train, org/name from "
      "the local Hugging Face cache, or builtin");
  args.text("--tokenizer", o.tokenizer, "FILE", "Tokenizer, when the model's own files hold none");
  args.flag("--no-mmap", o.no_mmap, "Read the file into memory instead of mapping it");
  args.flag("--json", o.json, "Print one JSON object and nothing else on stdout");
  args.flag("-q,--quiet", o.quiet, "Only warnings and errors on stderr");
  if (!runs) return;
  add_run_options(args, o);
  args.flag("--context-shift", o.context_shift, "When the context is full, forget the older half and go on");
  args.group("How much of the model runs");
  args.share(
      "--budget", o.budget,
      "Share of the blocks' multiply-adds to run, 1: all (default: the method's own rule. GateSkip and "
      "priced run everything, SkipLayer and MoD the share that ran in training, others by their "
      "scores)");
  args.share("--saved", o.saved, "The same the other way round: 1 - budget");
  args.text(
      "--quality", o.quality, "Q",
      "The smallest calibrated budget that keeps kl=NATS a token or ppl=RATIO (see calibrate --quality)");
  add_adapter_options(args, o);
  args.choice("--execution", o.execution, {"physical", "masked"},
              "masked: compute everything and mask, the slow oracle");
  args.choice("--decide", o.decide, {"batch_quantile"}, "A paper's own rule, for reproduction");
}

void add_adapter_options(Args& args, ModelOptions& o) {
  args.text("--adapter", o.adapter, "DIR",
            "Adapter of a skipping method, of a LoRA (PEFT's too), or of both");
  args.flag(
      "--force-adapter", o.force_adapter,
      "Use the adapter although it was made for other weights, where its tensors fit this model, or is part "
      "of them already");
  add_lora_option(args, o);
}

void add_lora_option(Args& args, ModelOptions& o) {
  args.choice("--lora-mode", o.lora_mode, {"merge", "side"},
              "An adapter's LoRA: merged at load, where block formats become q8_0 (or the type it was "
              "trained for), or beside the weights");
}

void add_run_options(Args& args, ModelOptions& o) {
  args.integer("-t,--threads", o.threads, "Threads; 0: one for each core this process may use", 0,
               kMostThreads);
  args.text("--device", o.device, "DEVICE", "Where it runs: " + std::string(kDeviceNames));
  args.text("--dtype", o.dtype, "TYPE",
            "Convert the weights at load: " + weight_type_names() +
                " (default: as stored; f32 also computes in f32)");
  args.integer("-c,--ctx-size", o.context, "Context in tokens (default: the model's)", 1, kLongestContext);
  args.text("--cache-type-k", o.key_type, "TYPE",
            "-ctk: type of the cached keys: f32, f16, bf16, q8_0 (default: f16; f32 with --dtype f32)");
  args.text("--cache-type-v", o.value_type, "TYPE", "-ctv: type of the cached values");
}

void check_model_options(const Args& args, ModelOptions& o) {
  set_log_level(o.quiet ? LogLevel::kWarn : LogLevel::kInfo);
  if (o.model.empty())
    usage("-m is missing: a model's file or folder, org/name from the Hugging Face cache, or builtin");
  context_options(o.device, o.threads);
  warn_about_threads(o.threads);
  if (args.given("--budget") && args.given("--saved"))
    usage("--budget and --saved are the same thing twice: give one of them");
  o.has_budget = args.given("--budget") || args.given("--saved");
  if (!o.quality.empty()) {
    if (o.has_budget) usage("--quality chooses the budget: leave --budget and --saved out");
    quality_option(o.quality);
    o.has_budget = true;
  }
  const double budget = args.given("--saved") ? 1 - o.saved : o.budget;
  if (!(budget > 0 && budget <= 1))
    usage(fmt::format("the budget must be above 0 and at most 1, got {:g}", budget));
  if (o.force_adapter && o.adapter.empty()) usage("--force-adapter goes with --adapter, which was not given");
}

void warn_about_threads(int64_t threads) {
  const int cores = default_threads();
  if (threads > 2 * cores)
    log_warn(fmt::format("{} threads on {} core{}: they wait for each other, {} would be faster", threads,
                         cores, cores == 1 ? "" : "s", cores));
}

ContextOptions context_options(const std::string& device, int64_t threads) {
  const std::optional<DeviceName> place = parse_device(device);
  if (!place) usage(fmt::format("--device must be {}, got '{}'", kDeviceNames, printable(device)));
  return {.device = place->device, .threads = static_cast<int>(threads), .device_index = place->index};
}

QualityLimit quality_option(const std::string& text) {
  try {
    return parse_quality(text);
  } catch (const UserError& error) {
    usage(fmt::format("--quality: {}", error.what()));
  }
}

std::optional<DType> weight_type(const std::string& option, const std::string& name) {
  if (name.empty()) return std::nullopt;
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  DType type;
  if (!parse_dtype(lower, &type) || !can_encode(type)) {
    usage(fmt::format("{} must be one of {}, got '{}'", option, weight_type_names(), printable(name)));
  }
  return type;
}

void add_sampling_options(Args& args, SamplingOptions& o) {
  args.group("Sampling, in this order");
  args.text("-s,--seed", o.seed, "N", "Seed of the draws; -1: a new one each time");
  args.texts("--logit-bias", o.logit_bias, "TOKEN:VALUE",
             "Added to a token's logit; -inf forbids it; may be repeated");
  args.number("--repeat-penalty", o.repeat_penalty, "Above 1: tokens of the window become less likely");
  args.integer("--repeat-last-n", o.repeat_last_n, "The window of the penalties; 0: none, -1: all", -1,
               INT32_MAX);
  args.number("--presence-penalty", o.presence_penalty,
              "Taken once from the logit of every token of the window");
  args.number("--frequency-penalty", o.frequency_penalty, "Taken for each of its occurrences");
  args.integer("--top-k", o.top_k, "Keep the k most likely tokens; 0: all", 0, INT32_MAX);
  args.number("--top-p", o.top_p, "Keep the most likely tokens that together reach this probability; 1: all");
  args.number("--min-p", o.min_p, "Drop tokens less likely than this share of the best; 0: none");
  args.number("--temp", o.temperature, "Temperature; 0: always the most likely token");
}

SamplerConfig sampler_config(const Args& args, const SamplingOptions& o, const GenerationDefaults& defaults) {
  SamplerConfig config = with_defaults({}, defaults);
  const auto given = [&](const char* name, auto value, auto& into) {
    if (args.given(name)) into = static_cast<std::remove_reference_t<decltype(into)>>(value);
  };
  given("--temp", o.temperature, config.temperature);
  given("--top-k", o.top_k, config.top_k);
  given("--top-p", o.top_p, config.top_p);
  given("--min-p", o.min_p, config.min_p);
  given("--repeat-penalty", o.repeat_penalty, config.repeat_penalty);
  config.repeat_last_n = static_cast<int32_t>(o.repeat_last_n);
  config.presence_penalty = static_cast<float>(o.presence_penalty);
  config.frequency_penalty = static_cast<float>(o.frequency_penalty);
  for (const std::string& bias : o.logit_bias) config.logit_bias.push_back(parse_bias(bias));
  config.seed = parse_seed(o.seed);
  check_sampler(config);
  return config;
}

}  // namespace fathom
