#include "train/trainer.h"

#include <cmath>

#include "base/format.h"
#include "base/log.h"
#include "model/flops.h"
#include "model/transformer.h"
#include "ops/loss/cross_entropy.h"
#include "skip/gate_fit.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int64_t kSpikeWarmup = 20;    // steps before the running mean says anything
constexpr double kMeanMemory = 0.98;    // of the running mean
constexpr int64_t kPrepareRows = 1024;  // of one pass over the text that units are measured on
constexpr int64_t kFitSamples = 32;     // to fit heads on

std::vector<BatchRow> rows_of(const TrainBatch& part) {
  std::vector<BatchRow> rows(part.tokens.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = {part.tokens[i], part.positions[i], part.sequence[i], part.weights[i] > 0,
               part.sequence_keys[static_cast<size_t>(part.sequence[i])]};
  }
  return rows;
}

// Targets and weights of the rows that have logits.
struct Wanted {
  std::vector<int32_t> targets;
  std::vector<float> weights;
};

Wanted wanted_of(const TrainBatch& part, double weight_sum) {
  Wanted wanted;
  for (size_t i = 0; i < part.tokens.size(); ++i) {
    if (part.weights[i] <= 0) continue;
    wanted.targets.push_back(part.targets[i]);
    wanted.weights.push_back(static_cast<float>(static_cast<double>(part.weights[i]) / weight_sum));
  }
  return wanted;
}

int64_t kept_rows(Context& ctx, const RowSet& kept) {
  if (kept.is_all()) return kept.capacity();
  if (kept.is_none()) return 0;
  int32_t count = 0;
  copy_to_host(ctx, kept.count(), std::span(&count, 1));
  return count;
}

double value_of(Context& ctx, const Tensor& scalar) {
  float value = 0;
  copy_to_host(ctx, scalar, std::span(&value, 1));
  return static_cast<double>(value);
}

}  // namespace

struct Trainer::PartFigures {
  double loss = 0, ce = 0;
  int64_t kept = 0, units = 0;
  uint64_t madds = 0, dense = 0;
};

