// fathom sweep: quality against savings, methods side by side.
#include "eval/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/build_info.h"
#include "base/format.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/data_text.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/sweep_inputs.h"
#include "cli/tasks.h"
#include "cli/verbs.h"
#include "eval/drop_order.h"
#include "infer/calibrate.h"
#include "infer/draft.h"
#include "report/sweep_report.h"
#include "report/sweep_stats.h"

namespace fathom {
namespace {

constexpr int64_t kSmokeItems = 8, kSmokeOrderTokens = 512;
constexpr int64_t kOrderWindow = 512;  // tokens of a sequence, as `calibrate` has them
constexpr double kGreedyUntil = 0.5;   // or the smallest budget

struct SweepSettings : SweepChoice {
  TaskChoice tasks;
  std::vector<std::string> data;
  std::string budgets = "1,0.9,0.8,0.7", baselines = "random,shallow", order = "once", folder;
  DocumentOptions documents;
  int64_t seeds = 3, seed = 0, order_tokens = 16384;
  bool smoke = false;
  bool random = false, shallow = false;
};

void parse_lists(SweepSettings& o) {
  for (const std::string& word : split_list("--budgets", o.budgets)) {
    if (word == "own") {
      o.asked.emplace_back();
      continue;
    }
    const double budget = parse_number("--budgets", word);
    if (!(budget > 0 && budget <= 1))
      throw UsageError(fmt::format(
          "--budgets must be numbers above 0 and at most 1, or own: the method's own rule, got '{}'",
          printable(word)));
    o.asked.emplace_back(budget);
  }
  for (const std::string& word : split_list("--baselines", o.baselines)) {
    if (word != "random" && word != "shallow" && word != "none")
      throw UsageError(
          fmt::format("--baselines must be of random, shallow, or none, got '{}'", printable(word)));
    o.random = o.random || word == "random";
    o.shallow = o.shallow || word == "shallow";
  }
}

bool parse(Args& args, SweepSettings& o, const Arguments& arguments) {
  add_task_options(args, o.tasks);
  args.text("--budgets", o.budgets, "B,B,…",
            "Shares of the blocks' multiply-adds to run; own: the method's own rule, without a table");
  args.texts("--adapter", o.adapters, "DIR", "Adapter of a skipping method; may be repeated");
  args.flag("--force-adapter", o.model.force_adapter,
            "Use adapters although they were made for other weights, where their tensors fit this model");
  add_lora_option(args, o.model);
  args.texts("--also", o.also, "MODEL",
             "Another model with the same tokenizer, for comparison: with its own method, or dense; may be "
             "repeated");
  args.text("--baselines", o.baselines, "LIST", "What stands beside the methods: random, shallow, or none");
  args.integer("--seeds", o.seeds, "Draws of random skipping", 1, 1000);
  args.integer("-s,--seed", o.seed, "The first of these seeds", 0, INT64_MAX / 2);
  args.texts(
      "--data", o.data, "FILE",
      "Text that the method was calibrated on (text or JSONL, as calibrate reads it): the order in which "
      "the shallow baseline drops units is measured on it; may be repeated, FILE:0.3 gives one a weight");
  args.text("--chat-template", o.documents.chat_template, "NAME",
            "Format of conversations in JSONL (default: the model's own)");
  args.flag("--prompts-as-chat", o.documents.prompts_as_chat,
            "Write prompts and answers of JSONL as conversations");
  args.integer("--order-tokens", o.order_tokens, "Tokens of it that are measured on", 64, 1 << 24);
  args.choice("--order", o.order, {"once", "greedily"},
              "Each unit dropped alone, or measured again after each that went: slow, and stronger");
  args.flag("--smoke", o.smoke,
            "A small size that only shows that it works: 8 items of each task, one seed, an order of units "
            "measured "
            "on 512 tokens at most");
  args.text(
      "-o,--out", o.folder, "DIR",
      "Where results go: results.json, tables, curves, index.html; what is there already is not run again");
  add_model_options(args, o.model, false);
  add_run_options(args, o.model);
  if (!args.parse(arguments)) return false;
  const bool forced = std::exchange(o.model.force_adapter, false);  // --adapter is another one here
  check_model_options(args, o.model);
  o.model.force_adapter = forced;
  check_task_options("sweep", o.tasks);
  if (o.folder.empty()) throw UsageError("sweep: -o must name the folder for the results");
  if (forced && o.adapters.empty())
    throw UsageError("--force-adapter goes with --adapter, which was not given");
  parse_lists(o);
  if (o.smoke) {
    o.seeds = 1;
    o.order_tokens = std::min(o.order_tokens, kSmokeOrderTokens);
    o.tasks.options.limit =
        o.tasks.options.limit > 0 ? std::min(o.tasks.options.limit, kSmokeItems) : kSmokeItems;
  }
  return true;
}

// Is the order of the base's units to be measured, for models without some of them?
bool needs_order(const SweepSettings& o, SweepInputs& inputs) {
  return o.shallow && !inputs.has_other_dense() && !inputs.base().method();
}

void check_order_text(const SweepSettings& o, SweepInputs& inputs) {
  if (!needs_order(o, inputs) || !o.data.empty() || o.smoke) return;
  throw UsageError(
      "sweep: the shallow baseline needs --data FILE, the text that the method was calibrated on, to measure "
      "which units matter least (or leave it out: --baselines random)");
}

struct OrderText {
  std::vector<std::vector<int32_t>> sequences;
  int64_t tokens = 0;
};

OrderText order_text(const SweepSettings& o, const Session& base) {
  OrderText text;
  for (DataText& file : read_data(o.data, base.tokenizer(), o.documents, o.order_tokens,
                                  std::min(kOrderWindow, base.context()))) {
    int64_t found = 0;
    for (std::vector<int32_t>& ids : file.sequences) {
      found += std::ssize(ids);
      text.sequences.push_back(std::move(ids));
    }
    if (found == 0) fail("{}: the text is empty", printable(file.path));
    if (found < file.tokens)
      log_warn(
          fmt::format("{}: {} tokens, of {} to measure the order of units on (--order-tokens): all are used",
                      printable(file.path), found, file.tokens));
    text.tokens += found;
  }
  return text;
}

struct Shallower {
  std::string words = "";  // which models there are; "": none
  std::string order = "";  // how the order of units was found
};

// None: cancelled.
std::optional<Shallower> prepare_shallow(const SweepSettings& o, SweepInputs& inputs) {
  SweepPlan& plan = inputs.plan;
  plan.shallow = o.shallow && (inputs.has_other_dense() || !inputs.base().method());
  if (o.shallow && !plan.shallow) log_info("no shallower models: name dense ones with --also");
  if (!plan.shallow) return Shallower{};
  if (!needs_order(o, inputs)) return Shallower{"between the dense models that were named"};
  std::string words = "the same model without the units that matter least, between neighbouring depths";
  if (!inputs.with_lora().empty())
    words += fmt::format("; the base's weights, without the LoRA of {}", fmt::join(inputs.with_lora(), ", "));
  Context& ctx = inputs.base().ctx();
  if (o.data.empty()) {
    log_info(fmt::format("--smoke without --data: the order of units is measured on {} tokens of our own",
                         kHarmRows));
    try {
      plan.drop_order = measure_harm_order(ctx, inputs.base().model(), &interrupted());
    } catch (const PrepareCancelled&) {
      return std::nullopt;
    }
    return Shallower{words, fmt::format("once, on {} tokens of our own", kHarmRows)};
  }
  DropOrderOptions options{.until = kGreedyUntil, .cancel = &interrupted()};
  if (o.order == "greedily") options.search = OrderSearch::kGreedily;
  for (const std::optional<double>& budget : o.asked)
    options.until = std::min(options.until, budget.value_or(1));
  const OrderText text = order_text(o, inputs.base());
  const std::optional<DropOrder> order =
      drop_order(ctx, inputs.base().model(), text.sequences, options, o.folder);
  if (!order) return std::nullopt;
  plan.drop_order = order->units;
  return Shallower{words,
                   fmt::format("{}, on {} tokens of {}", o.order, text.tokens, fmt::join(o.data, ", "))};
}

// A LoRA is other weights than the base's: what the baselines of such an adapter run on. "": there is none.
std::string lora_note(const SweepInputs& inputs) {
  const bool random = inputs.plan.seeds > 0, dropped = !inputs.plan.drop_order.empty();
  if (inputs.with_lora().empty() || !(random || dropped)) return "";
  return fmt::format("{}: {}{}{}", fmt::join(inputs.with_lora(), ", "),
                     random ? "random skipping runs on the weights with the LoRA" : "",
                     random && dropped ? "; " : "",
                     dropped ? "the shallower models are the base's, without the LoRA" : "");
}

SweepInfo info_of(const SweepSettings& o, const SweepInputs& inputs, const Session& base) {
  const SweepPlan& plan = inputs.plan;
  SweepInfo info;
  info.model = label_of(o.model.model);
  const bool any_adapter = std::any_of(plan.methods.begin(), plan.methods.end(),
                                       [](const SweepMethod& method) { return method.adapter; });
  info.seeds = any_adapter ? plan.seeds : 0;
  std::string methods;
  for (const SweepMethod& method : plan.methods)
    methods += fmt::format("{}{} ({})", methods.empty() ? "" : ", ", method.label,
                           method.policy ? method.policy->name() : "dense");
  const BuildInfo& build = build_info();
  info.settings = {
      {"model", o.model.model},
      {"weights", weight_type_name(base.model())},
      {"methods", methods},
      {"budgets", o.budgets},
      {"tasks", o.tasks.names},
      {"limit", o.tasks.options.limit ? std::to_string(o.tasks.options.limit) : "none"},
      {"shots", o.tasks.options.shots < 0 ? "each task's own" : std::to_string(o.tasks.options.shots)},
      {"baselines", o.baselines},
      {"results depend on", plan.settings},
      {"threads", std::to_string(inputs.plan.methods.front().model.ctx.pool().threads())},
      {"fathom", fmt::format("{} ({})", build.version, build.commit)}};
  return info;
}

void print_results(const SweepSettings& o, const SweepInfo& info, const std::vector<SweepPoint>& points,
                   const std::vector<std::string>& files) {
  if (o.model.json) return print(sweep_json(info, points));
  std::string text;
  if (const std::vector<SweepPoint> means = mean_points(points); !means.empty())
    text += means.front().task + "\n\n" + to_markdown(point_table(means)) + "\n";
  for (const std::string& task : tasks_of(points))
    text += printable(task_name(task)) + "\n\n" + to_markdown(point_table(of_task(points, task))) + "\n";
  print(text + fmt::format("{}/index.html and {} files beside it\n", printable(o.folder), files.size() - 1));
}

int say_interrupted() {
  log_info("what is done is kept: the same command goes on from here");
  return kInterruptedExit;
}

}  // namespace

int run_sweep(const Arguments& arguments) {
  Args args(
      "sweep",
      "Quality against savings: methods at several budgets on benchmarks, each point beside random skipping "
      "and a shallower model. Run again after an interruption, it goes on where it was.",
      "fathom sweep -m model.gguf --adapter routers --tasks arc_challenge,hellaswag --data-dir benchmarks "
      "--limit 200 --budgets 1,0.9,0.8 --data held-out.txt -o sweep\n"
      "  fathom sweep -m runs/skip_layer/last --also runs/dense-4/last --also runs/dense-6/last --tasks "
      "valid.txt --budgets own -o sweep");
  SweepSettings o;
  if (!parse(args, o, arguments)) return 0;
  std::vector<Task> tasks = load_tasks(o.tasks);
  SweepInputs inputs(o);  // before anything is written
  check_order_text(o, inputs);
  Figures figures(o.folder);
  SweepCache cache(o.folder);

  SweepPlan& plan = inputs.plan;
  EncodedTasks encoded = encode_tasks(inputs.base().tokenizer(), inputs.context(), tasks);
  for (size_t t = 0; t < tasks.size(); ++t)
    plan.tasks.push_back({std::move(tasks[t]), std::move(encoded.tasks[t])});
  const KvCacheOptions& types = inputs.base().cache_options();
  plan.runner = {.k_type = types.k_type, .v_type = types.v_type, .cancel = &interrupted()};
  if (o.smoke) plan.runner.decode_tokens = 4, plan.runner.rounds = 1;
  plan.settings = fmt::format("context {}, keys {}, values {}, {} tokens decoded {} times", inputs.context(),
                              name_of(types.k_type), name_of(types.v_type), plan.runner.decode_tokens,
                              plan.runner.rounds);
  plan.seeds = o.random ? o.seeds : 0;
  plan.seed = static_cast<uint64_t>(o.seed);
  const std::optional<Shallower> shallower = prepare_shallow(o, inputs);
  if (!shallower) return say_interrupted();
  const std::string note = lora_note(inputs);
  if (!note.empty()) log_info(note);

  Progress progress("sweeping", expected_items(plan));
  plan.runner.on_progress = [&](int64_t items) { progress.add(items); };
  plan.runner.on_kept = plan.on_fewer = [&](int64_t items) { progress.leave_out(items); };
  plan.on_point = [&](const SweepPoint& point) {
    if (progress.shown()) return;
    log_info(fmt::format("{}, {}, budget {}: {}, net FLOPs {:.3f}", printable(task_name(point.task)),
                         point.label, budget_text(point), value_text(main_metric(point.score)),
                         point.score.savings.net_flops));
  };
  const std::optional<std::vector<SweepPoint>> points = sweep(plan, cache);
  if (!points) return say_interrupted();
  SweepInfo info = info_of(o, inputs, inputs.base());
  info.shallower = shallower->words;
  if (!shallower->order.empty()) info.settings.emplace_back("order of units", shallower->order);
  if (!note.empty()) info.settings.emplace_back("beside a LoRA", note);
  write_sweep(info, *points, figures);
  print_results(o, info, *points, figures.files());
  return 0;
}

}  // namespace fathom
