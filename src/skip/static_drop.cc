// Static dropping: the same units for every row of every text, known before the first token. Attention Drop
// (the attention units that change their input least), ShortGPT (the blocks that do) and the harm order (the
// units whose absence moves the output least per multiply-add). Nobody ever looks at a dropped unit's keys
// and values, so none are made.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/format.h"
#include "ops/rows/fill.h"
#include "ops/rows/reduce.h"
#include "ops/rows/row_confidence.h"
#include "skip/dense_walk.h"
#include "skip/harm_order.h"
#include "skip/methods.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr const char* kDropHelp =
    "the units that never run, 2 · layer (+ 1: the FFN); empty: chosen on text before training";

bool contains(std::span<const int32_t> list, int64_t value) {
  return std::find(list.begin(), list.end(), static_cast<int32_t>(value)) != list.end();
}

class StaticDrop : public Method {
 public:
  explicit StaticDrop(const char* name) : name_(name) {}
  SkippedKv skipped_kv(bool) const override { return SkippedKv::kHide; }
  MethodTraits traits() const override {
    return {.fixed_list = true, .opens_fully = false, .own_rule = "what is not on its list runs"};
  }
  RowSet decide(UnitCall& call, const Decision&) const override {
    return dropped(call) ? RowSet::none(call.rows()) : RowSet::all(call.rows());
  }

 protected:
  virtual bool dropped(UnitCall& call) const = 0;

  void check_units(const char* key, const std::vector<int32_t>& units, const ModelConfig& config) const {
    for (const int32_t unit : units) {
      if (unit < 0 || unit >= 2 * config.layers)
        fail("{}: {} must name units from 0 to {}, got {}", name_, key, 2 * config.layers - 1, unit);
    }
  }
  const char* name_;
};

// Drops `count` of the layers (0: a share of them), those of least influence: 1 − the mean cosine similarity
// of the input and the output.
struct InfluenceConfig {
  int64_t count = 0;
  float drop_share = 0.25f;
  std::vector<int32_t> drop;

  template <class V>
  void visit(V& v) {
    v("count", count, "layers to drop; 0: a share of them");
    v("drop_share", drop_share, "share of the layers to drop where the count is 0");
    v("drop", drop, kDropHelp);
  }
};

class InfluenceDrop final : public StaticDrop {
 public:
  InfluenceDrop(const char* name, int64_t units_each) : StaticDrop(name), units_each_(units_each) {}
  std::vector<Field> fields() override { return fields_of(config_); }

  void check(const ModelConfig& config) const override {
    check_units("drop", config_.drop, config);
    if (config_.count < 0 || config_.count > config.layers)
      fail("{}: count must be from 0 to the model's {} layers, got {}", name_, config.layers, config_.count);
    if (!(config_.drop_share >= 0 && config_.drop_share <= 1))
      fail("{}: drop_share must be between 0 and 1, got {}", name_, config_.drop_share);
  }

  void check_training(float) const override {
    const InfluenceConfig plain;
    const auto silent = [&](bool same, const char* key, const char* by) {
      if (!same) fail("{}: {} does nothing beside {}: leave it out", name_, key, by);
    };
    const bool listed = !config_.drop.empty();
    silent(!listed || config_.count == plain.count, "count", "drop");
    silent((!listed && config_.count == 0) || config_.drop_share == plain.drop_share, "drop_share",
           listed ? "drop" : "count");
  }

