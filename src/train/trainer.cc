#include "train/trainer.h"

#include <cmath>
#include <optional>

#include "base/format.h"
#include "base/log.h"
#include "base/rng.h"
#include "infer/trained_rule.h"
#include "model/load.h"
#include "model/lora.h"
#include "model/transformer.h"
#include "ops/loss/output_loss.h"
#include "skip/fingerprint.h"
#include "skip/lora_files.h"
#include "tensor/arena.h"
#include "train/shard_cache.h"

namespace fathom {
namespace {

constexpr int64_t kSpikeWarmup = 20;    // steps before the running mean says anything
constexpr double kMeanMemory = 0.98;    // of the running mean
constexpr int64_t kPrepareRows = 1024;  // of one pass over the text that units are measured on
constexpr int64_t kFitSamples = 32;     // for what a method fits at the end
constexpr uint32_t kDropoutStream = 0xd409;

uint64_t dropout_seed(uint64_t seed, int64_t step) {
  Rng rng(seed, {kDropoutStream, static_cast<uint32_t>(step), 0});
  const uint64_t high = rng.next_u32();
  return high << 32 | rng.next_u32();
}

// Passes that measure the model and record nothing. On a GPU a tape is attached: products of many rows are
// training's there.
class MeasuringScope {
 public:
  MeasuringScope(Context& ctx, Tape& tape) : arena_(ctx) {
    if (ctx.device() == Device::kCuda) taped_.emplace(ctx, tape);
    quiet_.emplace(ctx, false);
  }

