// fathom train and fathom tune: a recipe, a folder, and a run that is not lost.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "infer/model_path.h"
#include "io/atomic_file.h"
#include "io/folder_lock.h"
#include "model/load.h"
#include "skip/lora_files.h"
#include "train/estimate.h"
#include "train/trainer.h"
#include "train/training_data.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct TrainChoice {
  std::string config, out, base, tokenizer, method, seed, device = "cpu";
  std::vector<std::string> data, assignments;
  int64_t steps = 0, threads = 0;
  bool resume = false, dry_run = false, all_weights = false, json = false, quiet = false;
};

bool parse(Args& args, TrainChoice& o, const Arguments& arguments, bool tune) {
  args.text("--config", o.config, "FILE", "The recipe: JSON, every key in docs/training.md");
  args.text("-o,--output", o.out, "DIR", tune ? "The adapter's folder, and the run's" : "The run's folder");
  args.texts("--data", o.data, "FILE",
             "Text or JSONL, instead of the recipe's; FILE:0.3 with a weight; again for more");
  args.integer("--steps", o.steps, "Stop after this step; changes no schedule", 1, INT64_MAX);
  args.flag("--resume", o.resume, "Go on from the newest whole checkpoint of the folder");
  args.texts("--set", o.assignments, "KEY=VALUE", "Change a key of the recipe; again for more");
  args.flag("--dry-run", o.dry_run, "Say what the run would take, and start nothing");
  args.text("-m,--model", o.base, "MODEL", "A pretrained model to start from, instead of the recipe's base");
  args.text("--tokenizer", o.tokenizer, "FILE", "Tokenizer, instead of the recipe's");
  args.text("--method", o.method, "NAME", "The method, instead of the recipe's");
  if (tune)
    args.flag("--all-weights", o.all_weights,
              "Finetune: the base's weights train, too, and the result is a model instead of an adapter");
  args.text("-s,--seed", o.seed, "SEED", "Seed, instead of the recipe's");
  args.integer("-t,--threads", o.threads, "Threads; 0: one for each core this process may use", 0, 1024);
  args.text("--device", o.device, "DEVICE", "Where it runs: " + std::string(kDeviceNames));
  args.flag("--json", o.json, "Print one JSON object and nothing else on stdout");
  args.flag("-q,--quiet", o.quiet, "Only warnings and errors on stderr");
  if (!args.parse(arguments)) return false;
  if (o.quiet) set_log_level(LogLevel::kWarn);
  warn_about_threads(o.threads);
  if (o.out.empty() && !o.dry_run) throw UsageError("-o is missing: the folder of the run");
  if (o.config.empty() && !tune) throw UsageError("--config is missing: the recipe");
  if (tune && o.base.empty() && o.config.empty()) throw UsageError("tune: -m is missing: the model to tune");
  if (tune && o.method.empty() && o.config.empty()) throw UsageError("tune: --method is missing");
  return true;
}

// tune leaves the base as it is, whatever the method's paper does, unless all weights are to train.
void choose_what_trains(const TrainChoice& o, Recipe& recipe) {
  const std::string contrary = fmt::format("method.frozen_backbone={}", o.all_weights);
  if (std::find(o.assignments.begin(), o.assignments.end(), contrary) != o.assignments.end())
    throw UsageError(o.all_weights ? "--all-weights trains the base, which frozen_backbone=true forbids"
                                   : "tune leaves the base as it is: --all-weights trains it, too");
  const bool lora = recipe.train.lora.rank > 0;
  if (lora && o.all_weights) throw UsageError("--all-weights trains the base, which a LoRA leaves as it is");
  if (recipe.method->is_dense() && !lora && !o.all_weights)
    throw UsageError(
        "tune: dense has nothing to keep beside its base: finetune with --all-weights, or with fathom train "
        "-m BASE --config RECIPE; or give it a LoRA (--set lora.rank=16)");
  recipe.method->options().frozen_backbone = !o.all_weights;
}

// The recipe's file names its data as seen from where it lies; options do so from the working folder.
Recipe parse_recipe(const std::string& path) {
  Recipe recipe = Recipe::parse(read_text_file(path, size_t{1} << 20), printable(path));
  const fs::path folder = fs::path(path).parent_path();
  TrainConfig& keys = recipe.train;
  for (std::vector<std::string>* files : {&keys.data, &keys.validation.data, &keys.prepare_data}) {
    for (std::string& file : *files) {
      if (!file.empty()) file = (folder / file).lexically_normal().string();
    }
  }
  return recipe;
}

