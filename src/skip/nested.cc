// Nested lists, our second method. A few lists of units, each of which leaves out what the one before does
// and more, in the harm order. One decision a row: a head on the state before `layer` predicts the row's loss
// (KL to full depth) with each list, and the row takes the list of least loss + price · cost. One price for
// the network is what a budget sets. The head learns by regression on measured losses.
#include "skip/nested.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/format.h"
#include "model/transformer.h"
#include "ops/linear/linear.h"
#include "ops/loss/cross_entropy.h"
#include "ops/rows/assign.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/list_prices.h"
#include "ops/rows/noise.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/reduce.h"
#include "ops/rows/scale_rows.h"
#include "skip/harm_order.h"
#include "skip/least_squares.h"
#include "skip/list_losses.h"
#include "skip/methods.h"
#include "skip/running_means.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

enum class ListChoice : uint8_t { kHead, kFixed, kRandom };
std::span<const std::string_view> enum_names(ListChoice) {
  static constexpr std::array<std::string_view, 3> kNames{"head", "fixed", "random"};
  return kNames;
}

// Streams of noise.
constexpr uint32_t kSequenceLists = 0x11575, kRowLists = 0x11576, kRowParts = 0x11577, kChoices = 0x11578;

struct NestedConfig {
  std::vector<float> lists{0.9f, 0.8f, 0.7f, 0.6f};
  int64_t layer = 1;
  ListChoice choice = ListChoice::kHead;
  float alpha = 1;
  int64_t band = 1, protect_rows = 0, centre_block = 0;
  float sequence_spread = 0.25f, row_spread = 0.5f, head_weight = 1;
  int64_t regression_rows = 1024;
  float ridge = 0;
  OrderSearch search = OrderSearch::kGreedily;
  int64_t cost_context = 1024;
  uint64_t seed = 0;
  std::vector<int32_t> order;

  template <class V>
  void visit(V& v) {
    v("lists", lists, "share of the block multiply-adds that each list leaves, falling; beside the full one");
    v("layer", layer, "the head reads this layer's input; the layers before it always run");
    v("choice", choice,
      "what chooses a row's list: the head; fixed, the budget for all rows alike; random, the two nearest "
      "lists by chance");
    v("alpha", alpha,
      "multiplies what a row's own state adds to its predictions; 0: all rows are the mean row");
    v("band", band, "lists on either side of the mean row's that a row may take; 0: all");
    v("protect_rows", protect_rows, "rows at the first positions of a text that run everything");
    v("centre_block", centre_block,
      "rows of a block; at inference what a row's own state adds is centred on its mean over the sequence's "
      "earlier blocks; 0: on its mean in training");
    v("sequence_spread", sequence_spread,
      "training: how far a sequence's list may lie from the step's, as a share of all lists");
    v("row_spread", row_spread,
      "training: how far a row's list may lie from its sequence's; each sequence draws a part of it");
    v("head_weight", head_weight, "of the head's squared error in the loss");
    v("regression_rows", regression_rows, "rows of a pass whose loss is measured for the head, at most");
    v("ridge", ridge,
      "above 0: after training the head is fitted again by ridge regression of this strength");
    v("search", search,
      "how the order is found: once, each unit dropped alone; greedily, measured again after each that goes");
    v("cost_context", cost_context, "tokens of context at which a unit's multiply-adds are counted");
    v("seed", seed, "seed of the random choice");
    v("order", order, "units, the first to drop first; empty: found on text before training");
  }
};

struct NestedState final : MethodState {
  int64_t truncate(Context&, int32_t sequence, int64_t position) override {
    means.truncate(sequence, position);
    return position;
  }
  int64_t fork(Context&, int32_t from, int32_t to, int64_t position) override {
    means.fork(from, to, position);
    return position;
  }

  ListPlan plan;
  RunningMeans means;
  // Of this pass:
  Tensor prices, most;                    // as ListPrices has them
  Tensor features;                        // f32 (rows, width): what the head read; in training only
  RowSet present = RowSet::none(0);       // of the attention unit that is being decided
  std::vector<BatchRow> room;             // for the centred head
  std::vector<float> raw, mean_row, row;  // and its numbers
};