 private:
  ArenaScope arena_;
  std::optional<TapeScope> taped_;
  std::optional<RecordingScope> quiet_;
};

}  // namespace

Trainer::Trainer(Context& ctx, Recipe& recipe, Model& model, const TrainingData& data, std::string dir,
                 bool resumes, const std::atomic<bool>* stop)
    : ctx_(ctx),
      recipe_(recipe),
      model_(model),
      train_(*data.train),
      validation_(data.validation.get()),
      prepare_(data.prepare ? *data.prepare : *data.train),
      dir_(std::move(dir)),
      schedule_(recipe.train.schedule, recipe.train.schedule_steps),
      tape_(ctx.device()) {
  if (model.device != ctx.device())
    fail("the model is on the device {}, and training on {}: move it there first", name_of(model.device),
         name_of(ctx.device()));
  looked_ = resumes;
  if (resumes) found_ = newest_checkpoint(dir_);
  if (found_) take_measured();  // it may replace the method
  MethodPolicy& method = *recipe.method;
  method.check(model.config);
  method_parameters_ = method.parameters(model.config);
  method.initialise(model.config, recipe.train.seed);
  const bool distills = method.options().objective == Objective::kDistill;
  if (!recipe.train.base.empty() && (distills || recipe.frozen())) base_sums_ = weight_sums(ctx, model);
  const bool halves = ctx.device() == Device::kCuda && recipe.train.precision == Precision::kBf16;
  if (halves && recipe.frozen()) hold_in_bf16(ctx, model);
  prepare(!found_, stop);
  if (distills) teacher_ = model;
  if (halves && distills && !recipe.frozen()) hold_in_bf16(ctx, teacher_);
  const LoraConfig& lora = recipe.train.lora;
  const bool merges = lora.rank > 0 && lora.dropout == 0 && (halves || lora.round != MergeRounding::kNone);
  std::vector<ParameterSpec> specs;
  if (!recipe.frozen()) specs = model_parameters(model);
  add_lora(specs, merges);
  for (const MethodParameter& own : method_parameters_)
    specs.push_back({own.name, own.tensor, {}, own.decay, false, recipe.train.method_rate});
  parameters_ = std::make_unique<ParameterSet>(ctx, std::move(specs), recipe.train.precision);
  optimizer_ = make_optimizer(recipe.train.optimizer, *parameters_);
  if (merges) {
    base_projections_ = fingerprint(ctx, model).projections;
    merged_ = std::make_unique<MergedLora>(ctx, model, lora.round);
  }
}

// The factors begin beside the weights, which the teacher keeps without them.
void Trainer::add_lora(std::vector<ParameterSpec>& specs, bool merged) {
  const LoraConfig& config = recipe_.train.lora;
  if (config.rank == 0) return;
  model_.lora =
      initial_lora(model_.config, config.rank, config.scaled_alpha(), config.targets, recipe_.train.seed);
  if (!config.start.empty() && !found_) start_from(config.start);
  model_.lora.dropout = config.dropout;
  if (config.round == MergeRounding::kQ4_1) model_.lora.round = DType::kQ4_1;
  std::vector<ParameterSpec> own = lora_parameters(model_, merged);
  specs.insert(specs.end(), own.begin(), own.end());
}

// The factors begin with the values of another LoRA of the same shape.
void Trainer::start_from(const std::string& folder) {
  Lora stored = read_lora(ctx_, folder, model_.config);
  if (stored.rank != model_.lora.rank || stored.scale() != model_.lora.scale())
    fail("lora.start: {} has rank {} and a scale of {}, the recipe has rank {} and a scale of {}",
         printable(folder), stored.rank, stored.scale(), model_.lora.rank, model_.lora.scale());
  const std::vector<LoraSpec> theirs = lora_specs(model_.config, stored);
  const std::vector<LoraSpec> mine = lora_specs(model_.config, model_.lora);
  for (size_t i = 0; i < mine.size(); ++i) {
    if (mine[i].factors->a.defined() != theirs[i].factors->a.defined())
      fail("lora.start: {} has {}factors for {}, the recipe's targets have {}", printable(folder),
           theirs[i].factors->a.defined() ? "" : "no ", mine[i].name,
           mine[i].factors->a.defined() ? "some" : "none");
    *mine[i].factors = *theirs[i].factors;
  }
}

// The first samples, until there are this many tokens, a few samples in each batch: two states and the logits
// of a batch are all that memory has to hold.
std::vector<Batch> Trainer::first_batches(const Dataset& text, int64_t samples, int64_t most_tokens) {
  samples = std::min(samples, text.samples());
  const int64_t each = std::max<int64_t>(1, kPrepareRows / recipe_.train.context);
  std::vector<Batch> batches;
  int64_t tokens = 0;
  for (int64_t first = 0; first < samples && tokens < most_tokens; first += each) {
    const TrainBatch part = text.batch(first, std::min(each, samples - first), 0);
    batches.push_back(make_batch(ctx_, rows_of(part)));
    tokens += part.rows();
  }
  return batches;
}

// What a method measures before it starts (harm order, similarities). start: tensors and controllers are to
// get their first values.
void Trainer::prepare(bool start, const std::atomic<bool>* stop) {
  const MeasuringScope scope(ctx_, tape_);
  const std::vector<Batch> batches = first_batches(prepare_, INT64_MAX, recipe_.train.prepare_tokens);
  Measurements kept(ctx_, shard_cache_folder(recipe_.train.data_cache), model_, batches);
  recipe_.method->prepare(ctx_, model_, batches, start, stop, &kept);
}

// What the method fits when everything else has learned.
void Trainer::finish_method(const std::atomic<bool>& stop) {
  if (!recipe_.method->fits_at_end()) return;
  const MeasuringScope scope(ctx_, tape_);
  const std::vector<Batch> batches = first_batches(train_, kFitSamples, INT64_MAX);
  for (const std::string& line : recipe_.method->finish(ctx_, model_, batches, &stop)) log_info(line);
}

// A method is to serve with the share that its weights have learned with.
void Trainer::keep_density(const std::atomic<bool>& stop) {
  const MethodPolicy& method = *recipe_.method;
  if (!method.own_rule_skips()) return;
  const Dataset& text = validation_ ? *validation_ : train_;
  const std::vector<BatchRow> rows = rows_of(text.batch(0, std::min(kFitSamples, text.samples()), 0));
  const TrainConfig& config = recipe_.train;
  const TrainingStep step{true, config.seed, progress_.step,
                          method.share_at(progress_.step, config.schedule_steps, config.seed)};
  const TrainedRule rule = find_trained_rule(ctx_, model_, method, rows, step, &stop);
  if (!rule.thresholds.empty()) trained_rule_ = to_json(rule);
  constexpr float kFarOff = 0.05f;
  if (rule.trained > 0 && std::abs(rule.served - rule.trained) > kFarOff)
    log_warn(
        fmt::format("{} skipped {:.1f} % of the units in training and skips {:.1f} % where no budget is "
                    "asked for: calibrate it, and ask for one",
                    method.name(), 100 * rule.trained, 100 * rule.served));
}

// Of the parts that have something to learn.
PartFigures Trainer::run_parts(const TrainStep& data, Measures measures) {
  const TrainConfig& config = recipe_.train;
  MethodPolicy& method = *recipe_.method;
  PartRunner::Options options;
  options.step = {true, config.seed, progress_.step,
                  method.share_at(progress_.step, config.schedule_steps, config.seed)};
  if (method.options().objective == Objective::kDistill) {
    options.step.learns_text = config.learns_text(progress_.step);
    if (!options.step.learns_text) options.teacher = &teacher_;
  }
  model_.lora.seed = dropout_seed(config.seed, progress_.step);
  options.recompute = config.recompute;
  options.measures = measures;
  PartRunner runner(ctx_, tape_, model_, method, options);
  for (const StagedPart& part : data.staged) {
    if (part.shape.wanted > 0) runner.run(part);
  }
  if (merged_) merged_->split_gradients(ctx_);
  method.adjust(ctx_, model_.config,
                parameters_->last_gradients(method_parameters_.size()));  // they come last
  return runner.finish(parameters_->gradients());
}

StepResult Trainer::step(const TrainStep& data, Measures measures) {
  const TrainConfig& config = recipe_.train;
  parameters_->zero_gradients(ctx_);
  if (merged_) merged_->zero_gradients(ctx_);
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
  if (merged_) merged_->merge(ctx_);
  recipe_.method->after_step(figures.of_method);
  progress_.mean_loss =
      progress_.step == 0 ? result.loss : kMeanMemory * progress_.mean_loss + (1 - kMeanMemory) * result.loss;
  ++progress_.step;
  progress_.ended = false;
  progress_.sample = data.first_sample + shape().samples();
  progress_.tokens += data.rows;
  return result;
}

bool Trainer::is_spike(double loss) const {
  const auto factor = static_cast<double>(recipe_.train.spike);
  return factor > 0 && progress_.step >= kSpikeWarmup && loss > factor * progress_.mean_loss;
}

double Trainer::validate() {
  if (!validation_) return -1;
  double total = 0, weight = 0;
  StagingRooms rooms(
      Device::kCpu);  // read at once: each batch's numbers may go before the device is waited for
  const int64_t count = std::min(recipe_.train.batch, validation_->samples());
  for (int64_t i = 0; i < recipe_.train.validation.batches && i * count < validation_->samples(); ++i) {
    const ArenaScope arena(ctx_);
    const TrainBatch part =
        validation_->batch(i * count, std::min(count, validation_->samples() - i * count), 0);
    if (part.weight_sum == 0) continue;
    const PartInput input = part_input(ctx_, stage_part(part, part.weight_sum, rooms));
    const auto state = recipe_.method->make_state(ctx_, model_.config, input.batch.sequences);
    const OutputRows output =
        forward_to_output(ctx_, model_, input.batch, FreshPass{}, *recipe_.method, *state);
    const Tensor ce = output_cross_entropy(ctx_, output, input.targets, input.weights);
    total += static_cast<double>(read_scalars(ctx_, std::span(&ce, 1))[0].as_float()) * part.weight_sum;
    weight += part.weight_sum;
  }
  if (weight == 0) fail("the validation data has nothing to predict");
  return total / weight;
}

}  // namespace fathom
