// Priced routers, our own method. Every unit has a value score s = σ(w·x + b) per row and a known cost c; at
// a budget the unit runs where s > λ·c. One price λ for the whole network: layers, units and rows compete for
// the same multiply-adds.
#include "skip/priced.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/format.h"
#include "model/transformer.h"
#include "ops/linear/row_sums.h"
#include "ops/linear/score_head.h"
#include "ops/rows/assign.h"
#include "ops/rows/concatenate.h"
#include "ops/rows/divide.h"
#include "ops/rows/fill.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/quantile.h"
#include "ops/rows/reduce.h"
#include "ops/rows/scale_rows.h"
#include "ops/rows/select_rows.h"
#include "skip/harm_order.h"
#include "skip/methods.h"
#include "tensor/arena.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

constexpr float kUnseen = -1.0f;  // a price that training has not met yet
// Thresholds stand this much above their price, relatively: the score that set the price is at it, not above,
// whatever the rounding of s / c and λ · c.
constexpr float kAbovePrice = 1.0f + 1e-6f;
// Where the harm order starts: s/c of the least and the most harmful unit, over the largest that a score
// below 1 allows. In between by the logarithm of the harm, outliers cut; a little by the rank alone, so that
// no two units are worth the same.
constexpr double kLeastValue = 0.3, kMostValue = 0.7;
constexpr double kOutliers = 0.02, kByRank = 0.1;
constexpr double kHarmless = 1e-4;  // of the largest harm: nobody is worth less

struct PricedConfig {
  float price_decay = 0.5f;
  int64_t cost_context = 1024;
  bool hold_budget = true, detached = true;

  template <class V>
  void visit(V& v) {
    v("price_decay", price_decay, "of the moving average that follows the price of each share in training");
    v("cost_context", cost_context, "tokens of context at which a unit's multiply-adds are counted");
    v("hold_budget", hold_budget, "remove the part of the gradient that would only change the budget");
    v("detached", detached, "routers read the state and do not shape it: their gradient ends there");
  }
};

struct PricedRouter {
  Tensor weight, bias;  // (1, width), (1)
};

// How far a router's parameters move the cost: see Priced::adjust.
struct Pull {
  Tensor weight, bias;  // f32 (1, width), (1)
};

struct PricedState final : MethodState {
  ModelConfig config;
  std::vector<uint8_t> asked;  // (2L): the unit may skip
  std::vector<Pull> pull;      // (2L)
};

// The recorded scores of the units that may skip, as values per cost with the costs as weights, and the share
// of their cost that may run so that `share` of the block multiply-adds do.
struct Market {
  std::vector<Tensor> scores;       // f32 (rows) each
  std::vector<float> costs;         // of a row of each
  double total = 0, avoidable = 0;  // multiply-adds

  void add_unit(const ModelConfig& config, int64_t unit, int64_t rows, int64_t context) {
    total += static_cast<double>(rows) * unit_madds(config, unit, context);
  }
  void add_skippable(const ModelConfig& config, int64_t unit, const Tensor& score, SkippedKv rule,
                     int64_t context) {
    scores.push_back(detach(score));
    costs.push_back(static_cast<float>(unit_cost(config, unit, rule, context)));
    avoidable += static_cast<double>(score.dim(0)) * avoided_madds_at(config, unit, rule, context);
  }
  // What must run in any case counts: protected units, keys and values that are projected all the same.
  // Returns the prices of the shares 0.05, 0.10 … 0.95, f32 (19).
  Tensor prices(Context& ctx) const;
};

float share_of_point(int64_t point) {
  return static_cast<float>(point + 1) / static_cast<float>(kPricePoints + 1);
}

Tensor Market::prices(Context& ctx) const {
  const double fixed = total - avoidable;
  std::array<float, kPricePoints> rest{};
  for (size_t i = 0; i < rest.size(); ++i) {
    const double share = share_of_point(static_cast<int64_t>(i));
    rest[i] = static_cast<float>(std::clamp((share * total - fixed) / avoidable, 0.0, 1.0));
  }
  const Tensor values = concatenate(ctx, scores);
  Tensor weights = Tensor::empty(ctx, DType::kF32, values.shape());
  int64_t begin = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    Tensor place = weights.rows(begin, scores[i].dim(0));
    fill(ctx, place, costs[i]);
    begin += scores[i].dim(0);
  }
  return weighted_quantile(ctx, divide(ctx, values, weights), weights, rest);
}

class Priced final : public Method {
 public:
  Priced() { prices_.fill(kUnseen); }
  std::vector<Field> fields() override { return fields_of(config_); }
  void check(const ModelConfig&) const override {
    if (!(config_.price_decay >= 0 && config_.price_decay < 1))
      fail("priced: price_decay must be at least 0 and below 1, got {}", config_.price_decay);
    if (config_.cost_context < 1)
      fail("priced: cost_context must be at least 1, got {}", config_.cost_context);
  }

