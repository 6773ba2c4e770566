// The run around the steps: logs, validation, checkpoints, bad steps, the end.
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/clock.h"
#include "base/format.h"
#include "base/log.h"
#include "base/out_of_memory.h"
#include "infer/calibration_run.h"
#include "train/event_file.h"
#include "train/train_bar.h"
#include "train/train_log.h"
#include "train/trainer.h"

namespace fathom {
namespace {

// Tokens in all and since the last line of the log, and how long they took.
class Rate {
 public:
  // waited: seconds until there was a batch
  void add(int64_t tokens, double waited) {
    all_ += tokens;
    since_ += tokens;
    waited_ += waited;
  }
  int64_t tokens() const { return all_; }
  double mean() const { return static_cast<double>(all_) / seconds_since(start_); }
  struct Since {
    double tokens_per_s, waited_share;
  };
  // Since the last call.
  Since take() {
    const double seconds = std::max(1e-9, seconds_since(taken_));
    const Since since{static_cast<double>(since_) / seconds, waited_ / seconds};
    taken_ = Clock::now();
    since_ = 0;
    waited_ = 0;
    return since;
  }

 private:
  int64_t all_ = 0, since_ = 0;
  double waited_ = 0;
  Clock::time_point start_ = Clock::now(), taken_ = start_;
};

// What is due once a step is done.
struct Due {
  int64_t step;
  bool log, validation;
  Measures measures() const { return {.ce = log, .work = log || validation}; }
};

// log.jsonl, the event file and the bar.
class RunReport {
 public:
  RunReport(const std::string& dir, int64_t step, int64_t last)
      : log_(dir + "/log.jsonl", step), events_(dir + "/events", step), bar_(step, last) {}

  void add(const StepResult& made, double waited) {
    rate_.add(made.rows, waited);
    figures_ = {made.loss, rate_.mean(), made.skip_ratio};
  }
  // Shows a step that is done, and writes it where that is due. tokens: of the run, those before a resume
  // included.
  void step(const Due& due, int64_t tokens, const StepResult& made, double validation_ce) {
    if (due.log || due.validation)
      write(due.step, tokens, made, due.log ? &made.ce : nullptr, due.validation ? &validation_ce : nullptr);
    bar_.show(due.step, figures_);
  }
  void cut(int64_t step) { log_.cut(step); }

  bool any() const { return rate_.tokens() > 0; }
  double tokens_per_s() const { return figures_.tokens_per_s; }

 private:
  // ce, validation_ce: null where they were not measured.
  void write(int64_t step, int64_t tokens, const StepResult& made, const double* ce,
             const double* validation_ce) {
    Scalars scalars{{"loss", made.loss}};
    if (ce) scalars.emplace_back("ce", *ce);
    scalars.emplace_back("lr", made.rate);
    scalars.emplace_back("tokens", static_cast<double>(tokens));
    const Rate::Since since = rate_.take();
    scalars.emplace_back("tokens_per_s", since.tokens_per_s);
    scalars.emplace_back("waits_data", since.waited_share);
    scalars.emplace_back("skip_ratio", made.skip_ratio);
    scalars.emplace_back("net_flops", made.net_flops);
    scalars.emplace_back("gradient_norm", made.gradient_norm);
    if (validation_ce) scalars.emplace_back("validation_ce", *validation_ce);
    log_.write(step, scalars);
    events_.write(step, scalars);
  }

