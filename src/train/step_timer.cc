#include "train/step_timer.h"

#include <chrono>

#include "base/rng.h"
#include "model/transformer.h"
#include "tensor/arena.h"
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

StepTimer::Seconds StepTimer::step() {
  Rng rng(1, {static_cast<uint32_t>(steps_), 0, 0});
  const auto vocab = static_cast<uint32_t>(options_.model.vocab);
  std::vector<BatchRow> rows;
  std::vector<int32_t> targets;
  for (int64_t s = 0; s < options_.batch; ++s) {
    for (int64_t i = 0; i < options_.context; ++i) {
      rows.push_back({static_cast<int32_t>(rng.below(vocab)), static_cast<int32_t>(i),
                      static_cast<int32_t>(s), true, static_cast<int32_t>(s)});
      targets.push_back(static_cast<int32_t>(rng.below(vocab)));
    }
  }
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const Clock::time_point start = Clock::now();
  parameters_->zero_gradients(ctx_);
  const Clock::time_point pass_start = Clock::now();
  {
    const ArenaScope arena(ctx_);
    const TapeScope recording(ctx_, tape_);
    const Batch batch = make_batch(ctx_, rows);
    const std::unique_ptr<PolicyState> base = method_->make_state(ctx_, options_.model, options_.batch);
    auto& state = static_cast<SkipState&>(*base);
    state.training.on = true;
    state.training.step = steps_;
    state.training.share = method_->share_at(steps_, 1, 1);
    const auto count = static_cast<int64_t>(rows.size());
    const std::vector<float> weights(rows.size(), 1.0f / static_cast<float>(rows.size()));
    const uint64_t before = ctx_.counters().total().unit_rows;
    Tensor logits = forward(ctx_, model_, batch, FreshPass{}, *method_, state);
    const auto ran = static_cast<double>(ctx_.counters().total().unit_rows - before);
    skip_ratio_ = 1 - ran / static_cast<double>(2 * options_.model.layers * count);
    const Tensor loss = method_->loss(ctx_, {model_,
                                             batch,
                                             logits,
                                             {},
                                             Tensor::from(ctx_, targets, {count}),
                                             Tensor::from(ctx_, weights, {count}),
                                             state});
    logits = {};  // as in the trainer: its memory becomes its gradient's
    tape_.backward(ctx_, loss);
  }
  const double pass = since(pass_start);
  const double norm = gradient_norm(ctx_, *parameters_);
  if (norm > 1) scale_gradients(ctx_, *parameters_, static_cast<float>(1 / norm));
  optimizer_->step(ctx_, *parameters_, 1e-4);
  ++steps_;
  return {since(start), pass};
}

}  // namespace fathom
