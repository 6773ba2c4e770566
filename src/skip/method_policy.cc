#include "skip/method_policy.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json_depth.h"
#include "base/rng.h"
#include "ops/loss/output_loss.h"
#include "ops/rows/add_rows.h"
#include "ops/rows/assign.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/mask_rows.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/reduce.h"
#include "skip/methods.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;
constexpr uint32_t kShareStream = 0x5ba7e, kInitStream = 0x1417;

SkipState& own(PolicyState& state) {
  return static_cast<SkipState&>(state);
}

std::string name_in(const Json& json, const char* key, const std::string& where) {
  if (!json.contains(key)) return "";
  if (!json[key].is_string())
    fail("{}: '{}' must be the name of a method, got {}", where, key, printable(json[key].dump()));
  return json[key].get<std::string>();
}

}  // namespace

std::span<const std::string_view> enum_names(KvRule) {
  static constexpr std::array<std::string_view, 4> kNames{"method", "project", "copy", "hide"};
  return kNames;
}
std::span<const std::string_view> enum_names(Objective) {
  static constexpr std::array<std::string_view, 2> kNames{"ce", "distill"};
  return kNames;
}
std::span<const std::string_view> enum_names(ShareRule) {
  static constexpr std::array<std::string_view, 3> kNames{"fixed", "falling", "sampled"};
  return kNames;
}
std::span<const std::string_view> enum_names(StartRule) {
  static constexpr std::array<std::string_view, 2> kNames{"paper", "harm_order"};
  return kNames;
}
std::span<const std::string_view> enum_names(SkippedBranch) {
  static constexpr std::array<std::string_view, 2> kNames{"compute", "drop"};
  return kNames;
}

std::unique_ptr<MethodPolicy> MethodPolicy::from_json(const std::string& json_text,
                                                      const std::string& where) {
  check_json_depth(json_text, where);
  Json json = Json::parse(json_text, nullptr, false, true);
  if (!json.is_object()) fail("{}: expected a JSON object that describes a method", where);
  std::unique_ptr<MethodPolicy> policy(new MethodPolicy);
  policy->name_ = name_in(json, "name", where);
  if (policy->name_.empty()) fail("{}: 'name' must name a method", where);
  json.erase("name");
  policy->parts_.push_back({policy->name_, make_method(policy->name_)});
  for (const char* question : {"score", "decide", "blend", "objective_of"}) {
    const std::string other = name_in(json, question, where);
    const auto known = [&](const Part& part) { return part.name == other; };
    if (!other.empty() && std::none_of(policy->parts_.begin(), policy->parts_.end(), known))
      policy->parts_.push_back({other, make_method(other)});
  }
  const MethodTraits traits = policy->parts_[0].method->traits();
  policy->options_.frozen_backbone = traits.freezes_backbone;
  if (traits.distills) policy->options_.objective = Objective::kDistill;
  fields_from_json(policy->fields(), json.dump(), where);
  const SkipOptions& options = policy->options_;
  policy->score_ = &policy->part(options.score);
  policy->decide_ = &policy->part(options.decide);
  policy->blend_ = &policy->part(options.blend);
  policy->objective_ = &policy->part(options.objective_of);
  for (const float share : {options.share_start, options.share_end}) {
    if (!(share >= 0 && share <= 1)) fail("{}: a kept share must be between 0 and 1, got {}", where, share);
  }
  return policy;
}

std::string MethodPolicy::to_json() const {
  Json json{{"name", name_}};
  auto& self = const_cast<MethodPolicy&>(*this);  // fields point into the config, which is only read here
  json.update(Json::parse(fields_to_json(self.fields())));
  return json.dump(2);
}

std::vector<Field> MethodPolicy::fields() {
  std::vector<Field> all = fields_of(options_);
  for (size_t i = 0; i < parts_.size(); ++i) {
    for (Field field : parts_[i].method->fields()) {
      if (i > 0) field.put_under(parts_[i].name);
      all.push_back(std::move(field));
    }
  }
  return all;
}

Method& MethodPolicy::part(const std::string& wanted) const {
  for (const Part& candidate : parts_) {
    if (candidate.name == wanted) return *candidate.method;
  }
  return *parts_[0].method;
}