  TrainLog log_;
  EventFile events_;
  TrainBar bar_;
  Rate rate_;
  StepFigures figures_;
};

// Where a run may stop early, its best step is kept.
bool is_checkpoint_due(const TrainConfig& config, int64_t step, bool best) {
  const bool regular = config.checkpoint.every > 0 && step % config.checkpoint.every == 0;
  return regular || (best && config.validation.patience > 0);
}

// What a run that ends early leaves behind.
std::string safe_text(const std::optional<CheckpointPlace>& place) {
  return place ? fmt::format("{} is as it was", place->path) : "there is no checkpoint yet";
}

}  // namespace

void Trainer::roll_back(const StepResult& bad, int64_t next_sample) {
  const std::string what =
      fmt::format("step {}: the loss is {} (running mean {:.4g}) and the gradients' norm {}",
                  progress_.step + 1, bad.loss, progress_.mean_loss, bad.gradient_norm);
  const auto place = newest_checkpoint(dir_);
  const std::string safe = safe_text(place);
  if (recipe_.train.on_nan == OnNan::kStop) fail("{}; {}", what, safe);
  if (!place || rolled_back_ >= recipe_.train.rollbacks)
    fail("{}, after {} roll-backs; {}", what, rolled_back_, safe);
  log_warn(fmt::format("{}; back to step {}, passing the data by", what, place->step));
  load(*place);
  progress_.sample = std::max(progress_.sample, next_sample);
  ++rolled_back_;
}

void Trainer::make_folder() {
  std::error_code error;
  std::filesystem::create_directories(dir_, error);
  if (error) fail("cannot create the folder {}: {}", printable(dir_), error.message());
  check_run_folder(dir_, progress_.step);
  remove_leftovers(dir_);
}

bool Trainer::validates_after(int64_t step, int64_t last) const {
  const int64_t every = recipe_.train.validation.every;
  return validation_ && (step == last || (every > 0 && step % every == 0));
}

// Returns whether it is the best so far.
bool Trainer::take_validation() {
  progress_.last.validation_ce = validate();
  validated_ = progress_.step;
  const bool better = progress_.best < 0 || progress_.last.validation_ce < progress_.best;
  progress_.worse = better ? 0 : progress_.worse + 1;
  if (better) progress_.best = progress_.last.validation_ce;
  return better;
}

bool Trainer::is_early_stop() const {
  const int64_t patience = recipe_.train.validation.patience;
  return patience > 0 && progress_.worse >= patience;
}

TrainResult Trainer::run(const std::atomic<bool>& stop) {
  try {
    return run_steps(stop);
  } catch (
      const OutOfMemory& error) {  // in what comes between steps: a validation, a checkpoint, what is fitted
    fail("after step {}: {}; lower batch or context; {}", progress_.step, error.facts(),
         safe_text(newest_checkpoint(dir_)));
  }
}

StepResult Trainer::step_in_memory(const TrainStep& data, Measures measures) {
  try {
    return step(data, measures);
  } catch (const OutOfMemory& error) {
    fail("step {}: {}; lower batch or context{}; {}", progress_.step + 1, error.facts(),
         recipe_.train.recompute ? "" : ", or set recompute", safe_text(newest_checkpoint(dir_)));
  }
}

TrainResult Trainer::run_steps(const std::atomic<bool>& stop) {
  const TrainConfig& config = recipe_.train;
  // A method without tensors on a frozen backbone (a static list of units) is done when it is prepared.
  const bool trains = parameters_->size() > 0;
  const int64_t last = trains ? config.last_step() : 0;
  make_folder();
  TrainResult result;
  result.stopped_early = is_early_stop();  // before a resume, perhaps
  // A place to roll back to.
  if (config.on_nan == OnNan::kRollback && progress_.step == 0) result.checkpoint = checkpoint().path;
  RunReport report(dir_, progress_.step, last);
  const auto data_from_here = [&] {
    return std::make_unique<Prefetcher>(train_, progress_.sample, shape(), ctx_.device());
  };
  auto ahead = data_from_here();
  while (progress_.step < last && !stop && !result.stopped_early) {
    const Clock::time_point asked = Clock::now();
    const TrainStep data = ahead->next();
    const double waited = seconds_since(asked);
    const int64_t next = progress_.step + 1;
    const Due due{next, next % config.log_every == 0 || next == last, validates_after(next, last)};
    const StepResult made = step_in_memory(data, due.measures());
    if (!made.finite) {
      roll_back(made, data.first_sample + shape().samples());
      report.cut(progress_.step);
      ahead = data_from_here();
      continue;
    }
    report.add(made, waited);
    progress_.last.take(made, due.log);
    const bool best = due.validation && take_validation();
    result.stopped_early = is_early_stop();
    report.step(due, progress_.tokens, made, progress_.last.validation_ce);
    // What the last step leaves is saved below, with what the method fits at the end.
    const bool ends = next == last || result.stopped_early;
    if (!ends && is_checkpoint_due(config, next, best)) {
      result.checkpoint = checkpoint().path;
      rolled_back_ = 0;
    }
  }
  if (!trains && validation_) progress_.last.validation_ce = validate();
  result.interrupted = progress_.step < last && !result.stopped_early;
  result.tokens_per_s = report.tokens_per_s();
  end_run(result, stop, report.any() || progress_.step > 0 || !trains);
  return result;
}

// saves: there is something to save. A checkpoint of the last step that is there already, from before the
// end was fitted, is written again.
void Trainer::end_run(TrainResult& result, const std::atomic<bool>& stop, bool saves) {
  const bool ends = !result.interrupted && !progress_.ended;
  try {
    if (ends) {
      finish_method(stop);
      keep_density(stop);
      progress_.ended = true;
    }
  } catch (const PrepareCancelled&) {
    result.interrupted = true;
  } catch (const CalibrationCancelled&) {
    result.interrupted = true;
  }
  static_cast<LastFigures&>(result) = progress_.last;
  result.steps = progress_.step;
  const bool fitted = recipe_.method->fits_at_end() || !trained_rule_.empty();
  if (saves) result.checkpoint = checkpoint(ends && progress_.ended && fitted).path;
  if (progress_.best_step >= 0) result.best_checkpoint = fmt::format("{}/step-{}", dir_, progress_.best_step);
}

}  // namespace fathom
