#include "train/optimizer.h"

#include <algorithm>
#include <array>

#include "base/format.h"
#include "tensor/memory.h"

namespace fathom {
namespace {

// The kind's own numbers where the config has none.
OptimizerConfig complete(OptimizerConfig config) {
  const bool adamw = config.kind == OptimizerKind::kAdamW;
  if (config.beta2 == 0) config.beta2 = adamw ? 0.95f : 0.99f;
  if (config.eps == 0) config.eps = adamw ? 1e-8f : 1e-30f;
  return config;
}

// What only Adafactor reads must be as it comes.
void check_adafactors_own(const OptimizerConfig& config) {
  const OptimizerConfig plain;
  const auto silent = [](bool same, const char* key) {
    require(same, "optimizer.{} is adafactor's: adamw does nothing with it, leave it out", key);
  };
  silent(config.beta2_power == plain.beta2_power, "beta2_power");
  silent(config.update_clip == plain.update_clip, "update_clip");
  silent(config.scale_by_size == plain.scale_by_size, "scale_by_size");
}

}  // namespace

void check_optimizer(const OptimizerConfig& config) {
  require(config.beta1 >= 0 && config.beta1 < 1, "optimizer.beta1 must be in [0, 1), got {}", config.beta1);
  require(config.beta2 >= 0 && config.beta2 < 1, "optimizer.beta2 must be in [0, 1), got {}", config.beta2);
  require(config.eps >= 0, "optimizer.eps must be above 0, or 0 for the optimiser's own, got {}", config.eps);
  require(config.weight_decay >= 0, "optimizer.weight_decay must not be negative, got {}",
          config.weight_decay);
  require(config.beta2_power >= 0 && config.beta2_power <= 1,
          "optimizer.beta2_power must be in [0, 1], got {}", config.beta2_power);
  require(config.update_clip > 0, "optimizer.update_clip must be above 0, got {}", config.update_clip);
  require(
      config.beta2 == 0 || config.beta2_power == 0,
      "optimizer.beta2_power ({}) makes beta2 a function of the step, so beta2 ({}) does nothing: give one",
      config.beta2_power, config.beta2);
  if (config.kind == OptimizerKind::kAdamW) check_adafactors_own(config);
}

std::span<const std::string_view> enum_names(OptimizerKind) {
  static constexpr std::array<std::string_view, 2> kNames{"adamw", "adafactor"};
  return kNames;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, const ParameterSet& parameters) {
  check_optimizer(config);
  return config.kind == OptimizerKind::kAdamW ? make_adamw(complete(config), parameters)
                                              : make_adafactor(complete(config), parameters);
}

void Optimizer::add_state(const std::string& name, const ParameterSet& parameters, int64_t size) {
  state_.push_back({name, Tensor::owned(parameters.values().device(), DType::kF32, {size})});
}

void Optimizer::step(Context& ctx, ParameterSet& parameters, const OptimizerStep& step) {
  ++steps_;
  update(ctx, parameters, step);
  parameters.refresh(ctx);
}

std::vector<NamedTensor> Optimizer::state() const {
  return state_;
}

void Optimizer::load(Context& ctx, std::span<const NamedTensor> state, int64_t steps,
                     const std::string& where) {
  for (NamedTensor& own : state_) {
    const auto found = std::find_if(state.begin(), state.end(),
                                    [&](const NamedTensor& other) { return other.name == own.name; });
    if (found == state.end()) fail("{}: the optimiser's '{}' is missing", where, own.name);
    if (found->tensor.dtype() != DType::kF32 || !(found->tensor.shape() == own.tensor.shape())) {
      fail("{}: the optimiser's '{}' must be f32 {}, got {} {}", where, own.name,
           to_string(own.tensor.shape()), name_of(found->tensor.dtype()), to_string(found->tensor.shape()));
    }
    copy_bytes(ctx, own.tensor.raw(), own.tensor.device(), found->tensor.raw(), Device::kCpu,
               static_cast<size_t>(own.tensor.nbytes()));
  }
  steps_ = steps;
}

}  // namespace fathom
