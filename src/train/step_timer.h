// One training step over random tokens, to be timed: `fathom bench --train`.
#pragma once

#include <memory>
#include <string>

#include "skip/method_policy.h"
#include "tensor/tape.h"
#include "train/optimizer.h"
#include "train/parameters.h"
#include "train/prefetch.h"
#include "train/train_part.h"

namespace fathom {

struct StepTimerOptions {
  ModelConfig model;  // complete
  Precision precision = Precision::kBf16;
  int64_t batch = 8, context = 256;
  std::string method = R"({"name": "dense"})";
  // 0: every sequence is `context` long; otherwise documents of 1 … 2 · mean_document − 1 rows, as many rows
  // in all.
  int64_t mean_document = 0;
  int64_t rows() const { return batch * context; }
};

// With objective "distill" the teacher is the model as it starts.
class StepTimer {
 public:
  // tape: timers that take turns share its memory.
  StepTimer(Context& ctx, const StepTimerOptions& options, Tape& tape);

  struct Seconds {
    double all = 0;   // forward, loss, backward, the gradients' norm, AdamW
    double pass = 0;  // without the last one
    double data = 0;  // of `all`: until there was a batch
  };
  Seconds step();

  // Shares of the time of `steps` steps, one right after the other.
  struct Waits {
    double data = 0;    // the training thread waited for its next batch
    double counts = 0;  // a GPU had nothing to do, since the host waited for a count of rows
  };
  Waits waits(int steps);
  int64_t rows() const { return options_.rows(); }
  double skip_ratio() const { return skip_ratio_; }  // of the last step
  size_t state_bytes() const;                        // values, gradients and the optimiser's

 private:
  Context& ctx_;
  StepTimerOptions options_;
  std::unique_ptr<MethodPolicy> method_;
  Model model_;
  std::unique_ptr<ParameterSet> parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  Model teacher_;
  Tape& tape_;
  size_t own_ = 0;  // the method's parameters, which come last
  int64_t steps_ = 0;
  double skip_ratio_ = 0;
  Prefetcher ahead_;
};

}  // namespace fathom