  std::vector<MethodParameter> parameters(const ModelConfig& config) override {
    routers_.resize(static_cast<size_t>(2 * config.layers));
    std::vector<MethodParameter> all;
    for (size_t i = 0; i < routers_.size(); ++i) {
      const std::string prefix = fmt::format("layers.{}.{}.router.", i / 2, i % 2 ? "mlp" : "attention");
      all.push_back({prefix + "weight", &routers_[i].weight, {1, config.width}});
      all.push_back({prefix + "bias", &routers_[i].bias, {1}, 0, 0, false});
    }
    return all;
  }
  std::unique_ptr<MethodState> make_state(Context&, const ModelConfig& config, int64_t) const override {
    auto state = std::make_unique<PricedState>();
    state->config = config;
    state->asked.resize(static_cast<size_t>(2 * config.layers));
    state->pull.resize(state->asked.size());
    return state;
  }
  MethodTraits traits() const override {
    return {.straight_through = true, .freezes_backbone = true, .starts_by_harm = true, .reads_share = true};
  }
  void prepare(Context& ctx, const PrepareInput& input) override;
  std::vector<float*> controllers() override {
    std::vector<float*> all;
    for (float& price : prices_) all.push_back(&price);
    return all;
  }

  void begin(Context&, const Model&, const Batch&, SkipState& state) const override {
    std::vector<uint8_t>& asked = state.of<PricedState>(*this).asked;
    std::fill(asked.begin(), asked.end(), uint8_t{0});
  }
  float threshold_weight(const ModelConfig& config, int64_t unit, SkippedKv skipped_kv) const override {
    return static_cast<float>(unit_cost(config, unit, skipped_kv, config_.cost_context));
  }
  void score(UnitCall& call, Decision& decision) const override {
    const UnitInput& input = call.input;
    const PricedRouter& router = routers_[static_cast<size_t>(input.index())];
    const bool shared = shares_input(call, decision);
    Tensor x = router_input(call, shared);
    if (shared || !call.ctx.tape()) decision.input = x;
    if (shared && config_.detached) x = detach(x);
    const bool pulls = call.state.training && config_.hold_budget;
    if (pulls && !x.gradient()) {
      const ScoreHead head = score_head(call.ctx, x, router.weight, router.bias, cost_of(call, decision));
      decision.score = head.score;
      pull_of(call) = {head.weight_pull, head.bias_pull};
      return;
    }
    decision.score = apply(call.ctx, Unary::kSigmoid, scalar_head(call.ctx, x, router.weight, router.bias));
    if (pulls) keep_pull(call, x, decision);
  }
  RowSet decide(UnitCall& call, const Decision& decision) const override;
  void observe(Context& ctx, SkipState& state, int64_t part) override;
  void adjust(Context& ctx, std::span<const Tensor> gradients) override;
  std::vector<Tensor> figures(Context& ctx) override;
  void after_step(std::span<const float> figures) override;

 private:
  // Keys and values of every row are made from what attention's router reads: in training on a GPU that is
  // one norm.
  static bool shares_input(const UnitCall& call, const Decision& decision) {
    const UnitInput& input = call.input;
    const Context& ctx = call.ctx;
    return input.unit == Unit::kAttention && decision.skipped_kv == SkippedKv::kProject && ctx.tape() &&
           ctx.tape()->recording() && input.model.config.norm_placement != NormPlacement::kAfter &&
           activation_type(ctx, input.model, input.layer, input.unit) == DType::kBF16;
  }
  // What a router reads. Detached, nothing that made it learns from the router: the residual stream and the
  // unit's norm. shared: the branch reads it too, and learns.
  Tensor router_input(UnitCall& call, bool shared) const {
    Context& ctx = call.ctx;
    const UnitInput& input = call.input;
    const RecordingScope scope(ctx, ctx.tape() && ctx.tape()->recording() && (shared || !config_.detached));
    return unit_input(ctx, input.model, input.layer, input.unit, input.h,
                      activation_type(ctx, input.model, input.layer, input.unit));
  }
  float cost_of(const UnitCall& call, const Decision& decision) const {
    const UnitInput& input = call.input;
    return static_cast<float>(
        unit_cost(input.model.config, input.index(), decision.skipped_kv, config_.cost_context));
  }
  Pull& pull_of(const UnitCall& call) const {
    return call.state.of<PricedState>(*this).pull[static_cast<size_t>(call.input.index())];
  }
  void keep_pull(UnitCall& call, const Tensor& x, const Decision& decision) const;
  float price_now(float share) const {
    std::array<float*, kPricePoints> prices{};
    for (size_t i = 0; i < prices.size(); ++i) prices[i] = const_cast<float*>(&prices_[i]);  // only read
    return price_for(prices, share);
  }

