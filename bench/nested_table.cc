// nested_table MODEL FIT.txt FIT_TOKENS TEST.txt TEST_TOKENS [METHOD_JSON]: what nested lists cost on a text,
// in mean KL to full depth, at the work of each list: that list for all rows; rows by the head; the head's
// choices shuffled among the rows; and the oracle, which chooses by the measured losses. The head is fitted
// to FIT.txt. Each row is measured with all rows on its list. "one pass": the head's choices as they run,
// mixed.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/mapped_file.h"
#include "base/rng.h"
#include "infer/quality.h"
#include "model/load.h"
#include "skip/harm_order.h"
#include "skip/list_losses.h"
#include "skip/method_policy.h"
#include "skip/nested.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int64_t kWindow = 256;
constexpr int64_t kOrderTokens = 512;

std::vector<std::vector<BatchRow>> windows(const Model& model, const std::string& path, int64_t tokens) {
  const std::string text = read_text_file(path).substr(0, static_cast<size_t>(8 * tokens));
  const std::vector<int32_t> ids = model.tokenizer->encode(text);
  std::vector<std::vector<BatchRow>> all;
  for (int64_t first = 0; first + kWindow <= std::min(tokens, std::ssize(ids)); first += kWindow) {
    all.emplace_back();
    for (int64_t i = 0; i < kWindow; ++i)
      all.back().push_back({ids[static_cast<size_t>(first + i)], static_cast<int32_t>(i), 0, true, 1});
  }
  return all;
}

struct Table {
  ListCosts costs;
  std::vector<std::vector<double>> measured, predicted;  // (rows, lists), without list 0
};

int best_list(const ListCosts& costs, const std::vector<double>& loss, double price) {
  int best = 0;
  double least = price * double{costs.left[0]};
  for (int k = 1; k <= costs.lists; ++k) {
    const double here = loss[static_cast<size_t>(k - 1)] + price * double{costs.left[static_cast<size_t>(k)]};
    if (here < least) least = here, best = k;
  }
  return best;
}

// The choices at the price at which they cost `share` in the mean.
std::vector<int> choices(const ListCosts& costs, const std::vector<std::vector<double>>& loss, double share) {
  double low = -100, high = 1000;
  std::vector<int> found(loss.size());
  for (int i = 0; i < 60; ++i) {
    const double price = (low + high) / 2;
    double cost = 0;
    for (size_t r = 0; r < loss.size(); ++r) {
      found[r] = best_list(costs, loss[r], price);
      cost += double{costs.left[static_cast<size_t>(found[r])]};
    }
    (cost / static_cast<double>(loss.size()) > share ? low : high) = price;
  }
  return found;
}

double mean_loss(const Table& table, const std::vector<int>& lists) {
  double sum = 0;
  for (size_t r = 0; r < lists.size(); ++r)
    sum += lists[r] == 0 ? 0.0 : table.measured[r][static_cast<size_t>(lists[r] - 1)];
  return sum / static_cast<double>(lists.size());
}

void print_table(const Table& table) {
  fmt::print("{:>6} {:>8} {:>8} {:>8} {:>8}\n", "cost", "fixed", "shuffled", "head", "oracle");
  for (int k = 1; k <= table.costs.lists; ++k) {
    const double share = double{table.costs.left[static_cast<size_t>(k)]};
    const std::vector<int> head = choices(table.costs, table.predicted, share);
    double shuffled = 0;
    constexpr int kShuffles = 16;
    for (int i = 0; i < kShuffles; ++i) {
      std::vector<int> order = head;
      Rng rng(static_cast<uint64_t>(i));
      for (size_t at = order.size() - 1; at > 0; --at)
        std::swap(order[at], order[rng.below(static_cast<uint32_t>(at + 1))]);
      shuffled += mean_loss(table, order) / kShuffles;
    }
    fmt::print("{:6.3f} {:8.4f} {:8.4f} {:8.4f} {:8.4f}\n", share,
               mean_loss(table, std::vector<int>(head.size(), k)), shuffled, mean_loss(table, head),
               mean_loss(table, choices(table.costs, table.measured, share)));
    std::fflush(stdout);
  }
}

