// The run around the steps: logs, validation, checkpoints, bad steps, the end.
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/format.h"
#include "base/log.h"
#include "train/event_file.h"
#include "train/train_bar.h"
#include "train/train_log.h"
#include "train/trainer.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

void Trainer::roll_back(const StepResult& bad, int64_t next_sample) {
  const std::string what =
      fmt::format("step {}: the loss is {} (running mean {:.4g}) and the gradients' norm {}",
                  progress_.step + 1, bad.loss, progress_.mean_loss, bad.gradient_norm);
  const auto place = newest_checkpoint(dir_);
  const std::string safe = place ? fmt::format("{} is as it was", place->path) : "there is no checkpoint yet";
  if (recipe_.train.on_nan == OnNan::kStop) fail("{}; {}", what, safe);
  if (!place || rolled_back_ >= recipe_.train.rollbacks)
    fail("{}, after {} roll-backs; {}", what, rolled_back_, safe);
  log_warn(fmt::format("{}; back to step {}, passing the data by", what, place->step));
  load(*place);
  progress_.sample = std::max(progress_.sample, next_sample);
  ++rolled_back_;
}

TrainResult Trainer::run(const std::atomic<bool>& stop) {
  const TrainConfig& config = recipe_.train;
  // A method without tensors on a frozen backbone (a static list of units) is done when it is prepared.
  const bool trains = parameters_->size() > 0;
  const int64_t last = trains ? config.last_step() : 0;
  std::error_code error;
  std::filesystem::create_directories(dir_, error);
  if (error) fail("cannot create the folder {}: {}", printable(dir_), error.message());
  remove_leftovers(dir_);
  TrainResult result;
  // A place to roll back to.
  if (config.on_nan == OnNan::kRollback && progress_.step == 0) result.checkpoint = checkpoint().path;
  TrainLog log(dir_ + "/log.jsonl", progress_.step);
  EventFile events(dir_ + "/events", progress_.step);
  TrainBar bar(progress_.step, last);
  auto ahead = std::make_unique<Prefetcher>(train_, progress_.sample, shape());

  const Clock::time_point start = Clock::now();
  Clock::time_point logged = start;
  int64_t tokens = 0, tokens_since = 0;
  StepFigures figures;
  while (progress_.step < last && !stop && !result.stopped_early) {
    const TrainStep data = ahead->next();
    const int64_t next = progress_.step + 1;
    const bool writes = next % config.log_every == 0 || next == last;
    const StepResult made = step(data, writes);
    if (!made.finite) {
      roll_back(made, data.first_sample + shape().samples());
      log.cut(progress_.step);
      ahead = std::make_unique<Prefetcher>(train_, progress_.sample, shape());
      continue;
    }
    tokens += made.rows, tokens_since += made.rows;
    figures.loss = made.loss;
    figures.skip_ratio = result.skip_ratio = made.skip_ratio;
    figures.tokens_per_s = static_cast<double>(tokens) / seconds_since(start);
    result.loss = made.loss;
    result.net_flops = made.net_flops;
    if (writes) result.ce = made.ce;

    const bool validates =
        validation_ && (next == last || (config.validation.every > 0 && next % config.validation.every == 0));
    if (validates) {
      result.validation_ce = validate();
      const bool better = progress_.best < 0 || result.validation_ce < progress_.best;
      progress_.worse = better ? 0 : progress_.worse + 1;
      if (better) progress_.best = result.validation_ce;
      result.stopped_early = config.validation.patience > 0 && progress_.worse >= config.validation.patience;
    }
    if (writes || validates) {
      Scalars scalars{{"loss", made.loss}};
      if (writes) scalars.emplace_back("ce", made.ce);
      scalars.emplace_back("lr", made.rate);
      scalars.emplace_back("tokens", static_cast<double>(progress_.tokens));
      scalars.emplace_back("tokens_per_s",
                           static_cast<double>(tokens_since) / std::max(1e-9, seconds_since(logged)));
      scalars.emplace_back("skip_ratio", made.skip_ratio);
      scalars.emplace_back("net_flops", made.net_flops);
      scalars.emplace_back("gradient_norm", made.gradient_norm);
      if (validates) scalars.emplace_back("validation_ce", result.validation_ce);
      log.write(progress_.step, scalars);
      events.write(progress_.step, scalars);
      logged = Clock::now();
      tokens_since = 0;
    }
    bar.show(progress_.step, figures);
    const bool saves = config.checkpoint.every > 0 && progress_.step % config.checkpoint.every == 0;
    if (saves && progress_.step < last) {
      result.checkpoint = checkpoint().path;
      rolled_back_ = 0;
    }
  }
  if (!trains && validation_) result.validation_ce = validate();
  result.interrupted = progress_.step < last && !result.stopped_early;
  if (!result.interrupted) finish_method();
  result.steps = progress_.step;
  result.tokens_per_s = figures.tokens_per_s;
  if (tokens > 0 || progress_.step > 0 || !trains) result.checkpoint = checkpoint().path;
  return result;
}

}  // namespace fathom
