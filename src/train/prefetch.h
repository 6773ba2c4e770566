// Makes the data of the next training steps ready in a separate thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "train/dataset.h"

namespace fathom {

struct StepShape {
  int64_t batch = 1;       // samples of a micro-batch
  int64_t accumulate = 1;  // micro-batches of a step
  int64_t samples() const { return batch * accumulate; }
};

struct TrainStep {
  int64_t first_sample = 0;
  std::vector<TrainBatch> parts;
  double weight_sum = 0;  // over all parts: what the mean loss is divided by
  int64_t rows = 0;
};

TrainStep make_step(const Dataset& data, int64_t first_sample, StepShape shape);

class Prefetcher {
 public:
  Prefetcher(const Dataset& data, int64_t first_sample, StepShape shape, size_t ahead = 2);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  TrainStep next();  // what went wrong while it was made is thrown here

 private:
  void work();

  const Dataset& data_;
  int64_t sample_;
  StepShape shape_;
  size_t ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TrainStep> ready_;
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace fathom
