#include "infer/trained_rule.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "infer/stoppable_policy.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Counts the rows that each unit runs.
class CountingPolicy final : public ForwardingPolicy {
 public:
  CountingPolicy(const SkipPolicy& inner, std::vector<int64_t>& ran) : ForwardingPolicy(inner), ran_(ran) {}

  Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const override {
    Decision decision = ForwardingPolicy::decide(ctx, input, state);
    int32_t count = decision.kept.is_all() ? static_cast<int32_t>(decision.kept.capacity()) : 0;
    if (decision.kept.count()) copy_to_host(ctx, decision.kept.count(), std::span(&count, 1));
    ran_[static_cast<size_t>(input.index())] += count;
    return decision;
  }

 private:
  std::vector<int64_t>& ran_;
};

// Returns (2L): the share of the rows that skip each unit in a training pass.
std::vector<float> skipped_in_training(Context& ctx, const Model& model, const MethodPolicy& policy,
                                       std::vector<BatchRow> rows, const TrainingStep& step,
                                       const std::atomic<bool>* cancel) {
  const ArenaScope scope(ctx);
  for (BatchRow& row : rows)
    row.wants_logits = false;  // decisions need none, and they are the largest tensor
  const Batch batch = make_batch(ctx, rows);
  const std::unique_ptr<PolicyState> base = policy.make_state(ctx, model.config, batch.sequences);
  static_cast<SkipState&>(*base).training = step;
  std::vector<int64_t> ran(static_cast<size_t>(2 * model.config.layers));
  const CountingPolicy counting(policy, ran);
  forward(ctx, model, batch, FreshPass{}, StoppablePolicy(counting, cancel), *base);
  std::vector<float> skipped;
  for (const int64_t count : ran)
    skipped.push_back(1 - static_cast<float>(count) / static_cast<float>(rows.size()));
  return skipped;
}

float share_from(const OrderedJson& json, const char* key, const std::string& where) {
  if (!json.contains(key) || !json[key].is_number()) fail("{}: 'trained' needs a number '{}'", where, key);
  const auto value = json[key].get<float>();
  if (!(value >= 0 && value <= 1)) fail("{}: '{}' must be from 0 to 1, got {:g}", where, key, value);
  return value;
}

}  // namespace

TrainedRule find_trained_rule(Context& ctx, const Model& model, const MethodPolicy& policy,
                              const std::vector<BatchRow>& rows, const TrainingStep& step,
                              const std::atomic<bool>* cancel) {
  TrainedRule rule;
  std::vector<float> skipped = skipped_in_training(ctx, model, policy, rows, step, cancel);
  for (const float share : skipped) rule.trained += share / static_cast<float>(skipped.size());
  const CalibrationRunner runner(ctx, model, policy, {.cancel = cancel});
  const CalibrationText text{rows};
  if (!policy.keeps_density()) {
    const std::vector<float> own(skipped.size(), NAN);
    rule.served = 1 - runner.run(text, own).ran;
    return rule;
  }
  ThresholdFit fit;
  fit.shares = std::move(skipped);
  rule.served = 1 - runner.fit(text, fit).ran;
  rule.thresholds = std::move(fit.thresholds);
  return rule;
}

TrainedRule trained_rule_from_json(const std::string& text, int64_t units, const std::string& where) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, false);
  if (!json.is_object()) fail("{}: 'trained' must be an object", where);
  TrainedRule rule{share_from(json, "skip_ratio", where), share_from(json, "served", where), {}};
  const OrderedJson list = json.value("thresholds", OrderedJson());
  if (!list.is_array() || static_cast<int64_t>(list.size()) != units)
    fail("{}: 'trained' needs {} thresholds, got {}", where, units,
         list.is_array() ? std::to_string(list.size()) : "none");
  for (const OrderedJson& value : list) {
    if (!value.is_number() && !value.is_null()) fail("{}: a threshold must be a number or null", where);
    rule.thresholds.push_back(value.is_null() ? -INFINITY : value.get<float>());
    if (!value.is_null() && !std::isfinite(rule.thresholds.back()))
      fail("{}: a threshold must be a finite number, got {}", where, printable(value.dump()));
  }
  return rule;
}

std::string to_json(const TrainedRule& rule) {
  OrderedJson json{
      {"skip_ratio", rule.trained}, {"served", rule.served}, {"thresholds", OrderedJson::array()}};
  for (const float value : rule.thresholds)
    json["thresholds"].push_back(std::isfinite(value) ? OrderedJson(value) : OrderedJson());
  return json.dump();
}

}  // namespace fathom