Trainer::Trainer(Context& ctx, Recipe& recipe, Model& model, const Dataset& train, const Dataset* validation,
                 std::string dir, bool resumes, const std::atomic<bool>* stop)
    : ctx_(ctx),
      recipe_(recipe),
      model_(model),
      train_(train),
      validation_(validation),
      dir_(std::move(dir)),
      schedule_(recipe.train.schedule, recipe.train.schedule_steps) {
  if (ctx.device() != Device::kCpu) fail("training runs on the CPU only, got a context on a GPU");
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

// What is fitted when everything else has learned: the scalar heads of two-stage gates.
void Trainer::fit_heads() {
  if (!has_gate_heads(*recipe_.method)) return;
  const ArenaScope scope(ctx_);
  const TrainBatch sample = train_.batch(0, std::min(kFitSamples, train_.samples()), 0);
  const Batch batch = make_batch(ctx_, rows_of(sample));
  const GateFit fit = fit_gate_heads(ctx_, *recipe_.method, model_, std::span(&batch, 1));
  log_info(fmt::format("gate heads fitted to {} rows: {:.1f} % of the gates' variance explained", fit.rows,
                       100 * fit.explained));
}

void Trainer::run_part(const TrainBatch& part, int64_t index, double weight_sum, bool want_ce,
                       PartFigures& figures) {
  const ArenaScope arena(ctx_);
  const TapeScope recording(ctx_, tape_);
  MethodPolicy& method = *recipe_.method;
  const std::vector<BatchRow> rows = rows_of(part);
  const Batch batch = make_batch(ctx_, rows);
  const Wanted wanted = wanted_of(part, weight_sum);
  const auto count = static_cast<int64_t>(wanted.targets.size());
  const Tensor targets = Tensor::from(ctx_, wanted.targets, {count});
  const Tensor weights = Tensor::from(ctx_, wanted.weights, {count});

  const std::unique_ptr<PolicyState> own_state = method.make_state(ctx_, model_.config, batch.sequences);
  auto& state = static_cast<SkipState&>(*own_state);
  state.training = true;
  state.seed = recipe_.train.seed;
  state.step = progress_.step;
  state.share = method.share_at(progress_.step, recipe_.train.schedule_steps, recipe_.train.seed);

  Tensor taught;
  if (method.options().objective == Objective::kDistill) {
    const RecordingScope quiet(ctx_, false);
    PolicyState none;
    taught = forward(ctx_, teacher_, batch, FreshPass{}, DensePolicy(), none);
  }
  const Work before = ctx_.counters().total();
  Tensor logits = forward(ctx_, model_, batch, FreshPass{recipe_.train.recompute}, method, state);
  figures.madds += (ctx_.counters().total() - before).madds;
  const DenseWork dense = dense_work(model_.config, rows);
  figures.dense += dense.block_madds + dense.output_madds;
  for (const UnitRecord& unit : state.units) figures.kept += kept_rows(ctx_, unit.decision.kept);
  figures.units += part.rows() * 2 * model_.config.layers;

  const Tensor loss = method.loss(ctx_, {model_, batch, logits, taught, targets, weights, state,
                                         static_cast<float>(part.weight_sum / weight_sum)});
  figures.loss += value_of(ctx_, loss);
  if (want_ce) {
    const RecordingScope quiet(ctx_, false);
    figures.ce += value_of(ctx_, cross_entropy(ctx_, detach(logits), targets, weights));
  }
  logits = {};  // the loss writes its gradient into their memory where nobody else holds it
  tape_.backward(ctx_, loss);
  method.observe(ctx_, state, index);
}

StepResult Trainer::step(const TrainStep& data, bool want_ce) {
  const TrainConfig& config = recipe_.train;
  parameters_->zero_gradients(ctx_);
  PartFigures figures;
  int64_t index = 0;  // of the parts that have something to learn
  for (const TrainBatch& part : data.parts) {
    if (part.weight_sum > 0) run_part(part, index++, data.weight_sum, want_ce, figures);
  }
  recipe_.method->adjust(model_.config, method_gradients());
  StepResult result;
  result.loss = figures.loss;
  result.ce = figures.ce;
  result.rows = data.rows;
  result.rate = schedule_.rate(progress_.step);
  result.gradient_norm = gradient_norm(ctx_, *parameters_);
  if (figures.units > 0)
    result.skip_ratio = 1 - static_cast<double>(figures.kept) / static_cast<double>(figures.units);
  if (figures.dense > 0)
    result.net_flops = static_cast<double>(figures.madds) / static_cast<double>(figures.dense);
  result.finite = std::isfinite(result.loss) && std::isfinite(result.gradient_norm) && !is_spike(result.loss);
  if (!result.finite) return result;

  const auto clip = static_cast<double>(config.clip);
  if (clip > 0 && result.gradient_norm > clip)
    scale_gradients(ctx_, *parameters_, static_cast<float>(clip / result.gradient_norm));
  optimizer_->step(ctx_, *parameters_, result.rate);
  recipe_.method->after_step(ctx_);
  progress_.mean_loss =
      progress_.step == 0 ? result.loss : kMeanMemory * progress_.mean_loss + (1 - kMeanMemory) * result.loss;
  ++progress_.step;
  progress_.sample = data.first_sample + shape().samples();
  progress_.tokens += data.rows;
  return result;
}

// The method's parameters come after the model's.
std::vector<std::span<float>> Trainer::method_gradients() {
  std::vector<std::span<float>> all;
  const auto& list = parameters_->list();
  for (size_t i = list.size() - method_parameters_.size(); i < list.size(); ++i)
    all.push_back(parameters_->gradients().subspan(static_cast<size_t>(list[i].begin),
                                                   static_cast<size_t>(list[i].size)));
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
    const Batch batch = make_batch(ctx_, rows_of(part));
    const Wanted wanted = wanted_of(part, part.weight_sum);
    const auto rows = static_cast<int64_t>(wanted.targets.size());
    const auto state = recipe_.method->make_state(ctx_, model_.config, batch.sequences);
    const Tensor logits = forward(ctx_, model_, batch, FreshPass{}, *recipe_.method, *state);
    const Tensor ce = cross_entropy(ctx_, logits, Tensor::from(ctx_, wanted.targets, {rows}),
                                    Tensor::from(ctx_, wanted.weights, {rows}));
    total += value_of(ctx_, ce) * part.weight_sum;
    weight += part.weight_sum;
  }
  if (weight == 0) fail("the validation data has nothing to predict");
  return total / weight;
}

}  // namespace fathom