void MethodPolicy::check(const ModelConfig& config) const {
  for (const Part& each : parts_) each.method->check(config);
  for (const int32_t layer : options_.protect) {
    if (layer < 0 || layer >= config.layers)
      fail("{}: protect must name layers from 0 to {}, got {}", name_, config.layers - 1, layer);
  }
  for (const bool training : {false, true}) {
    const KvRule rule = kv_rule(training);
    if (decide_->traits().fixed_list && (rule == KvRule::kProject || rule == KvRule::kCopy))
      fail("{}: {} must be hide or left out, got {}: a unit that every row skips makes no keys and values",
           name_, training ? "train_skipped_kv" : "skipped_kv", enum_names(rule)[static_cast<size_t>(rule)]);
  }
  bool last = false;  // only units of protected layers may come now
  for (const int32_t unit : decide_->list(config).order) {
    const bool stays = is_protected(unit / 2);
    if (last && !stays)
      fail("{}: order must name the units of protected layers last, got {} after one of them", name_, unit);
    last = stays;
  }
  for (const Part& each : parts_) {
    const bool scores = each.method.get() == score_, blends = each.method.get() == blend_;
    if (each.method->traits().gates_input && scores != blends)
      fail(
          "{}: {} with placement: before scores and blends by one gate, so no other method can score or "
          "blend",
          name_, each.name);
  }
}

void MethodPolicy::check_training(bool learns) const {
  const SkipOptions plain;
  const std::string_view rule = enum_names(options_.share)[static_cast<size_t>(options_.share)];
  const auto silent = [&](bool same, const char* key, const char* of) {
    if (!same)
      fail("method.{} is for share: {}, and does nothing with share: {}: leave it out, or set method.share",
           key, of, rule);
  };
  silent(options_.share == ShareRule::kFalling || options_.share_start == plain.share_start, "share_start",
         "falling");
  silent(options_.share == ShareRule::kSampled || options_.share_grid == plain.share_grid, "share_grid",
         "sampled");
  if (options_.share == ShareRule::kSampled && !options_.share_grid.empty() &&
      options_.share_end != plain.share_end)
    fail(
        "method.share_end ({:g}) does nothing with share: sampled, which draws from share_grid: leave it "
        "out, "
        "or set method.share",
        options_.share_end);
  const auto any = [&](bool MethodTraits::*trait) {
    return std::any_of(parts_.begin(), parts_.end(),
                       [&](const Part& each) { return each.method->traits().*trait; });
  };
  const auto unread = [&](bool same, const char* key) {
    if (!same) fail("method.{} does nothing with {}, as it is configured: leave it out", key, name_);
  };
  unread(options_.init == plain.init || any(&MethodTraits::starts_by_harm), "init");
  unread(options_.st_skipped == plain.st_skipped || decide_->traits().straight_through, "st_skipped");
  if (!any(&MethodTraits::reads_share)) {
    unread(options_.share == plain.share, "share");
    unread(options_.share_end == plain.share_end, "share_end");
  }
  const bool copies = decide_->skipped_kv(false) == SkippedKv::kCopyFromBelow;  // GateSkip's own option
  if (copies && kv_rule(false) != KvRule::kMethod)
    fail("method.copy_kv does nothing beside method.skipped_kv: leave one of them out");
  const bool fixed = options_.share == ShareRule::kFixed && learns;
  for (const Part& each : parts_) each.method->check_training(fixed ? options_.share_end : NAN);
}

void MethodPolicy::start_from_pretrained() {
  for (const Part& each : parts_) each.method->start_from_pretrained();
}

std::vector<MethodParameter> MethodPolicy::describe(const ModelConfig& config) const {
  std::vector<MethodParameter> all;
  for (const Part& each : parts_) {
    for (MethodParameter& parameter : each.method->parameters(config)) {
      parameter.name = each.name + "." + parameter.name;
      all.push_back(std::move(parameter));
    }
  }
  return all;
}

std::vector<MethodParameter> MethodPolicy::parameters(const ModelConfig& config) {
  std::vector<MethodParameter> all = describe(config);
  for (const MethodParameter& parameter : all) {
    if (!parameter.tensor->defined())
      *parameter.tensor = Tensor::owned(Device::kCpu, DType::kF32, parameter.shape);
  }
  return all;
}

void MethodPolicy::initialise(const ModelConfig& config, uint64_t seed) {
  uint32_t index = 0;
  for (const MethodParameter& parameter : parameters(config)) {
    Rng rng(seed, {kInitStream, index++, 0});
    float* values = parameter.tensor->data<float>();
    for (int64_t i = 0; i < parameter.shape.numel(); ++i)
      values[i] = parameter.mean + (parameter.std > 0 ? parameter.std * rng.normal() : 0.0f);
  }
}

std::vector<float*> MethodPolicy::controllers() {
  std::vector<float*> all;
  for (const Part& each : parts_) {
    const std::vector<float*> own_ones = each.method->controllers();
    all.insert(all.end(), own_ones.begin(), own_ones.end());
  }
  return all;
}

void MethodPolicy::prepare(Context& ctx, const Model& model, std::span<const Batch> batches, bool start,
                           const std::atomic<bool>* cancel, Measurements* kept) {
  const PrepareInput input{model,
                           batches,
                           skipped_kv(false, model.config, model.config.layers - 1),
                           start && options_.init == StartRule::kHarmOrder,
                           options_.protect,
                           cancel,
                           kept};
  for (const Part& each : parts_) each.method->prepare(ctx, input);
}

