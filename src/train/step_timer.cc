#include "train/step_timer.h"

#include <chrono>

#include "base/rng.h"
#include "train/initial_model.h"

namespace fathom {

StepTimer::StepTimer(Context& ctx, const StepTimerOptions& options)
    : ctx_(ctx),
      options_(options),
      method_(MethodPolicy::from_json(options.method, "bench")),
      model_(initial_model(ctx, options.model, {}, 1)) {
  method_->check(options.model);
  std::vector<ParameterSpec> specs = model_parameters(model_);
  for (const MethodParameter& own : method_->parameters(options.model))
    specs.push_back({own.name, own.tensor, {}, own.decay, false, 1});
  method_->initialise(options.model, 1);
  parameters_ = std::make_unique<ParameterSet>(ctx, std::move(specs), options.precision);
  optimizer_ = make_optimizer({}, *parameters_);
}

TrainBatch StepTimer::random_part() const {
  Rng rng(1, {static_cast<uint32_t>(steps_), 0, 0});
  const auto vocab = static_cast<uint32_t>(options_.model.vocab);
  TrainBatch part;
  for (int32_t s = 0; s < options_.batch; ++s) {
    part.sequence_keys.push_back(s);
    for (int32_t i = 0; i < options_.context; ++i) {
      part.tokens.push_back(static_cast<int32_t>(rng.below(vocab)));
      part.positions.push_back(i);
      part.sequence.push_back(s);
      part.targets.push_back(static_cast<int32_t>(rng.below(vocab)));
    }
  }
  part.weights.assign(part.tokens.size(), 1.0f);
  part.sequences = options_.batch;
  part.weight_sum = static_cast<double>(part.rows());
  return part;
}

StepTimer::Seconds StepTimer::step() {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const TrainBatch part = random_part();
  const Clock::time_point start = Clock::now();
  parameters_->zero_gradients(ctx_);
  const Clock::time_point pass_start = Clock::now();
  PartRunner::Options options;
  options.step = {true, 0, steps_, method_->share_at(steps_, 1, 1)};
  PartRunner runner(ctx_, tape_, model_, *method_, options);
  runner.run(part, part.weight_sum, false);
  skip_ratio_ = runner.figures().skip_ratio();
  const double pass = since(pass_start);
  const double norm = gradient_norm(ctx_, *parameters_);
  if (norm > 1) scale_gradients(ctx_, *parameters_, static_cast<float>(1 / norm));
  optimizer_->step(ctx_, *parameters_, 1e-4);
  ++steps_;
  return {since(start), pass};
}

}  // namespace fathom