class Nested final : public Method {
 public:
  std::vector<Field> fields() override { return fields_of(config_); }
  void check(const ModelConfig& config) const override;
  void check_training(float) const override {
    if (config_.choice != ListChoice::kRandom && config_.seed != NestedConfig().seed)
      fail("nested: seed ({}) is for choice: random, and does nothing with choice: {}: leave it out",
           config_.seed, enum_names(config_.choice)[static_cast<size_t>(config_.choice)]);
    if (config_.choice == ListChoice::kFixed && config_.alpha != NestedConfig().alpha)
      fail("nested: alpha ({:g}) is 0 with choice: fixed, whatever it says: leave it out", config_.alpha);
  }
  MethodTraits traits() const override {  // what a row has chosen cannot be resumed
    return {.resumes = false,
            .freezes_backbone = true,
            .starts_by_harm = true,
            .reads_share = true,
            .distills = true,
            .fits_at_end = config_.ridge > 0 && config_.choice != ListChoice::kRandom};
  }
  std::vector<MethodParameter> parameters(const ModelConfig& config) override {
    const auto lists = static_cast<int64_t>(config_.lists.size());
    return {{"head.weight", &weight_, {lists, config.width}},
            {"head.offset", &offset_, {lists}, 0, 0, false},
            {"head.bias", &bias_, {lists}, 0, 0, false}};
  }
  std::unique_ptr<MethodState> make_state(Context&, const ModelConfig& config, int64_t) const override {
    auto state = std::make_unique<NestedState>();
    state->plan = plan_of(config);
    state->means.set_size(lists(), config_.centre_block, config.context);
    return state;
  }

  void begin(Context& ctx, const Model& model, const Batch& batch, SkipState& state) const override;
  void score(UnitCall& call, Decision& decision) const override;
  RowSet decide(UnitCall& call, const Decision& decision) const override;
  float threshold_weight(const ModelConfig&, int64_t, SkippedKv) const override { return 1; }
  UnitList list(const ModelConfig& config) const override;

  void prepare(Context& ctx, const PrepareInput& input) override;
  std::vector<std::string> measured() const override { return {"order"}; }
  Tensor penalty(Context& ctx, const LossInput& input) const override;
  std::string finish(Context& ctx, const FinishInput& input) override;

 private:
  int64_t lists() const { return std::ssize(config_.lists); }
  ListPlan plan_of(const ModelConfig& config) const {
    return plan_lists(config, config_.lists, config_.order, skipped_kv(false), config_.cost_context);
  }
  ListRules rules_of(const NestedState& mine) const {
    return {mine.plan.costs, static_cast<int32_t>(config_.band), static_cast<int32_t>(config_.protect_rows)};
  }
  void choose_lists(UnitCall& call, NestedState& mine) const;
  ListPrices prices_of(UnitCall& call, NestedState& mine, const Tensor& x) const;
  Tensor predict(UnitCall& call, NestedState& mine, const Tensor& x) const;
  Tensor predict_centred(UnitCall& call, NestedState& mine, const Tensor& x, float alpha) const;
  Tensor training_level(UnitCall& call, const NestedState& mine) const;
  void leave_out(UnitCall& call, NestedState& mine, const Tensor& most, Decision& decision) const;
  Tensor squared_error(Context& ctx, const LossInput& input, const RowSet& rows) const;

  NestedConfig config_;
  // Loss of list k: bias + alpha · (weight · x − offset). The bias is the mean row's.
  Tensor weight_, offset_, bias_;  // (lists, width), (lists), (lists)
};

