// fathom calibrate: thresholds for a grid of budgets, stored with the adapter.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/format.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/data_text.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/verbs.h"
#include "infer/model_path.h"
#include "infer/quality.h"
#include "skip/adapter.h"
#include "train/text_sample.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kFewestTokens = 64, kPassesOfABudget = 8;

struct CalibrateChoice {
  ModelOptions model;
  std::vector<std::string> data, check;
  std::string out, budgets = "0.95,0.9,0.8,0.7,0.6,0.5", quality, chat_template, steer = "auto";
  int64_t tokens = 32768, window = 512;
  bool prompts_as_chat = false;
};

std::vector<float> parse_budgets(const std::string& text) {
  std::vector<float> budgets;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    char* rest = nullptr;
    const float value = std::strtof(part.c_str(), &rest);
    if (part.empty() || *rest != 0 || !(value > 0 && value < 1))
      throw UsageError(
          fmt::format("--budgets must be numbers above 0 and below 1 with commas between them, got '{}'",
                      printable(text)));
    budgets.push_back(value);
    begin = end + 1;
  }
  return budgets;
}

// Sequences become rows, in batches of about kRowsOfABatch.
void add_sequence(CalibrationText& text, const std::vector<int32_t>& ids, size_t begin, size_t end) {
  constexpr size_t kRowsOfABatch = 8192;
  if (text.empty() || text.back().size() + end - begin > kRowsOfABatch) text.emplace_back();
  std::vector<BatchRow>& batch = text.back();
  const int32_t sequence = batch.empty() ? 0 : batch.back().sequence + 1;
  for (size_t i = begin; i < end; ++i)
    batch.push_back({ids[i], static_cast<int32_t>(i - begin), sequence, false});
}

struct Texts {
  CalibrationText calibration;
  std::vector<CheckText> check;  // every fourth sequence of each file, the short ones of all, other kinds
  int64_t tokens = 0;            // to calibrate with
};

// Budgets must hold for questions of a line as for articles: a fifth of the text is in sequences of kShort
// tokens.
constexpr int64_t kShort = 64;
constexpr const char* kShortKind = "sequences of 64 tokens";

// A file's sequences, the fourth of every four kept back.
void add_file(Texts& texts, CheckText& of_short, const std::string& kind,
              const std::vector<std::vector<int32_t>>& sequences) {
  constexpr size_t kParts = 4, kShortOf = 5;
  CheckText check{kind, {}};
  for (size_t i = 0; i < sequences.size(); ++i) {
    const std::vector<int32_t>& ids = sequences[i];
    const bool kept_back = i % kParts == kParts - 1;
    const bool is_short = i / kParts % kShortOf == kShortOf / 2 && ids.size() > static_cast<size_t>(kShort);
    CalibrationText& text = !kept_back ? texts.calibration : is_short ? of_short.text : check.text;
    const size_t length = is_short ? static_cast<size_t>(kShort) : ids.size();
    for (size_t begin = 0; begin < ids.size(); begin += length)
      add_sequence(text, ids, begin, std::min(begin + length, ids.size()));
    texts.tokens += kept_back ? 0 : static_cast<int64_t>(ids.size());
  }
  if (!check.text.empty()) texts.check.push_back(std::move(check));
}