std::vector<std::string> MethodPolicy::measured() const {
  return parts_[0].method->measured();
}

float MethodPolicy::share_at(int64_t step, int64_t steps, uint64_t seed) const {
  switch (options_.share) {
    case ShareRule::kFalling: {
      const float done =
          steps > 1 ? std::min(1.0f, static_cast<float>(step) / static_cast<float>(steps - 1)) : 1.0f;
      return options_.share_start + (options_.share_end - options_.share_start) * done;
    }
    case ShareRule::kSampled: {
      if (options_.share_grid.empty()) return options_.share_end;
      Rng rng(seed, {kShareStream, static_cast<uint32_t>(step), 0});
      return options_.share_grid[rng.below(static_cast<uint32_t>(options_.share_grid.size()))];
    }
    case ShareRule::kFixed:
      break;
  }
  return options_.share_end;
}

Tensor MethodPolicy::loss(Context& ctx, const LossInput& input) const {
  Tensor task = options_.objective == Objective::kDistill && input.teacher.x
                    ? output_kl(ctx, input.teacher, input.output, input.weights)
                    : objective_->task_loss(ctx, input);
  if (!task) task = output_cross_entropy(ctx, input.output, input.targets, input.weights);
  const Tensor penalty = objective_->penalty(ctx, input);
  if (!penalty) return task;
  return weighted_sum(ctx, std::array{task, penalty}, std::array{1.0f, input.part});
}

void MethodPolicy::observe(Context& ctx, SkipState& state, int64_t part) {
  for (const Part& each : parts_) each.method->observe(ctx, state, part);
}

void MethodPolicy::adjust(Context& ctx, const ModelConfig& config, std::span<const Tensor> gradients) {
  size_t first = 0;
  for (const Part& each : parts_) {
    const size_t count = each.method->parameters(config).size();
    each.method->adjust(ctx, gradients.subspan(first, count));
    first += count;
  }
}

std::vector<Tensor> MethodPolicy::figures(Context& ctx) {
  std::vector<Tensor> all;
  for (Part& each : parts_) {
    const std::vector<Tensor> own = each.method->figures(ctx);
    each.figures = own.size();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

void MethodPolicy::after_step(std::span<const float> figures) {
  for (const Part& each : parts_) {
    each.method->after_step(figures.first(each.figures));
    figures = figures.subspan(each.figures);
  }
}

bool MethodPolicy::fits_at_end() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.method->traits().fits_at_end; });
}

std::vector<std::string> MethodPolicy::finish(Context& ctx, const Model& model,
                                              std::span<const Batch> batches,
                                              const std::atomic<bool>* cancel) {
  std::vector<std::string> said;
  for (const Part& each : parts_) {
    if (each.method->traits().fits_at_end)
      said.push_back(each.method->finish(ctx, {*this, model, batches, cancel}));
  }
  return said;
}

float MethodPolicy::threshold_weight(const ModelConfig& config, int64_t unit) const {
  return decide_->threshold_weight(config, unit, skipped_kv(false, config, unit / 2));
}

std::unique_ptr<PolicyState> MethodPolicy::make_state(Context& ctx, const ModelConfig& config,
                                                      int64_t sequences) const {
  auto state = std::make_unique<SkipState>();
  for (const Part& each : parts_)
    state->methods[each.method.get()] = each.method->make_state(ctx, config, sequences);
  state->thresholds.set_units(2 * config.layers);
  state->history.set_size(sequences, 2 * config.layers);
  if (score_ == decide_) state->alone = decide_;
  return state;
}

bool MethodPolicy::has_key_bias() const {
  return score_->traits().has_key_bias;
}

bool MethodPolicy::resumes() const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.method->traits().resumes; });
}

void MethodPolicy::begin(Context& ctx, const Model& model, const Batch& batch, PolicyState& state) const {
  SkipState& mine = own(state);
  mine.pass.units.clear();
  if (mine.thresholds.steered()) mine.history.make_room(ctx, batch);
  for (const Part& each : parts_) each.method->begin(ctx, model, batch, mine);
}

bool MethodPolicy::is_protected(int64_t layer) const {
  return std::find(options_.protect.begin(), options_.protect.end(), layer) != options_.protect.end();
}

UnitList MethodPolicy::list(const ModelConfig& config) const {
  const UnitList all = decide_->list(config);
  UnitList list;
  double left = 1;
  for (size_t i = 0; i < all.order.size(); ++i) {
    if (is_protected(all.order[i] / 2)) continue;
    left -= (i == 0 ? 1 : all.left[i - 1]) - all.left[i];
    list.order.push_back(all.order[i]);
    list.left.push_back(left);
  }
  return list;
}

