// fathom calibrate: thresholds for a grid of budgets, stored with the adapter.
#include "infer/calibrate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/model_path.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/verbs.h"
#include "skip/adapter.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  ModelOptions model;
  std::string data, out, budgets;
  int64_t tokens = 8192, window = 512;
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

struct Texts {
  CalibrationText calibration, check;
  int64_t tokens = 0;
};

// Sequences of `window` tokens, in batches that one pass takes: as many as make `tokens`, and every fourth
// besides to check with.
Texts cut(const std::vector<int32_t>& ids, int64_t window, int64_t tokens) {
  constexpr int64_t kRowsOfAPass = 8192, kShortest = 16, kParts = 4;
  const auto total = std::min<int64_t>(tokens + tokens / (kParts - 1), static_cast<int64_t>(ids.size()));
  window = std::min(window, std::max(kShortest, total / kParts));
  Texts texts;
  const auto add = [&](CalibrationText& text, int64_t begin, int64_t count) {
    if (text.empty() || static_cast<int64_t>(text.back().size()) + count > kRowsOfAPass) text.emplace_back();
    std::vector<BatchRow>& batch = text.back();
    const int32_t sequence = batch.empty() ? 0 : batch.back().sequence + 1;
    for (int64_t i = 0; i < count; ++i)
      batch.push_back({ids[static_cast<size_t>(begin + i)], static_cast<int32_t>(i), sequence, false});
  };
  for (int64_t begin = 0, part = 0; begin < total; begin += window, part = (part + 1) % kParts) {
    const int64_t count = std::min(window, total - begin);
    const bool check = part == kParts - 1;
    add(check ? texts.check : texts.calibration, begin, count);
    texts.tokens += check ? 0 : count;
  }
  return texts;
}

// The adapter with its new table: in its folder, or in a new one. -> where
std::string store(Session& session, const Options& o, const Calibration& table) {
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
  save_adapter(session.ctx(), o.out, *adapter.policy, session.model(), adapter.extra);
  return o.out;
}

void report(const Calibration& table, size_t budgets, int64_t tokens, bool json, const std::string& folder) {
  const std::vector<CalibrationPoint> points = table.asked();
  if (json) {
    Json out;
    out["weight_type"] = table.weight_type;
    for (const char* key : {"budgets", "achieved", "checked"}) out[key] = Json::array();
    for (const CalibrationPoint& point : points) {
      out["budgets"].push_back(short_decimal(point.budget));
      out["achieved"].push_back(short_decimal(point.achieved));
      out["checked"].push_back(short_decimal(point.checked));
    }
    out["adapter"] = folder;
    return print_json(out);
  }
  std::string text =
      fmt::format("{} weights, {} tokens\n  budget  achieved  on other text\n", table.weight_type, tokens);
  for (const CalibrationPoint& point : points)
    text += fmt::format("  {:6.3f}  {:8.4f}  {:13.4f}\n", point.budget, point.achieved, point.checked);
  if (points.size() < budgets) text += "the other budgets cannot be met by this method with this model\n";
  print(text + fmt::format("stored in {}\n", printable(folder)));
}

}  // namespace

int run_calibrate(const Arguments& arguments) {
  Args args("calibrate",
            "Finds a method's thresholds for a grid of budgets on held-out text and stores them.",
            "fathom calibrate -m model.gguf --adapter routers --data held-out.txt");
  Options o;
  o.budgets = "0.95,0.9,0.8,0.7,0.6,0.5";
  add_model_options(args, o.model, true);
  args.group("Calibration");
  args.text("--data", o.data, "FILE", "Text that was not trained on");
  args.text("-o", o.out, "DIR", "A new folder for the adapter with its table (default: into the one given)");
  args.text("--budgets", o.budgets, "B,B,…", "The grid: each must be met (of the default one, what can be)");
  args.integer("--tokens", o.tokens, "Tokens of the text that are used; a third as many again to check with",
               64, 1 << 24);
  args.integer("--window", o.window, "Tokens of a sequence", 16, 1 << 20);
  if (!args.parse(arguments)) return 0;
  check_model_options(args, o.model);
  if (o.data.empty()) throw UsageError("--data is missing: text that was not trained on");
  if (o.model.force_adapter && o.out.empty())
    throw UsageError(
        "a table made with --force-adapter does not belong into another model's adapter: give a new folder "
        "with -o");
  if (!o.out.empty() && std::filesystem::exists(o.out))
    throw UsageError(fmt::format("-o must name a new folder, {} is there already", printable(o.out)));
  const std::vector<float> budgets = parse_budgets(o.budgets);

  Session session(o.model);
  if (!session.method()) throw UsageError("calibrate needs a method: give its adapter with --adapter");
  const std::vector<int32_t> ids = session.tokenizer().encode(read_input(o.data));
  if (ids.size() < 64)
    fail("{}: calibration needs at least 64 tokens, got {}", printable(o.data), ids.size());
  Texts texts = cut(ids, std::min(o.window, session.context()), o.tokens);

  CalibrateOptions options;
  options.budgets = budgets;
  options.all_budgets = args.given("--budgets");
  options.k_type = session.cache_options().k_type;
  options.v_type = session.cache_options().v_type;
  options.check = std::move(texts.check);
  Progress progress("calibrating", static_cast<int64_t>(budgets.size()) * options.most_passes);
  options.on_progress = [&](int64_t passes) { progress.add(passes); };
  const Calibration table =
      calibrate(session.ctx(), session.model(), *session.method(), texts.calibration, options);
  for (const CalibrationPoint& point : table.asked()) {
    if (std::abs(point.checked - point.budget) > 0.02f)
      log_warn(
          fmt::format("a budget of {:g} came out as {:.3f} on other text: more of it may help (--tokens)",
                      point.budget, point.checked));
  }
  report(table, budgets.size(), texts.tokens, o.model.json, store(session, o, table));
  return 0;
}

}  // namespace fathom
