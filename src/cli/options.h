// The options that verbs share, as docs/cli.md has them.
#pragma once

#include <optional>
#include <string>

#include "cli/args.h"
#include "infer/quality.h"
#include "infer/sampler.h"
#include "model/model.h"

namespace fathom {

struct ModelOptions {
  std::string model, tokenizer, adapter;
  bool force_adapter = false, no_mmap = false, context_shift = false, json = false, quiet = false;
  int64_t threads = 0;  // 0: the cores this process may use
  int64_t context = 0;  // 0: the model's
  std::string device = "cpu", dtype, key_type, value_type, execution = "physical", decide, quality,
              lora_mode = "merge";
  double budget = 1, saved = 0;
  bool dense = false;       // the model's own method is left out
  bool has_budget = false;  // one of these was given, be it 1: nothing is skipped; else the method's own rule
};

// -m and what goes with a model's files; with what a run of the model needs when `runs`.
void add_model_options(Args& args, ModelOptions& options, bool runs);
void add_run_options(Args& args, ModelOptions& options);  // of them, where and in what types it runs

void add_adapter_options(Args& args, ModelOptions& options);  // of them, --adapter and what goes with it

void add_lora_option(Args& args, ModelOptions& options);  // of those, --lora-mode

// One limit of --quality. Anything else is a UsageError.
QualityLimit quality_option(const std::string& text);

// After parsing: -m is there, and the values make sense together (UsageError); sets has_budget.
void check_model_options(const Args& args, ModelOptions& options);

// Many more threads than cores make every pass wait: a warning.
void warn_about_threads(int64_t threads);

// --device and --threads. Another device's name is a UsageError.
ContextOptions context_options(const std::string& device, int64_t threads);

// --dtype by name; none when it was not given. An unknown one, or one that cannot be made, is a UsageError
// with the list.
std::optional<DType> weight_type(const std::string& option, const std::string& name);

struct SamplingOptions {
  double temperature = 0.8, top_p = 0.95, min_p = 0.05, repeat_penalty = 1, presence_penalty = 0,
         frequency_penalty = 0;
  int64_t top_k = 40, repeat_last_n = 64;
  std::string seed = "0";
  std::vector<std::string> logit_bias;  // "ID:VALUE"
};

void add_sampling_options(Args& args, SamplingOptions& options);

// What was given on the command line, else what the model's generation_config says, else the defaults.
SamplerConfig sampler_config(const Args& args, const SamplingOptions& options,
                             const GenerationDefaults& defaults);

}  // namespace fathom