void Nested::check(const ModelConfig& config) const {
  if (config_.lists.empty() || lists() > kMostLists)
    fail("nested: lists must have from 1 to {} shares, got {}", kMostLists, lists());
  float last = 1;
  for (const float share : config_.lists) {
    if (!(share > 0 && share < last))
      fail("nested: lists must be shares that fall from below 1 and stay above 0, got {} after {}", share,
           last);
    last = share;
  }
  if (config_.layer < 0 || config_.layer >= config.layers)
    fail("nested: layer must be from 0 to {}, got {}", config.layers - 1, config_.layer);
  if (!(config_.alpha >= 0 && config_.alpha <= 1))
    fail("nested: alpha must be between 0 and 1, got {}", config_.alpha);
  for (const auto& [name, value] : {std::pair{"band", static_cast<double>(config_.band)},
                                    {"protect_rows", static_cast<double>(config_.protect_rows)},
                                    {"centre_block", static_cast<double>(config_.centre_block)},
                                    {"sequence_spread", double{config_.sequence_spread}},
                                    {"row_spread", double{config_.row_spread}},
                                    {"head_weight", double{config_.head_weight}},
                                    {"ridge", double{config_.ridge}}}) {
    if (!(value >= 0)) fail("nested: {} must be 0 or more, got {}", name, value);
  }
  for (const auto& [name, value] :
       {std::pair{"cost_context", config_.cost_context}, {"regression_rows", config_.regression_rows}}) {
    if (value < 1) fail("nested: {} must be at least 1, got {}", name, value);
  }
  for (size_t i = 0; i < config_.order.size(); ++i) {
    const int32_t unit = config_.order[i];
    if (unit < 2 * config_.layer || unit >= 2 * config.layers)
      fail("nested: order must name units from {} to {}, got {}", 2 * config_.layer, 2 * config.layers - 1,
           unit);
    if (std::count(config_.order.begin(), config_.order.end(), unit) > 1)
      fail("nested: order must name a unit once, got {} twice", unit);
  }
}

// Where all rows are alike, budgets drop units one after another and need no calibration.
UnitList Nested::list(const ModelConfig& config) const {
  if (config_.choice != ListChoice::kFixed) return {};
  return {config_.order, shares_left(config, config_.order, SkippedKv::kHide, config_.cost_context)};
}

void Nested::begin(Context& ctx, const Model& model, const Batch& batch, SkipState& state) const {
  auto& mine = state.of<NestedState>(*this);
  if (mine.plan.costs.lists == 0) return;
  mine.prices = Tensor::empty(ctx, DType::kF32, {lists(), batch.rows()});
  mine.most = Tensor::empty(ctx, DType::kF32, {lists(), batch.rows()});
  mine.features =
      state.training ? Tensor::empty(ctx, DType::kF32, {batch.rows(), model.config.width}) : Tensor();
}

// decision.score is the price above which the row skips the unit.
void Nested::score(UnitCall& call, Decision& decision) const {
  auto& mine = call.state.of<NestedState>(*this);
  if (mine.plan.costs.lists == 0) return;
  const bool attention = call.input.unit == Unit::kAttention;
  if (attention && call.input.layer == config_.layer) choose_lists(call, mine);
  const int64_t group = mine.plan.group[static_cast<size_t>(call.input.index())];
  if (group == 0) return;
  const auto of_group = [&](const Tensor& all) { return all.rows(group - 1, 1).reshape({call.rows()}); };
  decision.score = of_group(mine.prices);
  if (attention) leave_out(call, mine, of_group(mine.most), decision);
}

void Nested::choose_lists(UnitCall& call, NestedState& mine) const {
  const RecordingScope quiet(call.ctx, false);
  const UnitInput& input = call.input;
  const Tensor x = unit_input(call.ctx, input.model, input.layer, input.unit, detach(input.h));
  const ListPrices found = prices_of(call, mine, x);
  assign(call.ctx, mine.prices, found.prices);
  assign(call.ctx, mine.most, found.most);
  if (mine.features) assign(call.ctx, mine.features, x);
}