bool MethodPolicy::may_skip(const UnitInput& input, Units units) const {
  if (is_protected(input.layer)) return false;
  if (units == Units::kAttention) return input.unit == Unit::kAttention;
  return units != Units::kFfn || input.unit == Unit::kFfn;
}

SkippedKv MethodPolicy::skipped_kv(bool training, const ModelConfig& config, int64_t layer) const {
  const KvRule rule = kv_rule(training);
  const SkippedKv answer = rule == KvRule::kProject ? SkippedKv::kProject
                           : rule == KvRule::kCopy  ? SkippedKv::kCopyFromBelow
                           : rule == KvRule::kHide  ? SkippedKv::kHide
                                                    : decide_->skipped_kv(training);
  const bool first = answer == SkippedKv::kCopyFromBelow && copied_layer(config, layer) < 0;
  return first ? SkippedKv::kProject : answer;
}

bool MethodPolicy::copies_kv(const ModelConfig& config) const {
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const bool training : {false, true}) {
      if (skipped_kv(training, config, layer) == SkippedKv::kCopyFromBelow) return true;
    }
  }
  return false;
}

RowSet MethodPolicy::choose(UnitCall& call, const Decision& decision) const {
  SkipState& state = call.state;
  if (state.pass.replay) return (*state.pass.replay)[static_cast<size_t>(call.input.index())];
  const auto ask = [&] {
    const bool asks = may_skip(call.input, decide_->traits().units);
    return asks ? decide_->decide(call, decision) : RowSet::all(call.rows());
  };
  if (state.thresholds.drafts()) {
    state.thresholds.judging = true;
    state.thresholds.judged = ask();
    state.thresholds.judging = false;
  }
  return ask();
}

Decision MethodPolicy::decide(Context& ctx, const UnitInput& input, PolicyState& state) const {
  SkipState& mine = own(state);
  UnitCall call{ctx, input, mine};
  const MethodTraits traits = decide_->traits();
  const bool follows = traits.units == Units::kBlock && input.unit == Unit::kFfn;
  Decision decision;
  if (follows) decision = mine.pass.block;
  decision.input = {};  // attention's is not the FFN's
  decision.skipped_kv = skipped_kv(mine.training.on, input.model.config, input.layer);
  score_->score(call, decision);
  if (blend_ != score_) decision.gate = {};  // the blend of another method makes its own
  if (!follows) decision.kept = choose(call, decision);
  const bool needs_skipped =
      mine.training && traits.straight_through && options_.st_skipped == SkippedBranch::kCompute;
  decision.masked = (mine.pass.masked || needs_skipped) && !decision.kept.is_all();
  decision.joins_as_it_is =
      !decision.masked && !decision.gate && !masks_block(mine) && !blend_->traits().scales_branch;
  if (input.unit == Unit::kAttention) {
    mine.pass.block = decision;
    mine.pass.block_input = masks_block(mine) ? affine(ctx, input.h, 1.0f, 0.0f) : Tensor();
  }
  if (mine.training || mine.pass.recording) {
    mine.pass.units.push_back({input.index(), decision});
    mine.pass.units.back().decision.input = {};  // as large as all rows, and not asked for
  }
  return decision;
}

void MethodPolicy::join(Context& ctx, const UnitInput& input, const Decision& decision, const Tensor& branch,
                        Tensor& h, PolicyState& state) const {
  UnitCall call{ctx, input, own(state)};
  if (blend_->joins(call, decision, branch, h) || !branch) return;
  const Tensor blended = blend_->blend(call, decision, branch);
  if (masks_block(call.state)) return add_rows_to(ctx, h, computed_rows(call, decision), blended);
  const bool learns = decide_->traits().straight_through && call.state.training && decision.score;
  add_branch(ctx, decision, blended, learns ? decision.score : Tensor(), h);
}

// h is h₀ + A + F of the computed rows; it becomes h₀ + M · (A + F), with ∂M/∂score = 1.
void MethodPolicy::mask_block(UnitCall& call, const Decision& decision, Tensor& h) const {
  Context& ctx = call.ctx;
  const Tensor& before = call.state.pass.block_input;
  Tensor update = add(ctx, h, affine(ctx, before, -1.0f, 0.0f));
  if (!decision.masked) update = gather_rows(ctx, update, decision.kept);
  Tensor joined = affine(ctx, before, 1.0f, 0.0f);
  add_branch(ctx, decision, update, decision.score, joined);
  assign(ctx, h, joined);
}

void MethodPolicy::after_block(Context& ctx, const UnitInput& input, Tensor& h, PolicyState& state) const {
  UnitCall call{ctx, input, own(state)};
  const Decision& decision = call.state.pass.block;
  if (masks_block(call.state) && decision.score) mask_block(call, decision, h);
  blend_->after_block(call, decision, h);
}

}  // namespace fathom
