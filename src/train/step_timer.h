// One training step over random tokens, to be timed: `fathom bench --train`.
#pragma once

#include <memory>
#include <string>

#include "skip/method_policy.h"
#include "tensor/tape.h"
#include "train/optimizer.h"
#include "train/parameters.h"
#include "train/train_part.h"

namespace fathom {

struct StepTimerOptions {
  ModelConfig model;  // complete
  Precision precision = Precision::kBf16;
  int64_t batch = 8, context = 256;
  std::string method = R"({"name": "dense"})";
};

class StepTimer {
 public:
  StepTimer(Context& ctx, const StepTimerOptions& options);

  struct Seconds {
    double all = 0;   // forward, loss, backward, the gradients' norm, AdamW
    double pass = 0;  // without the last one
  };
  Seconds step();
  int64_t rows() const { return options_.batch * options_.context; }
  double skip_ratio() const { return skip_ratio_; }  // of the last step
  size_t activation_bytes() const { return tape_.peak_bytes(); }
  size_t device_bytes() const;  // values, gradients, optimiser and activations

 private:
  TrainBatch random_part() const;

  Context& ctx_;
  StepTimerOptions options_;
  std::unique_ptr<MethodPolicy> method_;
  Model model_;
  std::unique_ptr<ParameterSet> parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  Tape tape_;
  int64_t steps_ = 0;
  double skip_ratio_ = 0;
};

}  // namespace fathom