ListPrices Nested::prices_of(UnitCall& call, NestedState& mine, const Tensor& x) const {
  Context& ctx = call.ctx;
  const Batch& batch = call.input.batch;
  const ListRules rules = rules_of(mine);
  const bool training = call.state.training.on;
  if (!training && config_.choice != ListChoice::kRandom)
    return list_prices(ctx, predict(call, mine, x), detach(bias_), batch.positions, rules);
  const Tensor level =
      training ? training_level(call, mine)
               : affine(ctx, uniform_noise(ctx, config_.seed, 0, kChoices, batch.keys, batch.positions),
                        -1.0f, 1.0f);
  return level_prices(ctx, level, batch.positions, rules.costs.lists, rules.protect_rows);
}

// A sequence draws a list near the step's, and its rows lists near that one.
Tensor Nested::training_level(UnitCall& call, const NestedState& mine) const {
  Context& ctx = call.ctx;
  const Batch& batch = call.input.batch;
  const TrainingStep& step = call.state.training;
  const auto noise = [&](uint32_t stream, const Tensor& positions) {
    return uniform_noise(ctx, step.seed, static_cast<uint32_t>(step.step), stream, batch.keys, positions);
  };
  const ListCosts& costs = mine.plan.costs;
  int32_t list = 0;
  while (list < costs.lists && costs.left[static_cast<size_t>(list)] > step.share * (1 + 1e-5f)) ++list;
  const float count = static_cast<float>(costs.lists);
  const float sequences = step.share < 1 ? config_.sequence_spread * count : 0.0f,
              rows = step.share < 1 ? config_.row_spread * count : 0.0f;
  const Tensor of_sequence = affine(ctx, noise(kSequenceLists, batch.keys), 2 * sequences,
                                    static_cast<float>(list) + 0.5f - sequences);
  const Tensor of_row = affine(ctx, noise(kRowLists, batch.positions), 2 * rows, -rows);
  return add(ctx, of_sequence, multiply(ctx, of_row, noise(kRowParts, batch.keys)));
}

// (rows, lists)
Tensor Nested::predict(UnitCall& call, NestedState& mine, const Tensor& x) const {
  Context& ctx = call.ctx;
  const float alpha = config_.choice == ListChoice::kFixed ? 0.0f : config_.alpha;
  if (config_.centre_block > 0 && alpha > 0) return predict_centred(call, mine, x, alpha);
  const Tensor bias = add(ctx, detach(bias_), affine(ctx, detach(offset_), -alpha, 0.0f));
  return linear(ctx, alpha == 1 ? x : affine(ctx, x, alpha, 0.0f), detach(weight_), bias);
}

// The means are kept on the host: the numbers go there and back, once a pass.
Tensor Nested::predict_centred(UnitCall& call, NestedState& mine, const Tensor& x, float alpha) const {
  Context& ctx = call.ctx;
  const Tensor raw = linear(ctx, x, detach(weight_), affine(ctx, detach(offset_), -1.0f, 0.0f));
  const auto count = static_cast<size_t>(lists());
  mine.raw.resize(static_cast<size_t>(raw.numel()));
  mine.mean_row.resize(count);
  copy_to_host(ctx, raw, mine.raw);
  copy_to_host(ctx, detach(bias_), mine.mean_row);
  size_t at = 0;
  for (const BatchRow& row : rows_on_host(ctx, call.input.batch, mine.room)) {
    const std::span<float> values = std::span(mine.raw).subspan(at * count, count);
    mine.means.centre(row.sequence, row.position, values);
    for (size_t k = 0; k < count; ++k) values[k] = mine.mean_row[k] + alpha * values[k];
    ++at;
  }
  return Tensor::from(ctx, mine.raw, raw.shape());
}

// A unit that no row of a sequence runs at its budget makes no keys and values for it. Drafts leave what the
// sequence's own budget does.
void Nested::leave_out(UnitCall& call, NestedState& mine, const Tensor& most, Decision& decision) const {
  SkipState& state = call.state;
  const bool decides = !state.training && !state.pass.replay && !state.pass.masked && !state.pass.collect &&
                       !state.pass.fit && state.thresholds.any();
  if (!decides) return;
  state.thresholds.judging = state.thresholds.drafts();
  mine.present = select_rows(
      call.ctx, most,
      {state.thresholds.table(), call.input.index(), call.input.batch.sequence, -INFINITY, -INFINITY});
  state.thresholds.judging = false;
  if (!mine.present.is_all()) decision.present = &mine.present;
}

