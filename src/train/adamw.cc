// AdamW (Loshchilov & Hutter 2019): Adam with the weights' decay apart from the gradient.
#include <cmath>

#include "train/optimizer.h"

namespace fathom {
namespace {

constexpr int64_t kGrain = 1 << 14;

class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerConfig& config, const ParameterSet& parameters) : Optimizer(config) {
    for (const char* name : {"mean", "square"})
      state_.push_back({name, Tensor::owned(Device::kCpu, DType::kF32, {parameters.size()})});
  }

 private:
  void update(Context& ctx, ParameterSet& parameters, double rate) override {
    const auto t = static_cast<double>(steps_);
    const double correction1 = 1 - std::pow(static_cast<double>(config_.beta1), t);
    const double correction2 = 1 - std::pow(static_cast<double>(config_.beta2), t);
    for (const ParameterSet::Parameter& parameter : parameters.list()) {
      const double own_rate = rate * static_cast<double>(parameter.spec.rate);
      const double decay = parameter.spec.decay ? static_cast<double>(config_.weight_decay) : 0.0;
      const Factors factors{static_cast<float>(own_rate / correction1),
                            static_cast<float>(1 - own_rate * decay),
                            static_cast<float>(1 / std::sqrt(correction2))};
      ctx.pool().parallel_for(parameter.size, kGrain, [&](int64_t begin, int64_t end) {
        move(parameters, parameter.begin + begin, parameter.begin + end, factors);
      });
    }
  }

  struct Factors {
    float rate, keep, root;
  };
  void move(ParameterSet& parameters, int64_t begin, int64_t end, Factors factors) {
    float* __restrict value = parameters.values().data();
    const float* __restrict gradient = parameters.gradients().data();
    float* __restrict mean = state_[0].tensor.data<float>();
    float* __restrict square = state_[1].tensor.data<float>();
    const float beta1 = config_.beta1, beta2 = config_.beta2, eps = config_.eps;
    for (int64_t i = begin; i < end; ++i) {
      const float g = gradient[i];
      mean[i] = beta1 * mean[i] + (1 - beta1) * g;
      square[i] = beta2 * square[i] + (1 - beta2) * g * g;
      value[i] =
          value[i] * factors.keep - factors.rate * mean[i] / (std::sqrt(square[i]) * factors.root + eps);
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimizerConfig& config, const ParameterSet& parameters) {
  return std::make_unique<AdamW>(config, parameters);
}

}  // namespace fathom
