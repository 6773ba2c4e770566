#include "ops/optimizer/adamw.h"

#include <cmath>

#include "train/optimizer.h"

namespace fathom {
namespace {

class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerConfig& config, const ParameterSet& parameters) : Optimizer(config) {
    for (const char* name : {"mean", "square"}) add_state(name, parameters, parameters.size());
  }

 private:
  void update(Context& ctx, ParameterSet& parameters, const OptimizerStep& step) override {
    const auto t = static_cast<double>(steps_);
    const double correction1 = 1 - std::pow(static_cast<double>(config_.beta1), t);
    const double correction2 = 1 - std::pow(static_cast<double>(config_.beta2), t);
    std::vector<AdamWSegment> segments;
    for (const ParameterSet::Parameter& parameter : parameters.list()) {
      const double own_rate = step.rate * static_cast<double>(parameter.spec.rate);
      const double decay = parameter.spec.decay ? static_cast<double>(config_.weight_decay) : 0.0;
      add_segment(segments,
                  {parameter.begin, parameter.begin + parameter.size,
                   static_cast<float>(own_rate / correction1), static_cast<float>(1 - own_rate * decay)});
    }
    AdamWBuffers buffers{parameters.values(), parameters.gradients(), state_[0].tensor, state_[1].tensor};
    adamw(ctx, buffers, segments,
          {config_.beta1, config_.beta2, config_.eps, static_cast<float>(1 / std::sqrt(correction2)),
           step.gradient_factor});
  }

  // Neighbours that share their rates are one segment: the few numbers between them are zeros, and stay
  // zeros.
  static void add_segment(std::vector<AdamWSegment>& segments, const AdamWSegment& next) {
    if (!segments.empty() && segments.back().rate == next.rate && segments.back().keep == next.keep) {
      segments.back().end = next.end;
    } else {
      segments.push_back(next);
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimizerConfig& config, const ParameterSet& parameters) {
  return std::make_unique<AdamW>(config, parameters);
}

}  // namespace fathom