Recipe read_recipe(const TrainChoice& o, bool tune) {
  Recipe recipe = o.config.empty() ? Recipe::parse("{}", "recipe") : parse_recipe(o.config);
  if (!o.method.empty() && o.method != recipe.method->name()) recipe.set("method=" + o.method);
  if (!o.base.empty()) recipe.train.base = o.base;
  if (!o.tokenizer.empty()) recipe.train.tokenizer = o.tokenizer;
  if (!o.data.empty()) recipe.train.data = o.data;
  if (!o.seed.empty())
    recipe.train.seed = static_cast<uint64_t>(parse_integer("--seed", o.seed, 0, INT64_MAX));
  for (const std::string& assignment : o.assignments) from_option("--set", [&] { recipe.set(assignment); });
  if (o.steps > 0) recipe.train.steps = o.steps;
  if (!recipe.train.base.empty()) recipe.method->start_from_pretrained();
  if (tune) choose_what_trains(o, recipe);
  recipe.check();
  return recipe;
}

std::string tokenizer_path(const std::string& name) {
  if (name != "builtin") return name;
  const ModelFiles files = find_model(name);
  return files.tokenizer.empty() ? files.model : files.tokenizer;
}

Model load_base(Context& ctx, const Recipe& recipe) {
  const ModelFiles files = find_model(recipe.train.base);
  LoadOptions load;
  load.tokenizer = recipe.train.tokenizer.empty() ? files.tokenizer : tokenizer_path(recipe.train.tokenizer);
  // What stays as it is must still be differentiated through: block formats are decoded once, here.
  if (recipe.frozen()) load.dtype = recipe.train.precision == Precision::kBf16 ? DType::kBF16 : DType::kF32;
  return load_model(ctx, files.model, load);
}

Model make_model(Context& ctx, const Recipe& recipe) {
  if (!recipe.train.base.empty()) return load_base(ctx, recipe);
  if (recipe.train.tokenizer.empty())
    fail("a new model needs a tokenizer: name one with the key tokenizer, or a base");
  const std::string path = tokenizer_path(recipe.train.tokenizer);
  const auto tokenizer = load_tokenizer(path);
  Model model = initial_model(ctx, complete_model(recipe.train.model, recipe.train, tokenizer.get()),
                              recipe.train.init, recipe.train.seed);
  model.tokenizer = tokenizer;
  model.tokenizer_path = path;
  move_model(ctx, model);
  return model;
}

// The shape alone: a recipe whose base or tokenizer is not here can still be weighed.
ModelConfig shape_of(Context& ctx, const Recipe& recipe) {
  if (recipe.train.model.width > 0 && recipe.train.model.vocab > 0)
    return complete_model(recipe.train.model, recipe.train, nullptr);
  return make_model(ctx, recipe).config;
}

int dry_run(Context& ctx, const Recipe& recipe, const TrainChoice& o) {
  const ModelConfig model = shape_of(ctx, recipe);
  recipe.method->check(model);
  const TrainEstimate e = estimate_run(ctx, recipe, model);
  if (o.json) {
    print_json({{"method", recipe.method->name()},
                {"parameters", e.parameters},
                {"method_parameters", e.method_parameters},
                {"trained_parameters", e.trained},
                {"steps", recipe.train.last_step()},
                {"tokens_per_step", e.tokens_per_step},
                {"tokens", e.tokens},
                {"flops_per_token", e.flops_per_token},
                {"flops", e.flops},
                {"memory_bytes", e.memory_bytes},
                {"seconds", e.seconds}});
    return 0;
  }
  print(fmt::format(
      "method      {}\nparameters  {} (the method's own: {}; trained: {})\nsteps       {} of {} tokens: {} "
      "in all\n"
      "compute     {:.3g} FLOPs a token, {:.3g} in all (dense)\nmemory      about {}\n"
      "time        about {:.1f} h at the speed of this machine now\n",
      recipe.method->name(), e.parameters, e.method_parameters, e.trained, recipe.train.last_step(),
      e.tokens_per_step, e.tokens, e.flops_per_token, e.flops, bytes_text(e.memory_bytes), e.seconds / 3600));
  return 0;
}

void refuse_old_run(const TrainChoice& o) {
  if (o.resume) return;
  if (const auto place = newest_checkpoint(o.out)) {
    fail("{} already holds a run, at step {}: go on with --resume, or give another folder", printable(o.out),
         place->step);
  }
}

// The files of an adapter, from the last checkpoint to the folder that was asked for. The config of an
// earlier one goes first and the new one comes last: a folder that is half written is no adapter. A LoRA has
// the recipe's precision.
void publish_adapter(Context& ctx, const Recipe& recipe, const Model& model, const std::string& checkpoint,
                     const std::string& out) {
  const std::string from = checkpoint + "/skip/";
  std::error_code error;
  fs::remove(out + "/adapter_config.json", error);
  if (recipe.train.lora.rank > 0) {
    Model adapted;
    adapted.config = model.config;
    adapted.lora = read_lora(ctx, from + kLoraFolder, model.config);
    fs::create_directories(out + "/" + kLoraFolder);
    write_lora(ctx, out + "/" + kLoraFolder, adapted, recipe.train.base,
               recipe.train.precision == Precision::kBf16 ? DType::kBF16 : DType::kF32);
  }
  for (const char* name : {"adapter_model.safetensors", "adapter_config.json"})
    write_file_atomically(out + "/" + name, read_text_file(from + name));
}

