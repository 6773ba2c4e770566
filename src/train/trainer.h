// The training loop: forward, loss, backward, optimiser, and checkpoints, resuming and roll-back.
#pragma once

#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "tensor/tape.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/input_sums.h"
#include "train/merged_lora.h"
#include "train/optimizer.h"
#include "train/prefetch.h"
#include "train/train_part.h"
#include "train/training_data.h"

namespace fathom {

class SavedState;

// What one step gave.
struct StepResult {
  double loss = 0, ce = 0, gradient_norm = 0, rate = 0;
  double skip_ratio = 0;  // share of (row, unit) pairs that skipped
  double net_flops = 1;   // of the forward pass, against dense, when it was last measured
  int64_t rows = 0;
  bool finite = true;  // false: nothing was changed
};

// What the last steps gave, as a checkpoint keeps it.
struct LastFigures {
  double loss = NAN, ce = NAN, skip_ratio = 0, net_flops = 1;  // NaN: not measured yet
  double validation_ce = -1;                                   // below 0: nothing to validate on

  void take(const StepResult& step, bool has_ce) {
    loss = step.loss;
    skip_ratio = step.skip_ratio;
    net_flops = step.net_flops;
    if (has_ce) ce = step.ce;
  }
};

struct TrainResult : LastFigures {
  int64_t steps = 0;  // done in all, those before a resume included
  double tokens_per_s = 0;
  std::string checkpoint;       // the last one written
  std::string best_checkpoint;  // of the best validation; "": none
  bool interrupted = false, stopped_early = false;
};

class Trainer {
 public:
  // The model and the method's tensors become the run's: training moves them. They and the data outlive it.
  // The model is on the context's device (move_model in model/load.h).
  // resumes: resume() comes next, so what a checkpoint holds is not measured first. stop: ends what is
  // measured with PrepareCancelled; nothing has been written then.
  Trainer(Context& ctx, Recipe& recipe, Model& model, const TrainingData& data, std::string dir,
          bool resumes = false, const std::atomic<bool>* stop = nullptr);

  // Goes on from the newest whole checkpoint of the folder; false: there is none. Another recipe is refused
  // with the keys that differ.
  bool resume();

  // Until the last step, or until `stop` is set: then a checkpoint is written first. A device without enough
  // memory is a UserError that says what to lower, and which checkpoint there is.
  TrainResult run(const std::atomic<bool>& stop);

  // One step from this data. It waits for the device once, besides the waits for counts of rows.
  StepResult step(const TrainStep& data, Measures measures);
  double validate();                     // mean cross-entropy
  void save(const std::string& folder);  // the files of a checkpoint

  int64_t steps() const { return progress_.step; }
  ParameterSet& parameters() { return *parameters_; }

 private:
  // What a checkpoint says besides tensors.
  struct Progress {
    int64_t step = 0, sample = 0, tokens = 0;
    double mean_loss = 0;      // running, for spikes
    double best = -1;          // validation
    int64_t worse = 0;         // validations since
    int64_t best_step = -1;    // of the checkpoint with the best validation; -1: none yet
    double best_step_ce = -1;  // its validation
    LastFigures last;
    bool ended = false;  // what is fitted at the end is fitted
  };
  void add_lora(std::vector<ParameterSpec>& specs, bool merged);
  void start_from(const std::string& folder);
  void take_measured();
  void prepare(bool start, const std::atomic<bool>* stop);
  std::vector<Batch> first_batches(const Dataset& text, int64_t samples, int64_t most_tokens);
  void finish_method(const std::atomic<bool>& stop);
  void end_run(TrainResult& result, const std::atomic<bool>& stop, bool saves);
  void keep_density(const std::atomic<bool>& stop);
  PartFigures run_parts(const TrainStep& data, Measures measures);
  void load(const CheckpointPlace& place);
  std::vector<NamedTensor> load_factors(const std::string& checkpoint);
  void check_inputs(const SavedState& state, const CheckpointPlace& place) const;
  void load_tensors(const CheckpointPlace& place, int64_t optimizer_steps);
  bool is_early_stop() const;
  CheckpointPlace checkpoint(bool again = false);
  void make_folder();
  bool validates_after(int64_t step, int64_t last) const;
  bool take_validation();
  bool is_spike(double loss) const;
  TrainResult run_steps(const std::atomic<bool>& stop);
  // step(), whose lack of memory is a UserError that says what to lower.
  StepResult step_in_memory(const TrainStep& data, Measures measures);
  void roll_back(const StepResult& bad, int64_t next_sample);
  Model master_model() const;
  StepShape shape() const { return {recipe_.train.batch, recipe_.train.accumulate}; }

  Context& ctx_;
  Recipe& recipe_;
  Model& model_;
  Model teacher_;  // as it was before training, without a LoRA; only where the objective distils
  const Dataset& train_;
  const Dataset* validation_;  // null: there is none
  const Dataset& prepare_;     // the text that methods measure the model on
  std::string dir_;
  bool looked_ = false;                   // for a checkpoint to resume from
  std::optional<CheckpointPlace> found_;  // that one
  NamedSums base_sums_;                   // of a base that stays as it is, or that teaches
  std::vector<MethodParameter> method_parameters_;
  std::unique_ptr<ParameterSet> parameters_;
  std::unique_ptr<MergedLora> merged_;  // null: factors stand beside the weights, or there are none
  std::vector<float>
      base_projections_;  // of the weights before the factors went into them; empty: they did not
  std::unique_ptr<Optimizer> optimizer_;
  Schedule schedule_;
  Tape tape_;
  Progress progress_;
  std::string trained_rule_;  // AdapterExtra::trained, once training has ended
  double net_flops_ = 1;      // when they were last measured
  int64_t validated_ = -1;    // the step after which it was last validated
  int64_t rolled_back_ = 0;   // since the last checkpoint
};

}  // namespace fathom
