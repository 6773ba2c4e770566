#include "train/trainer.h"

#include <cmath>

#include "base/format.h"
#include "base/log.h"
#include "model/transformer.h"
#include "ops/loss/cross_entropy.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int64_t kSpikeWarmup = 20;    // steps before the running mean says anything
constexpr double kMeanMemory = 0.98;    // of the running mean
constexpr int64_t kPrepareRows = 1024;  // of one pass over the text that units are measured on
constexpr int64_t kFitSamples = 32;     // for what a method fits at the end

}  // namespace

Trainer::Trainer(Context& ctx, Recipe& recipe, Model& model, const Dataset& train, const Dataset* validation,
                 std::string dir, bool resumes, const std::atomic<bool>* stop)
    : ctx_(ctx),
      recipe_(recipe),
      model_(model),
      train_(train),
      validation_(validation),
      dir_(std::move(dir)),
      schedule_(recipe.train.schedule, recipe.train.schedule_steps),
      tape_(ctx.device()) {
  if (model.device != ctx.device())
    fail("the model is on the device {}, and training on {}: move it there first", name_of(model.device),
         name_of(ctx.device()));
  if (resumes) take_measured();  // it may replace the method
  MethodPolicy& method = *recipe.method;
  method.check(model.config);
  method_parameters_ = method.parameters(model.config);
  method.initialise(model.config, recipe.train.seed);
  prepare(!resumes || !newest_checkpoint(dir_), stop);
  if (method.options().objective == Objective::kDistill) teacher_ = model;
  std::vector<ParameterSpec> specs;
  if (!method.options().frozen_backbone) specs = model_parameters(model);
  for (const MethodParameter& own : method_parameters_)
    specs.push_back({own.name, own.tensor, {}, own.decay, false, recipe.train.method_rate});
  parameters_ = std::make_unique<ParameterSet>(ctx, std::move(specs), recipe.train.precision);
  optimizer_ = make_optimizer(recipe.train.optimizer, *parameters_);
}

// Methods that measure the model before they start (harm order, similarities) see the first samples, a few
// in each pass: two states and the logits of so many rows are all that memory has to hold.
// start: tensors and controllers are to get their first values.
void Trainer::prepare(bool start, const std::atomic<bool>* stop) {
  const ArenaScope scope(ctx_);
  const int64_t samples = std::max<int64_t>(1, kPrepareRows / recipe_.train.context);
  std::vector<Batch> batches;
  int64_t tokens = 0;
  for (int64_t first = 0; first < train_.samples() && tokens < recipe_.train.prepare_tokens;
       first += samples) {
    const TrainBatch part = train_.batch(first, std::min(samples, train_.samples() - first), 0);
    batches.push_back(make_batch(ctx_, rows_of(part)));
    tokens += part.rows();
  }
  recipe_.method->prepare(ctx_, model_, batches, start, stop);
}

// What the method fits when everything else has learned.
void Trainer::finish_method() {
  if (!recipe_.method->fits_at_end()) return;
  const ArenaScope scope(ctx_);
  const TrainBatch sample = train_.batch(0, std::min(kFitSamples, train_.samples()), 0);
  const Batch batch = make_batch(ctx_, rows_of(sample));
  for (const std::string& line : recipe_.method->finish(ctx_, model_, std::span(&batch, 1))) log_info(line);
}

// Of the parts that have something to learn.
PartFigures Trainer::run_parts(const TrainStep& data, Measures measures) {
  const TrainConfig& config = recipe_.train;
  MethodPolicy& method = *recipe_.method;
  PartRunner::Options options;
  options.step = {true, config.seed, progress_.step,
                  method.share_at(progress_.step, config.schedule_steps, config.seed)};
  if (method.options().objective == Objective::kDistill) options.teacher = &teacher_;
  options.recompute = config.recompute;
  options.measures = measures;
  PartRunner runner(ctx_, tape_, model_, method, options);
  for (const TrainBatch& part : data.parts) {
    if (part.weight_sum > 0) runner.run(part, data.weight_sum);
  }
  method.adjust(ctx_, model_.config, method_gradients());
  return runner.finish(parameters_->gradients());
}

StepResult Trainer::step(const TrainStep& data, Measures measures) {
  const TrainConfig& config = recipe_.train;
  parameters_->zero_gradients(ctx_);
  const PartFigures figures = run_parts(data, measures);
  if (measures.work) net_flops_ = figures.net_flops();
  StepResult result;
  result.loss = figures.loss;
  result.ce = figures.ce;
  result.rows = data.rows;
  result.rate = schedule_.rate(progress_.step);
  result.gradient_norm = figures.gradient_norm;
  result.skip_ratio = figures.skip_ratio();
  result.net_flops = net_flops_;
  result.finite = std::isfinite(result.loss) && std::isfinite(result.gradient_norm) && !is_spike(result.loss);
  if (!result.finite) return result;

  const auto clip = static_cast<double>(config.clip);
  const bool clips = clip > 0 && result.gradient_norm > clip;
  optimizer_->step(ctx_, *parameters_,
                   {result.rate, clips ? static_cast<float>(clip / result.gradient_norm) : 1.0f});
  recipe_.method->after_step(ctx_);
  progress_.mean_loss =
      progress_.step == 0 ? result.loss : kMeanMemory * progress_.mean_loss + (1 - kMeanMemory) * result.loss;
  ++progress_.step;
  progress_.sample = data.first_sample + shape().samples();
  progress_.tokens += data.rows;
  return result;
}

// The method's parameters come after the model's.
std::vector<Tensor> Trainer::method_gradients() const {
  std::vector<Tensor> all;
  const auto& list = parameters_->list();
  for (size_t i = list.size() - method_parameters_.size(); i < list.size(); ++i)
    all.push_back(parameters_->gradient(list[i]));
  return all;
}

bool Trainer::is_spike(double loss) const {
  const auto factor = static_cast<double>(recipe_.train.spike);
  return factor > 0 && progress_.step >= kSpikeWarmup && loss > factor * progress_.mean_loss;
}

double Trainer::validate() {
  if (!validation_) return -1;
  double total = 0, weight = 0;
  const int64_t count = std::min(recipe_.train.batch, validation_->samples());
  for (int64_t i = 0; i < recipe_.train.validation.batches && i * count < validation_->samples(); ++i) {
    const ArenaScope arena(ctx_);
    const TrainBatch part =
        validation_->batch(i * count, std::min(count, validation_->samples() - i * count), 0);
    if (part.weight_sum == 0) continue;
    const PartInput input = part_input(ctx_, part, part.weight_sum);
    const auto state = recipe_.method->make_state(ctx_, model_.config, input.batch.sequences);
    const Tensor logits = forward(ctx_, model_, input.batch, FreshPass{}, *recipe_.method, *state);
    const Tensor ce = cross_entropy(ctx_, logits, input.targets, input.weights);
    total += static_cast<double>(read_scalars(ctx_, std::span(&ce, 1))[0].as_float()) * part.weight_sum;
    weight += part.weight_sum;
  }
  if (weight == 0) fail("the validation data has nothing to predict");
  return total / weight;
}

}  // namespace fathom