RowSet Nested::decide(UnitCall& call, const Decision& decision) const {
  if (!decision.score) return RowSet::all(call.rows());
  if (!call.state.training) return above_threshold(call, decision.score, -INFINITY);
  if (call.state.training.share >= 1) return RowSet::all(call.rows());
  return select_rows(call.ctx, decision.score, Compare::kAbove, scalar(call.ctx, 0.0f));
}

void Nested::prepare(Context& ctx, const PrepareInput& input) {
  const ModelConfig& config = input.model.config;
  if (config_.order.empty()) {
    std::vector<int32_t> kept = input.protect;
    for (int32_t layer = 0; layer < config_.layer; ++layer) kept.push_back(layer);
    const PrepareInput own{input.model, input.batches, input.skipped_kv, input.harm_order,
                           kept,        input.cancel,  input.kept};
    const double until = double{config_.lists.back()};
    for (const int64_t unit : found_order(ctx, own, config_.search, until, config_.cost_context)) {
      if (std::find(kept.begin(), kept.end(), static_cast<int32_t>(unit / 2)) == kept.end())
        config_.order.push_back(static_cast<int32_t>(unit));
    }
  }
  if (!input.harm_order || config_.order.empty()) return;
  // Before any learning every row is the mean row.
  const ListPlan plan = plan_of(config);
  std::vector<double> sums(config_.lists.size(), 0.0);
  int64_t rows = 0;
  measure_lists(ctx, {input.model, config_.layer, plan.group, plan.costs.lists, input.cancel}, input.batches,
                [&](const ListLosses& losses) {
                  for (size_t k = 0; k < sums.size(); ++k) {
                    for (const double kl : losses.kl[k]) sums[k] += kl;
                  }
                  rows += losses.rows();
                });
  std::vector<float> means;
  for (const double sum : sums) means.push_back(static_cast<float>(sum / static_cast<double>(rows)));
  copy_from_host(ctx, means, bias_);
}

// At most that number of the pass's rows, at even distances.
RowSet some_rows(Context& ctx, int64_t rows, int64_t most) {
  if (rows <= most) return RowSet::all(rows);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < most; ++i) ids.push_back(static_cast<int32_t>(i * rows / most));
  return RowSet::some(Tensor::from(ctx, ids, {most}), known_count(ctx, static_cast<int32_t>(most)));
}

// The head's squared error on the list that each row ran with, and the mean row's.
Tensor Nested::penalty(Context& ctx, const LossInput& input) const {
  const auto& mine = input.state.of<NestedState>(*this);
  if (config_.head_weight == 0 || mine.plan.costs.lists == 0 || !mine.features) return {};
  if (input.state.training.learns_text) return {};  // nothing to compare with
  if (!input.teacher.x)
    fail("nested: the head learns from the divergence from full depth: the objective must be distill");
  return squared_error(ctx, input, some_rows(ctx, input.output.x.dim(0), config_.regression_rows));
}

