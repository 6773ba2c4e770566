// The training loop: forward, loss, backward, optimiser, and checkpoints, resuming and roll-back.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "tensor/tape.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/dataset.h"
#include "train/optimizer.h"
#include "train/prefetch.h"
#include "train/train_part.h"

namespace fathom {

// What one step gave.
struct StepResult {
  double loss = 0, ce = 0, gradient_norm = 0, rate = 0;
  double skip_ratio = 0;  // share of (row, unit) pairs that skipped
  double net_flops = 1;   // of the forward pass, against dense, when it was last measured
  int64_t rows = 0;
  bool finite = true;  // false: nothing was changed
};

struct TrainResult {
  int64_t steps = 0;  // done in all, those before a resume included
  double loss = 0, ce = 0, tokens_per_s = 0, skip_ratio = 0, net_flops = 1;
  double validation_ce = -1;  // below 0: nothing to validate on
  std::string checkpoint;     // the last one written
  bool interrupted = false, stopped_early = false;

  void take(const StepResult& step, bool has_ce) {
    loss = step.loss;
    skip_ratio = step.skip_ratio;
    net_flops = step.net_flops;
    if (has_ce) ce = step.ce;
  }
};

class Trainer {
 public:
  // The model and the method's tensors become the run's: training moves them. They and the data outlive it.
  // The model is on the context's device (move_model in model/load.h).
  // resumes: resume() comes next, so what a checkpoint holds is not measured first. stop: ends what is
  // measured with PrepareCancelled; nothing has been written then.
  Trainer(Context& ctx, Recipe& recipe, Model& model, const Dataset& train, const Dataset* validation,
          std::string dir, bool resumes = false, const std::atomic<bool>* stop = nullptr);

  // Goes on from the newest whole checkpoint of the folder; false: there is none. Another recipe is refused
  // with the keys that differ.
  bool resume();

  // Until the last step, or until `stop` is set: then a checkpoint is written first.
  TrainResult run(const std::atomic<bool>& stop);

  // One step from this data: it waits for the device once.
  StepResult step(const TrainStep& data, Measures measures);
  double validate();                     // mean cross-entropy
  void save(const std::string& folder);  // the files of a checkpoint

  int64_t steps() const { return progress_.step; }
  ParameterSet& parameters() { return *parameters_; }

 private:
  // What a checkpoint says besides tensors.
  struct Progress {
    int64_t step = 0, sample = 0, tokens = 0;
    double mean_loss = 0;  // running, for spikes
    double best = -1;      // validation
    int64_t worse = 0;     // validations since
  };
  void take_measured();
  void prepare(bool start, const std::atomic<bool>* stop);
  void finish_method();
  std::vector<Tensor> method_gradients() const;
  PartFigures run_parts(const TrainStep& data, Measures measures);
  void load(const CheckpointPlace& place);
  CheckpointPlace checkpoint();
  void make_folder();
  bool validates_after(int64_t step, int64_t last) const;
  void take_validation(TrainResult& result);
  bool is_spike(double loss) const;
  void roll_back(const StepResult& bad, int64_t next_sample);
  Model master_model() const;
  StepShape shape() const { return {recipe_.train.batch, recipe_.train.accumulate}; }

  Context& ctx_;
  Recipe& recipe_;
  Model& model_;
  Model teacher_;  // as it was before training; only where the objective distils
  const Dataset& train_;
  const Dataset* validation_;
  std::string dir_;
  std::vector<MethodParameter> method_parameters_;
  std::unique_ptr<ParameterSet> parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  Schedule schedule_;
  Tape tape_;
  Progress progress_;
  double net_flops_ = 1;     // when they were last measured
  int64_t rolled_back_ = 0;  // since the last checkpoint
};

}  // namespace fathom