  void prepare(Context& ctx, const PrepareInput& input) override {
    if (!config_.drop.empty()) return;
    const int64_t layers = input.model.config.layers;
    const std::vector<double> influence =
        kept_or_measured(input.kept, units_each_ == 1 ? "influence of attention" : "influence of blocks",
                         static_cast<size_t>(layers), [&] { return layer_influence(ctx, input); });
    std::vector<int32_t> order;
    for (int32_t layer = 0; layer < layers; ++layer) {
      if (!contains(input.protect, layer)) order.push_back(layer);
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return influence[static_cast<size_t>(a)] < influence[static_cast<size_t>(b)];
    });
    const auto wanted =
        config_.count > 0 ? config_.count : std::lround(config_.drop_share * static_cast<float>(layers));
    if (static_cast<int64_t>(order.size()) > wanted) order.resize(static_cast<size_t>(wanted));
    for (const int32_t layer : order) {
      for (int32_t unit = 0; unit < units_each_; ++unit) config_.drop.push_back(2 * layer + unit);
    }
    std::sort(config_.drop.begin(), config_.drop.end());
  }
  std::vector<std::string> measured() const override { return {"drop"}; }

 protected:
  bool dropped(UnitCall& call) const override { return contains(config_.drop, call.input.index()); }

 private:
  // (L) 1 − the mean over rows of cos(in, out), of the attention unit or of the whole block.
  std::vector<double> layer_influence(Context& ctx, const PrepareInput& input) const {
    std::vector<double> sums(static_cast<size_t>(input.model.config.layers), 0.0);
    int64_t rows = 0;
    for (const Batch& batch : input.batches) {
      const ArenaScope pass(ctx);
      const DenseWalk walk(ctx, input.model, batch);
      Tensor h = walk.start();
      for (int64_t layer = 0; layer < input.model.config.layers; ++layer) {
        if (input.cancel && input.cancel->load(std::memory_order_relaxed)) throw PrepareCancelled{};
        const ArenaScope scope(ctx);
        const Tensor before = walk.copy(h);
        float mean = 0;
        for (int64_t unit = 0; unit < 2; ++unit) {
          walk.run(2 * layer + unit, h);
          if (unit + 1 == units_each_)
            copy_to_host(ctx, mean_rows(ctx, cosine_rows(ctx, before, h)), std::span(&mean, 1));
        }
        sums[static_cast<size_t>(layer)] += (1.0 - double{mean}) * static_cast<double>(batch.rows());
      }
      rows += batch.rows();
    }
    if (rows == 0) fail("{} needs text to choose what to drop, and got none", name_);
    for (double& sum : sums) sum /= static_cast<double>(rows);
    return sums;
  }

  InfluenceConfig config_;
  int64_t units_each_;  // 1: attention alone; 2: the block
};

struct HarmOrderConfig {
  float kept = 0.8f;
  OrderSearch search = OrderSearch::kOnce;
  float greedy_until = 0.5f;
  int64_t cost_context = 1024;
  SkippedKv counted_kv = SkippedKv::kHide;
  std::vector<int32_t> drop, order;

  template <class V>
  void visit(V& v) {
    v("kept", kept, "units are dropped until at most this share of the block multiply-adds is left");
    v("search", search,
      "how the order is found: once, each unit dropped alone; greedily, measured again after each that goes");
    v("greedy_until", greedy_until,
      "greedily: until this share of the block multiply-adds is left, or kept where that is less; the rest "
      "follows as last measured");
    v("cost_context", cost_context, "tokens of context at which a unit's multiply-adds are counted");
    v("counted_kv", counted_kv,
      "the rule for skipped keys and values at which `kept` counts cost: hide, as a list runs; project or "
      "copy, to compare with routers");
    v("drop", drop, "the units that never run, 2 · layer (+ 1: the FFN); empty: by the order");
    v("order", order, "all units, the first to drop first; empty: found on text before training");
  }
};

// Of each unit, the share of the multiply-adds that is left when its turn to go comes; −∞: it never goes.
struct HarmOrderState final : MethodState {
  std::vector<double> before;  // (2L)
};

// Units in harm order. Training drops as many as the step's share asks for.
class HarmOrderDrop final : public StaticDrop {
 public:
  HarmOrderDrop() : StaticDrop("harm_order") {}
  MethodTraits traits() const override {
    MethodTraits traits = StaticDrop::traits();
    traits.reads_share = config_.drop.empty();
    return traits;
  }
  std::vector<Field> fields() override { return fields_of(config_); }

