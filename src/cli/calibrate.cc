// fathom calibrate: thresholds for a grid of budgets, stored with the adapter.
#include "infer/calibrate.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/progress.h"
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

// Sequences of `window` tokens, as many as make `tokens`, in batches that one pass takes.
std::vector<std::vector<BatchRow>> cut(const std::vector<int32_t>& ids, int64_t window, int64_t tokens) {
  constexpr int64_t kRowsOfAPass = 8192;
  std::vector<std::vector<BatchRow>> batches(1);
  const auto total = std::min<int64_t>(tokens, static_cast<int64_t>(ids.size()));
  int32_t sequence = 0;
  for (int64_t begin = 0; begin < total; begin += window) {
    const int64_t count = std::min(window, total - begin);
    if (!batches.back().empty() && static_cast<int64_t>(batches.back().size()) + count > kRowsOfAPass) {
      batches.emplace_back();
      sequence = 0;
    }
    for (int64_t i = 0; i < count; ++i)
      batches.back().push_back(
          {ids[static_cast<size_t>(begin + i)], static_cast<int32_t>(i), sequence, false});
    ++sequence;
  }
  return batches;
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
  args.text("-o", o.out, "DIR", "Folder of the adapter to store the table with (default: the one given)");
  args.text("--budgets", o.budgets, "B,B,…", "The grid");
  args.integer("--tokens", o.tokens, "Tokens of the text that are used", 64, 1 << 24);
  args.integer("--window", o.window, "Tokens of a sequence", 16, 1 << 20);
  if (!args.parse(arguments)) return 0;
  check_model_options(args, o.model);
  if (o.data.empty()) throw UsageError("--data is missing: text that was not trained on");
  const std::vector<float> budgets = parse_budgets(o.budgets);

  Session session(o.model);
  if (!session.method()) throw UsageError("calibrate needs a method: give its adapter with --adapter");
  const std::vector<int32_t> ids = session.tokenizer().encode(read_input(o.data));
  if (ids.size() < 64)
    fail("{}: calibration needs at least 64 tokens, got {}", printable(o.data), ids.size());
  const auto batches = cut(ids, std::min(o.window, session.context()), o.tokens);

  CalibrateOptions options;
  options.budgets = budgets;
  options.k_type = session.cache_options().k_type;
  options.v_type = session.cache_options().v_type;
  Progress progress("calibrating", static_cast<int64_t>(budgets.size()) * options.most_passes);
  options.on_progress = [&](int64_t passes) { progress.add(passes); };
  const Calibration table = calibrate(session.ctx(), session.model(), *session.method(), batches, options);

  const std::string folder = !o.out.empty()             ? o.out
                             : !o.model.adapter.empty() ? o.model.adapter
                                                        : session.model().path + "/skip";
  const Adapter stored = load_adapter(session.ctx(), folder, session.model(), true);
  std::vector<Calibration> tables =
      calibrations_from_json(stored.extra.calibration, 2 * session.model().config.layers, printable(folder));
  std::erase_if(tables, [&](const Calibration& old) { return old.weight_type == table.weight_type; });
  tables.insert(tables.begin(), table);
  save_calibration(folder, calibrations_to_json(tables));

  if (o.model.json) {
    Json out;
    out["weight_type"] = table.weight_type;
    out["budgets"] = Json::array();
    out["achieved"] = Json::array();
    for (const CalibrationPoint& point : table.points) {
      out["budgets"].push_back(short_decimal(point.budget));
      out["achieved"].push_back(short_decimal(point.achieved));
    }
    out["adapter"] = folder;
    print_json(out);
    return 0;
  }
  std::string text = fmt::format("{} weights, {} tokens\n  budget  achieved\n", table.weight_type,
                                 std::min<int64_t>(o.tokens, static_cast<int64_t>(ids.size())));
  for (const CalibrationPoint& point : table.points)
    text += fmt::format("  {:6.3f}  {:8.4f}\n", point.budget, point.achieved);
  print(text + fmt::format("stored in {}\n", printable(folder)));
  return 0;
}

}  // namespace fathom