  PricedConfig config_;
  std::vector<PricedRouter> routers_;
  std::array<float, kPricePoints> prices_{};  // of share_of_point(i)
  Market market_;                             // of the step so far
  std::vector<Pull> pull_;                    // and the sum of its passes' pulls
};

RowSet Priced::decide(UnitCall& call, const Decision& decision) const {
  const UnitInput& input = call.input;
  call.state.of<PricedState>(*this).asked[static_cast<size_t>(input.index())] = 1;
  if (!call.state.training) return above_threshold(call, decision.score, -INFINITY);
  if (call.state.training.share >= 1) return RowSet::all(call.rows());
  const double cost = unit_cost(input.model.config, input.index(), decision.skipped_kv, config_.cost_context);
  const float threshold = price_now(call.state.training.share) * kAbovePrice * static_cast<float>(cost);
  return select_rows(call.ctx, decision.score, Compare::kAbove, scalar(call.ctx, threshold));
}

// The gradient of Σ c·s over the rows, to the router's weight and bias. x: (rows, width)
void Priced::keep_pull(UnitCall& call, const Tensor& x, const Decision& decision) const {
  Context& ctx = call.ctx;
  const RecordingScope quiet(ctx, false);
  const Tensor& s = decision.score;
  const Tensor slope =
      multiply(ctx, affine(ctx, s, cost_of(call, decision), 0.0f), affine(ctx, s, -1.0f, 1.0f))
          .reshape({x.dim(0), 1});  // c · s(1 − s)
  pull_of(call) = {transposed_product(ctx, slope, x), sum_rows(ctx, slope)};
}

void Priced::observe(Context& ctx, SkipState& state, int64_t part) {
  if (part == 0) {
    market_ = {};
    pull_.assign(routers_.size(), {});
  }
  const PricedState& mine = state.of<PricedState>(*this);
  for (const UnitRecord& record : state.pass.units) {
    const Tensor& score = record.decision.score;
    if (!score) continue;
    market_.add_unit(mine.config, record.unit, score.dim(0), config_.cost_context);
    if (!mine.asked[static_cast<size_t>(record.unit)]) continue;
    market_.add_skippable(mine.config, record.unit, score, record.decision.skipped_kv, config_.cost_context);
    const Pull& pull = mine.pull[static_cast<size_t>(record.unit)];
    Pull& sum = pull_[static_cast<size_t>(record.unit)];
    if (!pull.weight) continue;
    sum = sum.weight ? Pull{add(ctx, sum.weight, pull.weight), add(ctx, sum.bias, pull.bias)} : pull;
  }
}

// Running more always helps, so the loss pulls every score up, and the price takes it back: a step spent on
// nothing. Along the gradient of the cost Σ c·s the budget is all that changes, so as much of that is taken
// out as makes a common shift of all biases worth nothing.
void Priced::adjust(Context& ctx, std::span<const Tensor> gradients) {
  std::vector<Tensor> wanted, pulled;  // of the biases
  for (size_t unit = 0; unit < pull_.size(); ++unit) {
    if (!pull_[unit].weight) continue;
    wanted.push_back(gradients[2 * unit + 1]);
    pulled.push_back(pull_[unit].bias);
  }
  if (wanted.empty()) return;
  const ArenaScope scope(ctx);
  const std::vector<float> ones(wanted.size(), 1.0f);
  const Tensor idle = divide(ctx, weighted_sum(ctx, wanted, ones), weighted_sum(ctx, pulled, ones));
  const Tensor taken_out = affine(ctx, idle, -1.0f, 0.0f);
  const auto take_out = [&](Tensor gradient, const Tensor& pull) {
    const Tensor less = scale_rows(ctx, pull.reshape({1, pull.numel()}), taken_out);
    assign(ctx, gradient, add(ctx, gradient, less.reshape(gradient.shape())));
  };
  for (size_t unit = 0; unit < pull_.size(); ++unit) {
    if (!pull_[unit].weight) continue;
    take_out(gradients[2 * unit], pull_[unit].weight);
    take_out(gradients[2 * unit + 1], pull_[unit].bias);
  }
}

std::vector<Tensor> Priced::figures(Context& ctx) {
  if (market_.scores.empty()) return {};
  const Tensor prices = market_.prices(ctx);
  std::vector<Tensor> each;
  for (int64_t i = 0; i < prices.numel(); ++i) each.push_back(prices.rows(i, 1));
  return each;
}