  void check(const ModelConfig& config) const override {
    check_units("drop", config_.drop, config);
    check_units("order", config_.order, config);
    if (!(config_.kept >= 0 && config_.kept <= 1))
      fail("harm_order: kept must be between 0 and 1, got {}", config_.kept);
    if (!(config_.greedy_until >= 0 && config_.greedy_until <= 1))
      fail("harm_order: greedy_until must be between 0 and 1, got {}", config_.greedy_until);
    if (config_.cost_context < 1)
      fail("harm_order: cost_context must be at least 1, got {}", config_.cost_context);
  }

  void check_training(float share) const override {
    const HarmOrderConfig plain;
    const auto beside_drop = [&](bool same, const char* key) {
      if (!config_.drop.empty() && !same) fail("harm_order: {} does nothing beside drop: leave it out", key);
    };
    beside_drop(config_.kept == plain.kept, "kept");
    beside_drop(config_.search == plain.search, "search");
    beside_drop(config_.order.empty(), "order");
    if (config_.search == OrderSearch::kOnce && config_.greedy_until != HarmOrderConfig().greedy_until)
      fail(
          "harm_order: greedy_until ({:g}) is for search: greedily, and does nothing with search: once: "
          "leave "
          "it out",
          config_.greedy_until);
    constexpr float kSame = 1e-6f;
    if (config_.drop.empty() && std::abs(share - config_.kept) > kSame)
      fail(
          "harm_order: every step would train with a share of {:g} (share_end), and the finished list keeps "
          "{:g} (kept): set method.share_end and method.kept to the same, or method.share to falling or "
          "sampled",
          share, config_.kept);
  }

  void prepare(Context& ctx, const PrepareInput& input) override {
    if (!config_.drop.empty() || !config_.order.empty()) return;
    PrepareInput counted = input;
    counted.skipped_kv = config_.counted_kv;
    const double until = double{std::min(config_.greedy_until, config_.kept)};
    for (const int64_t unit : found_order(ctx, counted, config_.search, until, config_.cost_context))
      config_.order.push_back(static_cast<int32_t>(unit));
  }
  std::vector<std::string> measured() const override { return {"order"}; }

  UnitList list(const ModelConfig& config) const override {
    if (!config_.drop.empty()) return {};
    return {config_.order, shares_left(config, config_.order, config_.counted_kv, config_.cost_context)};
  }
  std::unique_ptr<MethodState> make_state(Context&, const ModelConfig& config, int64_t) const override {
    auto state = std::make_unique<HarmOrderState>();
    state->before.assign(static_cast<size_t>(2 * config.layers), -INFINITY);
    for (const int32_t unit : config_.drop) state->before[static_cast<size_t>(unit)] = INFINITY;
    const UnitList all = list(config);
    for (size_t i = 0; i < all.order.size(); ++i) {
      double& before = state->before[static_cast<size_t>(all.order[i])];
      before = std::max(before, i == 0 ? 1.0 : all.left[i - 1]);
    }
    return state;
  }
  // At a budget a sequence has a threshold for each unit; others follow `kept`. There are no scores to
  // calibrate.
  RowSet decide(UnitCall& call, const Decision& decision) const override {
    const SkipState& state = call.state;
    if (!state.thresholds.any() || state.training || state.pass.collect || state.pass.fit)
      return StaticDrop::decide(call, decision);
    Tensor score = Tensor::empty(call.ctx, DType::kF32, {call.rows()});
    fill(call.ctx, score, 0.0f);
    return above_threshold(call, score, dropped(call) ? INFINITY : -INFINITY);
  }

 protected:
  bool dropped(UnitCall& call) const override {
    const double share = double{call.state.training ? call.state.training.share : config_.kept};
    return goes_at(share,
                   call.state.of<HarmOrderState>(*this).before[static_cast<size_t>(call.input.index())]);
  }

 private:
  HarmOrderConfig config_;
};

}  // namespace

std::unique_ptr<Method> make_attention_drop() {
  return std::make_unique<InfluenceDrop>("attention_drop", 1);
}

std::unique_ptr<Method> make_short_gpt() {
  return std::make_unique<InfluenceDrop>("short_gpt", 2);
}

std::unique_ptr<Method> make_harm_order() {
  return std::make_unique<HarmOrderDrop>();
}

}  // namespace fathom
