#include "ops/optimizer/adafactor.h"

#include <algorithm>
#include <cmath>

#include "train/optimizer.h"

namespace fathom {
namespace {

class Adafactor final : public Optimizer {
 public:
  Adafactor(const OptimizerConfig& config, const ParameterSet& parameters) : Optimizer(config) {
    if (config.beta1 > 0) add_state("mean", parameters, parameters.size());
    int64_t size = 0;
    for (const ParameterSet::Parameter& parameter : parameters.list()) {
      begins_.push_back(size);
      size += adafactor_moments(parameter.shape);
    }
    add_state("moments", parameters, std::max<int64_t>(1, size));
  }

 private:
  void update(Context& ctx, ParameterSet& parameters, const OptimizerStep& step) override {
    AdafactorParams params;
    params.beta1 = config_.beta1;
    params.beta2 = beta2();
    params.eps = config_.eps;
    params.update_clip = config_.update_clip;
    params.scale_by_size = config_.scale_by_size;
    params.gradient_factor = step.gradient_factor;
    for (size_t i = 0; i < begins_.size(); ++i) {
      const ParameterSet::Parameter& parameter = parameters.list()[i];
      params.rate = step.rate * static_cast<double>(parameter.spec.rate);
      params.decay = parameter.spec.decay ? static_cast<double>(config_.weight_decay) : 0.0;
      Tensor value = parameters.values().rows(parameter.begin, parameter.size).reshape(parameter.shape);
      const Tensor gradient =
          parameters.gradients().rows(parameter.begin, parameter.size).reshape(parameter.shape);
      Tensor moments = state_.back().tensor.rows(begins_[i], adafactor_moments(parameter.shape));
      Tensor mean;
      if (config_.beta1 > 0) mean = state_[0].tensor.rows(parameter.begin, parameter.size);
      adafactor(ctx, value, gradient, moments, mean, params);
    }
  }

  float beta2() const {
    if (config_.beta2_power == 0) return config_.beta2;
    return static_cast<float>(
        1 - std::pow(static_cast<double>(steps_), -static_cast<double>(config_.beta2_power)));
  }

  std::vector<int64_t> begins_;  // where each parameter's second moments begin
};

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(const OptimizerConfig& config, const ParameterSet& parameters) {
  return std::make_unique<Adafactor>(config, parameters);
}

}  // namespace fathom
