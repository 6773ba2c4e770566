#include "train/step_timer.h"

#include <algorithm>

#include "base/clock.h"
#include "base/rng.h"
#include "model/load.h"
#include "tensor/cuda_idle.h"
#include "train/initial_model.h"

namespace fathom {
namespace {

TrainBatch random_part(const StepTimerOptions& options, int64_t first_sample) {
  Rng rng(1, {static_cast<uint32_t>(first_sample / options.batch), 0, 0});
  const auto vocab = static_cast<uint32_t>(options.model.vocab);
  TrainBatch part;
  for (int32_t s = 0; part.rows() < options.rows(); ++s) {
    const int64_t left = options.rows() - part.rows();
    const int64_t length = options.mean_document == 0
                               ? options.context
                               : 1 + rng.below(static_cast<uint32_t>(2 * options.mean_document - 1));
    part.sequence_keys.push_back(s);
    for (int32_t i = 0; i < std::min({length, left, options.context}); ++i) {
      part.tokens.push_back(static_cast<int32_t>(rng.below(vocab)));
      part.positions.push_back(i);
      part.sequence.push_back(s);
      part.targets.push_back(static_cast<int32_t>(rng.below(vocab)));
    }
  }
  part.weights.assign(part.tokens.size(), 1.0f);
  part.sequences = static_cast<int64_t>(part.sequence_keys.size());
  part.weight_sum = static_cast<double>(part.rows());
  return part;
}

// Measures how long a GPU has nothing to do while the host waits for counts; 0 on other devices.
class IdleScope {
 public:
  explicit IdleScope(Context& ctx) : ctx_(ctx) {
    if constexpr (kHasCuda) {
      if (ctx.device() == Device::kCuda) cuda_measure_idle(ctx.cuda().handle);
    }
  }
  double seconds() {
    if constexpr (kHasCuda) {
      if (ctx_.device() == Device::kCuda) return cuda_idle_seconds(ctx_.cuda().handle);
    }
    return 0;
  }

 private:
  Context& ctx_;
};

}  // namespace

StepTimer::StepTimer(Context& ctx, const StepTimerOptions& options, Tape& tape)
    : ctx_(ctx),
      options_(options),
      method_(MethodPolicy::from_json(options.method, "bench")),
      model_(initial_model(ctx, options.model, {}, 1)),
      tape_(tape),
      ahead_([options](int64_t first, int64_t, int64_t) { return random_part(options, first); }, 0,
             {options.batch, 1}, ctx.device()) {
  move_model(ctx, model_);
  method_->check(options.model);
  std::vector<ParameterSpec> specs = model_parameters(model_);
  const std::vector<MethodParameter> own_ones = method_->parameters(options.model);
  own_ = own_ones.size();
  for (const MethodParameter& own : own_ones)
    specs.push_back({own.name, own.tensor, {}, own.decay, false, 1});
  method_->initialise(options.model, 1);
  if (method_->options().objective == Objective::kDistill) {
    teacher_ = model_;
    if (options.precision == Precision::kBf16) hold_in_bf16(ctx, teacher_);
  }
  parameters_ = std::make_unique<ParameterSet>(ctx, std::move(specs), options.precision);
  optimizer_ = make_optimizer({}, *parameters_);
}

size_t StepTimer::state_bytes() const {
  int64_t bytes = parameters_->values().nbytes() + parameters_->gradients().nbytes();
  for (const ParameterSet::Parameter& parameter : parameters_->list())
    bytes += parameter.half ? parameter.half.nbytes() : 0;
  for (const NamedTensor& state : optimizer_->state()) bytes += state.tensor.nbytes();
  return static_cast<size_t>(bytes);
}

StepTimer::Seconds StepTimer::step() {
  const Clock::time_point start = Clock::now();
  const TrainStep data = ahead_.next();
  const double waited = seconds_since(start);
  parameters_->zero_gradients(ctx_);
  const Clock::time_point pass_start = Clock::now();
  PartRunner::Options options;
  options.step = {true, 0, steps_, method_->share_at(steps_, 1, 1)};
  if (method_->options().objective == Objective::kDistill) options.teacher = &teacher_;
  PartRunner runner(ctx_, tape_, model_, *method_, options);
  runner.run(data.staged[0]);
  method_->adjust(ctx_, options_.model, parameters_->last_gradients(own_));
  const PartFigures figures = runner.finish(parameters_->gradients());
  const double pass = seconds_since(pass_start), norm = figures.gradient_norm;
  skip_ratio_ = figures.skip_ratio();
  optimizer_->step(ctx_, *parameters_, {1e-4, norm > 1 ? static_cast<float>(1 / norm) : 1.0f});
  method_->after_step(figures.of_method);
  const Tensor moved = parameters_->values().rows(0, 1);
  read_scalars(ctx_, std::span(&moved, 1));  // waits until the optimiser is done
  ++steps_;
  return {seconds_since(start), pass, waited};
}

// The first steps take what was made ready while nothing ran.
StepTimer::Waits StepTimer::waits(int steps) {
  for (int i = 0; i < 3; ++i) step();
  IdleScope idle(ctx_);
  Seconds sum;
  for (int i = 0; i < steps; ++i) {
    const Seconds one = step();
    sum.all += one.all;
    sum.data += one.data;
  }
  return {sum.data / sum.all, idle.seconds() / sum.all};
}

}  // namespace fathom