std::string kind_of(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

// Files that only check the budgets.
void add_checks(Texts& texts, const CalibrateChoice& o, const DocumentOptions& how,
                const Tokenizer& tokenizer, int64_t window) {
  constexpr int64_t kTokensOfACheck = 8192;
  for (const std::string& path : o.check) {
    CheckText check{kind_of(path), {}, false};
    for (const auto& ids : sample_sequences(path, tokenizer, how, kTokensOfACheck, window))
      add_sequence(check.text, ids, 0, ids.size());
    if (check.text.empty()) fail("{}: the text is empty", printable(path));
    texts.check.push_back(std::move(check));
  }
}

Texts read_texts(const CalibrateChoice& o, Session& session) {
  Texts texts;
  CheckText of_short{kShortKind, {}};
  const DocumentOptions how{o.chat_template, o.prompts_as_chat};
  const int64_t window = std::min(o.window, session.context());
  for (const DataText& file : read_data(o.data, session.tokenizer(), how, o.tokens * 4 / 3, window))
    add_file(texts, of_short, kind_of(file.path), file.sequences);
  if (!of_short.text.empty()) texts.check.push_back(std::move(of_short));
  add_checks(texts, o, how, session.tokenizer(), window);
  if (texts.tokens < kFewestTokens)
    fail("{}: calibration needs at least {} tokens, got {}", printable(o.data.front()), kFewestTokens,
         texts.tokens);
  if (texts.tokens < o.tokens / 2)
    log_warn(
        fmt::format("the text has {} tokens to calibrate with, {} were asked for: budgets will be met less "
                    "exactly on other text",
                    texts.tokens, o.tokens));
  return texts;
}

// A bound needs a spread: said before the passes, not after them.
void check_for_quality(const std::vector<CheckText>& check) {
  size_t fewest = check.empty() ? 0 : SIZE_MAX;
  for (const CheckText& each : check) {
    size_t sequences = 0;
    for (const std::vector<BatchRow>& batch : each.text)
      sequences += static_cast<size_t>(batch.back().sequence) + 1;
    fewest = std::min(fewest, sequences);
  }
  if (fewest < 2)
    fail(
        "--quality needs two sequences of each kind of text that are kept back, got {}: give more --tokens, "
        "or "
        "a shorter --window",
        fewest);
}

// The adapter with its new table: in its folder, or in a new one. Returns that folder.
std::string store(Session& session, const CalibrateChoice& o, const Calibration& table) {
  const std::string folder =
      o.model.adapter.empty() ? own_method_place(session.model().path) : o.model.adapter;
  Adapter adapter = load_adapter(session.ctx(), folder, session.model(), true);
  std::vector<Calibration> tables =
      calibrations_from_json(adapter.extra.calibration, 2 * session.model().config.layers, printable(folder));
  std::erase_if(tables, [&](const Calibration& old) { return old.weight_type == table.weight_type; });
  tables.insert(tables.begin(), table);
  adapter.extra.calibration = calibrations_to_json(tables);
  if (o.out.empty()) {
    save_calibration(folder, adapter.extra.calibration);
    return folder;
  }
  if (o.model.force_adapter) adapter.extra.projections.clear();  // it becomes this model's
  Model model = session.model();
  model.lora = adapter.lora;
  save_adapter(session.ctx(), o.out, *adapter.policy, model, adapter.extra);
  return o.out;
}

// The model without the adapter's LoRA. Factors beside the weights are left out; weights that they were
// merged into are loaded once more.
LoadedModel load_base(const Session& session, const CalibrateChoice& o) {
  const bool merged = session.has_lora() && !session.model().lora.any();
  if (merged) return load_to_run(load_request(o.model));
  LoadedModel base;
  base.model = session.model();
  base.model.lora = {};
  return base;
}

struct Found {
  Calibration table;
  // How far the adapted model is from its base, both at full depth, on the text that is kept back. None: the
  // adapter has no LoRA.
  std::optional<Divergence> to_base;
  std::string failed;  // why qualities have no budget; "": all have one
};

Found find_table(Session& session, const CalibrateChoice& o, const std::vector<QualityLimit>& limits,
                 const CalibrationText& text, const CalibrateOptions& options) {
  Found found{calibrate(session.ctx(), session.model(), *session.method(), text, options), {}, {}};
  if (options.check.empty() || (limits.empty() && !session.has_lora())) return found;
  const LoadedModel base = load_base(session, o);
  const Compared compared{base.model, session.model(), *session.method()};
  // What cannot be kept is said after the table is stored: its passes took long.
  for (const QualityLimit& limit : limits) {
    try {
      found.table.qualities.push_back(
          calibrate_quality(session.ctx(), compared, found.table, limit, options));
    } catch (const CalibrationCancelled&) {
      throw;
    } catch (const UserError& error) {
      found.failed += (found.failed.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  if (!session.has_lora()) return found;
  CalibrationText all;
  for (const CheckText& each : options.check) all.insert(all.end(), each.text.begin(), each.text.end());
  found.to_base = divergence_of(session.ctx(), base.model, session.model(), all, options);
  return found;
}

void warn_about_misses(const Calibration& table) {
  constexpr float kWorthSaying = 0.01f, kOnOtherText = 0.02f;
  for (const CalibrationPoint& point : table.asked()) {
    if (std::abs(point.achieved - point.budget) > kWorthSaying)
      log_warn(fmt::format(
          "a budget of {:g} is asked for and {:.4f} achieved: the search found no thresholds nearer to it",
          point.budget, point.achieved));
    for (size_t kind = 0; kind < table.kinds.size(); ++kind) {
      if (std::abs(point.of_kinds[kind] - point.budget) > kOnOtherText)
        log_warn(fmt::format(
            "a budget of {:g} came out as {:.3f} on other text ({}): more of it may help (--tokens)",
            point.budget, point.of_kinds[kind], printable(table.kinds[kind])));
    }
  }
}

Json table_json(const Calibration& table, const std::optional<Divergence>& to_base,
                const std::string& folder) {
  Json out;
  out["weight_type"] = table.weight_type;
  for (const char* key : {"budgets", "achieved", "checked"}) out[key] = Json::array();
  for (const CalibrationPoint& point : table.asked()) {
    out["budgets"].push_back(short_decimal(point.budget));
    out["achieved"].push_back(short_decimal(point.achieved));
    out["checked"].push_back(short_decimal(point.checked));
  }
  for (const char* key : {"kinds", "kind_errors"}) out[key] = Json::object();
  for (size_t kind = 0; kind < table.kinds.size(); ++kind) {
    Json& list = out["kinds"][table.kinds[kind]] = Json::array();
    Json& errors = out["kind_errors"][table.kinds[kind]] = Json::array();
    for (const CalibrationPoint& point : table.asked()) {
      const float error = point.errors_of_kinds[kind];
      list.push_back(short_decimal(point.of_kinds[kind]));
      errors.push_back(std::isnan(error) ? Json() : Json(short_decimal(error)));
    }
  }
  out["qualities"] = Json::array();
  for (const CalibratedQuality& each : table.qualities)
    out["qualities"].push_back({{"measure", each.measure},
                                {"limit", short_decimal(each.limit)},
                                {"budget", short_decimal(each.budget)},
                                {"bound", short_decimal(each.bound)},
                                {"kind", each.kind}});
  if (to_base) out["kl_to_base"] = short_decimal(static_cast<float>(to_base->kl.mean));
  out["adapter"] = folder;
  return out;
}

// "+1.2 ± 0.4": points, and their standard error over sequences where there are several.
std::string miss_text(const CalibrationPoint& point, size_t kind) {
  const float error = point.errors_of_kinds[kind];
  return fmt::format("{:+.1f}", 100 * (point.of_kinds[kind] - point.budget)) +
         (std::isnan(error) ? "" : fmt::format(" ± {:.1f}", 100 * error));
}

// What each budget came to on the text it was found on, and by how many points it is missed on each kind of
// other text.
std::string table_text(const Calibration& table, const std::optional<Divergence>& to_base, size_t budgets,
                       int64_t tokens, const std::string& folder) {
  const std::vector<CalibrationPoint> points = table.asked();
  std::string text = fmt::format("{} weights, {} tokens\n  budget  achieved", table.weight_type, tokens);
  if (!table.kinds.empty()) text += "   points missed on other text:";
  constexpr size_t kWidth = 11;  // of "+10.0 ± 0.4"
  for (const std::string& kind : table.kinds) text += fmt::format("  {:>{}}", printable(kind), kWidth);
  for (const CalibrationPoint& point : points) {
    text += fmt::format("\n  {:6.3f}  {:8.4f}   {:28}", point.budget, point.achieved, "");
    for (size_t kind = 0; kind < table.kinds.size(); ++kind)
      text += fmt::format("  {:>{}}", miss_text(point, kind), std::max(kWidth, table.kinds[kind].size()));
  }
  text += "\n";
  if (points.size() < budgets) text += "the other budgets cannot be met by this method with this model\n";
  for (const CalibratedQuality& each : table.qualities)
    text += fmt::format("{}={:g}: a budget of {:.3f} (upper 95 % bound {:.4g}, on {})\n", each.measure,
                        each.limit, each.budget, each.bound, printable(each.kind));
  if (to_base)
    text += fmt::format(
        "a budget of 1 is the adapted model: KL to the base without its LoRA {:.4f} ± {:.4f} nats a token\n",
        to_base->kl.mean, to_base->kl.error);
  return text + fmt::format("stored in {}\n", printable(folder));
}

void add_options(Args& args, CalibrateChoice& o) {
  add_model_options(args, o.model, false);
  add_run_options(args, o.model);
  add_adapter_options(args, o.model);
  args.group("Calibration");
  args.texts("--data", o.data, "FILE",
             "Text that was not trained on (text or JSONL, as train reads it); may be repeated, FILE:0.3 "
             "gives one a weight");
  args.texts("--check", o.check, "FILE",
             "Text of another kind: the budgets are not found on it, only checked; may be repeated");
  args.text("-o", o.out, "DIR", "A new folder for the adapter with its table (default: into the one given)");
  args.text("--budgets", o.budgets, "B,B,…",
            "The grid: each must be met within 5 points; a miss of more than 1 is a warning. Of the default "
            "grid, budgets that cannot be met are left out");
  args.text(
      "--quality", o.quality, "Q,Q,…",
      "Also find the smallest budget that keeps kl=NATS a token, or ppl=RATIO, against the base at full "
      "depth, without the adapter: an upper 95 % bound on the worst kind of text");
  args.integer("--tokens", o.tokens, "Tokens of the text that are used; a third as many again to check with",
               kFewestTokens, 1 << 24);
  args.integer("--window", o.window,
               "Tokens of a sequence at most; a fifth of the text is in sequences of 64", 16, 1 << 20);
  args.choice("--steer", o.steer, {"auto", "on", "off"},
              "Steered thresholds: each sequence's follow what its earlier rows ran, so that other kinds of "
              "text come nearer to the budget (auto: where the method gains by it)");
  args.text("--chat-template", o.chat_template, "NAME",
            "Format of conversations in JSONL (default: the model's own)");
  args.flag("--prompts-as-chat", o.prompts_as_chat, "Write prompts and answers of JSONL as conversations");
}

void check_options(const Args& args, CalibrateChoice& o) {
  check_model_options(args, o.model);
  if (o.data.empty()) throw UsageError("--data is missing: text that was not trained on");
  if (o.model.force_adapter && o.out.empty())
    throw UsageError(
        "a table made with --force-adapter does not belong into another model's adapter: give a new folder "
        "with -o");
  if (!o.out.empty() && std::filesystem::exists(o.out))
    throw UsageError(fmt::format("-o must name a new folder, {} is there already", printable(o.out)));
}

std::vector<QualityLimit> parse_limits(const std::string& text) {
  std::vector<QualityLimit> limits;
  if (text.empty()) return limits;
  for (const std::string& word : split_list("--quality", text)) limits.push_back(quality_option(word));
  return limits;
}

}  // namespace

int run_calibrate(const Arguments& arguments) {
  Args args("calibrate",
            "Finds a method's thresholds for a grid of budgets on held-out text and stores them.",
            "fathom calibrate -m model.gguf --adapter routers --data held-out.txt");
  CalibrateChoice o;
  add_options(args, o);
  if (!args.parse(arguments)) return 0;
  check_options(args, o);
  CalibrateOptions options;
  options.budgets = parse_budgets(o.budgets);
  options.all_budgets = args.given("--budgets");
  options.steer = o.steer == "on" ? Steer::kOn : o.steer == "off" ? Steer::kOff : Steer::kAuto;
  const std::vector<QualityLimit> limits = parse_limits(o.quality);

  Session session(o.model);
  if (!session.method()) throw UsageError("calibrate needs a method: give its adapter with --adapter");
  Texts texts = read_texts(o, session);
  if (!limits.empty()) check_for_quality(texts.check);
  options.k_type = session.cache_options().k_type;
  options.v_type = session.cache_options().v_type;
  options.check = std::move(texts.check);
  options.cancel = &interrupted();
  Progress progress("calibrating", std::ssize(options.budgets) * kPassesOfABudget);
  options.on_progress = [&](int64_t passes) { progress.add(passes); };
  const Found found = find_table(session, o, limits, texts.calibration, options);
  warn_about_misses(found.table);
  if (interrupted()) throw CalibrationCancelled();

  const std::string folder = store(session, o, found.table);
  if (!found.failed.empty())
    fail("{}; the table of budgets is stored in {}", found.failed, printable(folder));
  if (o.model.json) {
    print_json(table_json(found.table, found.to_base, folder));
  } else {
    print(table_text(found.table, found.to_base, options.budgets.size(), texts.tokens, folder));
  }
  return 0;
}

}  // namespace fathom