int64_t trained_numbers(Trainer& trainer) {
  int64_t count = 0;
  for (const ParameterSet::Parameter& each : trainer.parameters().list()) count += each.shape.numel();
  return count;
}

// adapter: "": the run made a model.
void report(const TrainChoice& o, const TrainResult& result, bool trains, const std::string& adapter) {
  if (o.json) {
    Json json{{"steps", result.steps},
              {"loss", result.loss},
              {"ce", result.ce},
              {"tokens_per_s", result.tokens_per_s},
              {"skip_ratio", result.skip_ratio},
              {"net_flops", result.net_flops},
              {"checkpoint", result.checkpoint},
              {"stopped_early", result.stopped_early}};
    if (result.validation_ce >= 0) json["validation_ce"] = result.validation_ce;
    if (!result.best_checkpoint.empty()) json["best_checkpoint"] = result.best_checkpoint;
    if (!adapter.empty()) json["adapter"] = adapter;
    return print_json(json);
  }
  if (!trains)
    return print(
        fmt::format("nothing had to be trained{}, {}\n",
                    result.validation_ce >= 0 ? fmt::format(": validation {:.4f}", result.validation_ce) : "",
                    printable(adapter.empty() ? result.checkpoint : adapter)));
  if (result.checkpoint.empty()) return print("step 0: nothing was trained, and nothing is stored\n");
  const std::string ce =
      std::isfinite(result.ce) ? fmt::format("cross-entropy {:.4f}", result.ce) : "nothing measured";
  print(fmt::format("step {}: {}{}, {:.0f} tokens/s, skipped {:.1f} %, {}\n", result.steps, ce,
                    result.validation_ce >= 0 ? fmt::format(", validation {:.4f}", result.validation_ce) : "",
                    result.tokens_per_s, 100 * result.skip_ratio,
                    printable(adapter.empty() ? result.checkpoint : adapter)));
}

int run_recipe(const TrainChoice& o, bool tune) {
  Recipe recipe = read_recipe(o, tune);
  Context ctx(context_options(o.device, o.threads));
  if (o.dry_run) return dry_run(ctx, recipe, o);
  if (tune && recipe.train.base.empty()) throw UsageError("tune: -m is missing: the model to tune");
  const FolderLock lock(o.out);
  refuse_old_run(o);
  watch_termination();
  Model model = make_model(ctx, recipe);
  const TrainingData data = open_training_data(ctx, recipe.train, model, &interrupted());
  Trainer trainer(ctx, recipe, model, data, o.out, o.resume, &interrupted());
  if (o.resume && !trainer.resume()) log_info(fmt::format("{} holds no checkpoint: from the start", o.out));
  log_info(fmt::format("{}: {} parameters train, {} tokens of data, from step {} to {}",
                       recipe.method->name(), trained_numbers(trainer), data.train->tokens(), trainer.steps(),
                       recipe.train.last_step()));
  if (o.all_weights)
    log_info(fmt::format("all weights train: the result is a model, {}/last", printable(o.out)));
  if (trained_numbers(trainer) == 0 && recipe.method->own_rule() == std::string_view("everything runs"))
    log_warn(
        fmt::format("{} has nothing to train beside the base, and as it is set everything runs: change its "
                    "settings (fathom train -h), or train the base, too, with --all-weights",
                    recipe.method->name()));
  const TrainResult result = trainer.run(interrupted());
  const bool adapter = tune && !o.all_weights && !result.checkpoint.empty();
  if (adapter) publish_adapter(ctx, recipe, model, result.checkpoint, o.out);
  report(o, result, trained_numbers(trainer) > 0, adapter ? o.out : "");
  return result.interrupted ? kInterruptedExit : 0;
}

int run(Args& args, const Arguments& arguments, bool tune) {
  TrainChoice o;
  if (!parse(args, o, arguments, tune)) return 0;
  try {
    return run_recipe(o, tune);
  } catch (const PrepareCancelled&) {
    log_info("interrupted before the first step: nothing was trained yet");
    return kInterruptedExit;
  }
}

}  // namespace

int run_train(const Arguments& arguments) {
  Args args("train", "Trains a model from a recipe: a new one, or a pretrained one further.",
            "fathom train --config configs/small/dense.json -o runs/dense\n"
            "  fathom train --config configs/small/dense.json -o runs/dense --resume --steps 500");
  return run(args, arguments, false);
}

int run_tune(const Arguments& arguments) {
  Args args(
      "tune",
      "Trains a method's routers or gates on a pretrained model, which stays as it is: the result is an "
      "adapter.",
      "fathom tune -m builtin --method mind_skip --data text.txt -o routers");
  return run(args, arguments, true);
}

}  // namespace fathom
