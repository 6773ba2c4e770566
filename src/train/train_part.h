// One micro-batch of a training step: forward, loss, backward.
#pragma once

#include <vector>

#include "skip/method_policy.h"
#include "tensor/tape.h"
#include "train/dataset.h"

namespace fathom {

std::vector<BatchRow> rows_of(const TrainBatch& part);

// A part as the model and the loss take it.
struct PartInput {
  std::vector<BatchRow> rows;
  Batch batch;
  Tensor targets, weights;  // i32, f32 (logit rows): of the rows that have something to predict
};
// weight_sum: of the whole step; the weights are divided by it.
PartInput part_input(Context& ctx, const TrainBatch& part, double weight_sum);

// What a step's parts gave, summed.
struct PartFigures {
  double loss = 0, ce = 0;
  int64_t kept = 0, units = 0;    // (row, unit) pairs that ran, and all of them
  uint64_t madds = 0, dense = 0;  // multiply-adds of the forward pass, and a dense model's
  double skip_ratio() const;      // 0 where there were no parts
  double net_flops() const;       // 1 where there were no parts
};

double value_of(Context& ctx, const Tensor& scalar);

// Runs the parts of one step: their gradients add up.
class PartRunner {
 public:
  struct Options {
    TrainingStep step;
    const Model* teacher = nullptr;  // distils from it, at full depth; null: does not distil
    bool recompute = false;          // as TrainConfig::recompute
  };
  PartRunner(Context& ctx, Tape& tape, const Model& model, MethodPolicy& method, const Options& options)
      : ctx_(ctx), tape_(tape), model_(model), method_(method), options_(options) {}

  // weight_sum: of the step. want_ce: measure the cross-entropy as well, whatever the loss is.
  void run(const TrainBatch& part, double weight_sum, bool want_ce);
  const PartFigures& figures() const { return figures_; }

 private:
  Tensor teach(const Batch& batch);
  Tensor forward_counted(const PartInput& input, SkipState& state);

  Context& ctx_;
  Tape& tape_;
  const Model& model_;
  MethodPolicy& method_;
  Options options_;
  PartFigures figures_;
  int64_t parts_ = 0;
};

}  // namespace fathom