std::vector<float> host(Context& ctx, const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  copy_to_host(ctx, tensor, values);
  return values;
}

class Study {
 public:
  Study(const std::string& path, const std::string& json)
      : model_(load_model(ctx_, path, {})), policy_(MethodPolicy::from_json(json, "the method")) {
    policy_->check(model_.config);
    policy_->initialise(model_.config, 1);
  }
  const Model& model() const { return model_; }

  void fit(const std::vector<std::vector<BatchRow>>& text) {
    const ArenaScope scope(ctx_);
    std::vector<Batch> batches;
    for (const auto& rows : text) batches.push_back(make_batch(ctx_, rows));
    const size_t few = std::min(batches.size(), static_cast<size_t>(kOrderTokens / kWindow));
    policy_->prepare(ctx_, model_, std::span(batches).first(few));
    for (const std::string& said : policy_->finish(ctx_, model_, batches)) fmt::print("{}\n", said);
    std::fflush(stdout);
  }

  Table measure(const std::vector<std::vector<BatchRow>>& text) {
    const auto config = nlohmann::json::parse(policy_->to_json());
    const auto order = config["order"].get<std::vector<int32_t>>();
    const auto shares = config["lists"].get<std::vector<float>>();
    const ListPlan plan =
        plan_lists(model_.config, shares, order, SkippedKv::kProject, config["cost_context"]);
    const std::vector<MethodParameter> head = policy_->parameters(model_.config);
    const std::vector<float> weight = host(ctx_, *head[0].tensor), offset = host(ctx_, *head[1].tensor),
                             bias = host(ctx_, *head[2].tensor);
    Table table{plan.costs, {}, {}};
    const auto width = static_cast<size_t>(model_.config.width);
    const ArenaScope scope(ctx_);
    std::vector<Batch> batches;
    for (const auto& rows : text) batches.push_back(make_batch(ctx_, rows));
    measure_lists(ctx_, {model_, config["layer"], plan.group, plan.costs.lists}, batches,
                  [&](const ListLosses& losses) {
                    for (size_t r = 0; r < static_cast<size_t>(losses.rows()); ++r) {
                      table.measured.emplace_back();
                      table.predicted.emplace_back();
                      for (size_t k = 0; k < shares.size(); ++k) {
                        const double own =
                            std::inner_product(weight.begin() + static_cast<ptrdiff_t>(k * width),
                                               weight.begin() + static_cast<ptrdiff_t>((k + 1) * width),
                                               losses.x.begin() + static_cast<ptrdiff_t>(r * width), 0.0);
                        table.measured.back().push_back(losses.kl[k][r]);
                        table.predicted.back().push_back(double{bias[k]} + own - double{offset[k]});
                      }
                    }
                  });
    return table;
  }

  // As it runs: calibrated on the text itself.
  void run(const std::vector<std::vector<BatchRow>>& text, float budget) {
    CalibrateOptions options;
    options.budgets = {budget};
    const CalibrationPoint point = calibrate(ctx_, model_, *policy_, text, options).asked().front();
    const Divergence found = divergence(ctx_, {model_, model_, *policy_}, text, point.thresholds, options);
    fmt::print("one pass at {:g}: ran {:.3f}, KL {:.4f}\n", budget, point.achieved, found.kl.mean);
    std::fflush(stdout);
  }

 private:
  Context ctx_{{.threads = 2}};
  Model model_;
  std::unique_ptr<MethodPolicy> policy_;
};

int main_of(int argc, char** argv) {
  if (argc < 6) throw UserError("expected MODEL FIT.txt FIT_TOKENS TEST.txt TEST_TOKENS [METHOD_JSON]");
  Study study(argv[1], argc > 6 ? argv[6] : R"({"name": "nested", "ridge": 0.01})");
  study.fit(windows(study.model(), argv[2], std::stoll(argv[3])));
  const auto test = windows(study.model(), argv[4], std::stoll(argv[5]));
  print_table(study.measure(test));
  study.run(test, 0.9f);
  return 0;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  try {
    return fathom::main_of(argc, argv);
  } catch (const std::exception& error) {
    std::fputs((std::string("nested_table: ") + error.what() + "\n").c_str(), stderr);
    return 1;
  }
}