Tensor Nested::squared_error(Context& ctx, const LossInput& input, const RowSet& rows) const {
  const auto& mine = input.state.of<NestedState>(*this);
  // Compacted tensors in which every row is there.
  const auto some = [&](const Tensor& x) { return gather_rows(ctx, detach(x), rows).counted_like(Tensor()); };
  const auto logit_rows = [&](const Tensor& x) {
    return some(gather_rows(ctx, detach(x), input.batch.logit_rows).counted_like(Tensor()));
  };
  Tensor chosen, target, x;
  {
    const RecordingScope quiet(ctx, false);
    OutputRows taught = input.teacher, output = input.output;
    taught.x = some(taught.x);
    output.x = some(output.x);
    const Tensor kl = kl_of_rows(ctx, output_logits(ctx, taught), output_logits(ctx, output));
    chosen = logit_rows(chosen_lists(ctx, mine.prices));
    target = scale_rows(ctx, chosen, kl);
    x = logit_rows(mine.features);
  }
  const int64_t count = x.dim(0);
  Tensor weights = Tensor::empty(ctx, DType::kF32, {count});
  fill(ctx, weights, 1.0f / static_cast<float>(std::max<int64_t>(1, count)));
  const Tensor of_rows = linear(ctx, x, weight_, add(ctx, bias_, affine(ctx, offset_, -1.0f, 0.0f)));
  const Tensor of_mean = linear(ctx, affine(ctx, x, 0.0f, 0.0f), weight_, bias_);  // a row without a state
  const float scale = config_.head_weight * static_cast<float>(lists());  // the loss is a mean over the lists
  const std::array errors{mean_squared(ctx, multiply(ctx, chosen, of_rows), target, weights),
                          mean_squared(ctx, multiply(ctx, chosen, of_mean), target, weights)};
  return weighted_sum(ctx, errors, std::array{scale, scale});
}

std::string Nested::finish(Context& ctx, const FinishInput& input) {
  const ModelConfig& config = input.model.config;
  const ListPlan plan = plan_of(config);
  if (plan.costs.lists == 0) return "nested: there is no list to fit the head for";
  std::vector<NormalEquations> equations(config_.lists.size(), NormalEquations(config.width));
  measure_lists(ctx, {input.model, config_.layer, plan.group, plan.costs.lists, input.cancel}, input.batches,
                [&](const ListLosses& losses) {
                  for (size_t k = 0; k < equations.size(); ++k)
                    equations[k].add(ctx.pool(), losses.x, losses.kl[k]);
                });
  std::vector<float> weight, offset, bias;
  std::string said;
  for (NormalEquations& one : equations) {
    const std::vector<double> w = one.solve(double{config_.ridge});
    weight.insert(weight.end(), w.begin(), w.end() - 1);
    bias.push_back(static_cast<float>(one.mean()));
    offset.push_back(static_cast<float>(one.mean() - w.back()));
    const double explained = one.variation() > 0 ? 1 - one.squared_error(w) / one.variation() : 1;
    said += fmt::format("{}{:.3f} ({:.0f} %)", said.empty() ? "" : ", ", one.mean(), 100 * explained);
  }
  copy_from_host(ctx, weight, weight_);
  copy_from_host(ctx, offset, offset_);
  copy_from_host(ctx, bias, bias_);
  return fmt::format("nested: mean KL of each list on {} rows, and what the head explains of it: {}",
                     equations.front().rows(), said);
}

}  // namespace

ListPlan plan_lists(const ModelConfig& config, std::span<const float> shares, std::span<const int32_t> order,
                    SkippedKv skipped_kv, int64_t cost_context) {
  ListPlan plan{{}, std::vector<uint8_t>(static_cast<size_t>(2 * config.layers), 0)};
  if (order.empty()) return plan;
  const double total = static_cast<double>(config.layers) *
                       (unit_madds(config, 0, cost_context) + unit_madds(config, 1, cost_context));
  plan.costs.lists = static_cast<int32_t>(shares.size());
  plan.costs.left[0] = 1;
  double left = total;
  size_t next = 0;
  for (size_t k = 1; k <= shares.size(); ++k) {
    for (; next < order.size() && left > double{shares[k - 1]} * total * (1 + 1e-6); ++next) {
      left -= avoided_madds_at(config, order[next], skipped_kv, cost_context);
      plan.group[static_cast<size_t>(order[next])] = static_cast<uint8_t>(k);
    }
    plan.costs.left[k] = static_cast<float>(left / total);
  }
  return plan;
}

std::unique_ptr<Method> make_nested() {
  return std::make_unique<Nested>();
}

}  // namespace fathom