// The prices move towards those that would have kept exactly their shares of this step.
void Priced::after_step(std::span<const float> now) {
  for (size_t i = 0; i < now.size(); ++i) {
    float& tracked = prices_[i];
    tracked = tracked == kUnseen ? now[i] : now[i] + config_.price_decay * (tracked - now[i]);
  }
}

// Between 0 and 1, rising with the rank. rate: of each unit, order: least first
std::vector<double> places_of(std::span<const double> rate, std::span<const int64_t> order) {
  std::vector<double> logs;
  for (const int64_t unit : order) {
    const double one = rate[static_cast<size_t>(unit)];
    if (std::isfinite(one)) logs.push_back(one);
  }
  const double least = logs.empty() ? 0 : std::max(kHarmless * logs.back(), 1e-300);
  for (double& one : logs) one = std::log(std::max(one, least));
  std::vector<double> places;
  const double last = std::max(1.0, static_cast<double>(order.size()) - 1);
  const auto cut = static_cast<size_t>(kOutliers * static_cast<double>(logs.size()) + 0.5);
  for (size_t rank = 0; rank < order.size(); ++rank) {
    double by_harm = 1;
    if (rank < logs.size()) {
      const double low = logs[cut], high = logs[logs.size() - 1 - cut];
      by_harm = high > low ? std::clamp((logs[rank] - low) / (high - low), 0.0, 1.0) : 0.0;
    }
    places.push_back((1 - kByRank) * by_harm + kByRank * static_cast<double>(rank) / last);
  }
  return places;
}

// Values per cost in the harm order: with zero weights every row of a unit has that value, so a price drops
// units one after another, the least harmful first.
void Priced::prepare(Context& ctx, const PrepareInput& input) {
  if (!input.harm_order) return;
  const ModelConfig& config = input.model.config;
  const std::vector<double> rate = harm_rate(ctx, input, config_.cost_context);
  const std::vector<int64_t> order = order_of(rate);
  const std::vector<double> places = places_of(rate, order);
  const auto cost = [&](int64_t unit) {
    return unit_cost(config, unit, input.skipped_kv, config_.cost_context);
  };
  const double dearest = std::max({cost(0), cost(1), cost(2 * config.layers - 2)});
  Market market;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const int64_t unit = order[rank];
    const double score = (kLeastValue + (kMostValue - kLeastValue) * places[rank]) * cost(unit) / dearest;
    const auto logit = static_cast<float>(std::log(score / (1.0 - score)));
    copy_from_host(ctx, std::span(&logit, 1), routers_[static_cast<size_t>(unit)].bias);
    market.add_unit(config, unit, 1, config_.cost_context);
    const auto layer = static_cast<int32_t>(unit / 2);
    if (std::find(input.protect.begin(), input.protect.end(), layer) != input.protect.end()) continue;
    market.add_skippable(config, unit, scalar(ctx, static_cast<float>(score)), input.skipped_kv,
                         config_.cost_context);
  }
  if (!market.scores.empty()) copy_to_host(ctx, market.prices(ctx), prices_);
}

}  // namespace

double unit_cost(const ModelConfig& config, int64_t unit, SkippedKv skipped_kv, int64_t cost_context) {
  const double mean = (unit_madds(config, 0, cost_context) + unit_madds(config, 1, cost_context)) / 2;
  return avoided_madds_at(config, unit, skipped_kv, cost_context) / mean;
}

float price_for(std::span<float* const> prices, float share) {
  if (share >= 1) return 0;
  float below_share = -1, below_price = 0, above_share = 1, above_price = 0;
  for (int64_t point = 0; point < kPricePoints; ++point) {
    const float at = share_of_point(point), price = *prices[static_cast<size_t>(point)];
    if (price == kUnseen) continue;
    if (at <= share + 1e-5f) {
      below_share = at;
      below_price = price;
    } else {
      above_share = at;
      above_price = price;
      break;
    }
  }
  if (below_share < 0) return above_price;
  const float place = std::max(0.0f, (share - below_share) / (above_share - below_share));
  return below_price + place * (above_price - below_price);
}

std::vector<float> price_thresholds(const ModelConfig& config, float price, SkippedKv skipped_kv,
                                    int64_t cost_context) {
  std::vector<float> thresholds;
  for (int64_t unit = 0; unit < 2 * config.layers; ++unit) {
    const auto cost = static_cast<float>(unit_cost(config, unit, skipped_kv, cost_context));
    thresholds.push_back(price * kAbovePrice * cost);
  }
  return thresholds;
}

std::unique_ptr<Method> make_priced() {
  return std::make_unique<Priced>();
}

}  // namespace fathom
