// One micro-batch of a training step: forward, loss, backward.
#pragma once

#include <vector>

#include "ops/loss/output_loss.h"
#include "ops/rows/read_scalars.h"
#include "skip/method_policy.h"
#include "tensor/tape.h"
#include "train/staged_part.h"

namespace fathom {

// A part as the model and the loss take it.
struct PartInput {
  Batch batch;
  Tensor targets, weights;  // i32, f32 (logit rows): of the rows that have something to predict
};
PartInput part_input(Context& ctx, const StagedPart& part);

// What a step measures besides its loss.
struct Measures {
  bool ce = false;    // the cross-entropy, whatever the loss is
  bool work = false;  // the multiply-adds of the forward pass; on a GPU, reading their counter is a wait
};

// What a step's parts gave, summed.
struct PartFigures {
  double loss = 0, ce = 0;
  double gradient_norm = 0;       // of all gradients together
  int64_t kept = 0, units = 0;    // (row, unit) pairs that ran, and all of them
  uint64_t madds = 0, dense = 0;  // multiply-adds of the forward pass, and a dense model's
  std::vector<float> of_method;   // MethodPolicy::figures()
  double skip_ratio() const;      // 0 where there were no parts
  double net_flops() const;       // 1 where there were no parts, or their work was not measured
};

// Runs the parts of one step: their gradients add up. Nothing waits for the device before finish(), however
// many parts there are.
class PartRunner {
 public:
  struct Options {
    TrainingStep step;
    const Model* teacher = nullptr;  // distils from it, at full depth; null: does not distil
    bool recompute = false;          // as TrainConfig::recompute
    Measures measures;
  };
  PartRunner(Context& ctx, Tape& tape, const Model& model, MethodPolicy& method, const Options& options)
      : ctx_(ctx), tape_(tape), model_(model), method_(method), options_(options) {}

  void run(const StagedPart& part);
  // After the last part: reads what the parts left on the device, the method's figures and the norm of
  // `gradients`, in one go.
  PartFigures finish(const Tensor& gradients);

 private:
  enum class Number : uint8_t { kLoss, kCe, kKept };

  OutputRows teach(const Batch& batch);
  OutputRows forward_counted(const Batch& batch, std::span<const BatchRow> rows, SkipState& state);
  Tensor loss_of(const StagedPart& part, SkipState& state, const PartInput& input);
  void keep_number(Number kind, const Tensor& number);
  void add_number(Number kind, Scalar value);

  Context& ctx_;
  Tape& tape_;
  const Model& model_;
  MethodPolicy& method_;
  Options options_;
  PartFigures figures_;
  std::vector<Tensor> numbers_;  // f32 or i32 (1) each, on the device until finish()
  std::vector<Number> kinds_;    // what each of them is
  int64_t parts_ = 0;
};

}  // namespace fathom
