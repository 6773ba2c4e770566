// Makes the data of the next training steps ready in a separate thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "train/dataset.h"
#include "train/staged_part.h"

namespace fathom {

struct StepShape {
  int64_t batch = 1;       // samples of a micro-batch
  int64_t accumulate = 1;  // micro-batches of a step
  int64_t samples() const { return batch * accumulate; }
};

// A step's memory must stay until the device has been waited for. Trainer::step() and StepTimer::step() wait
// before they return.
struct TrainStep {
  int64_t first_sample = 0;
  std::vector<TrainBatch> parts;
  std::vector<StagedPart> staged;  // the same, as they go to the device
  double weight_sum = 0;           // over all parts: what the mean loss is divided by
  int64_t rows = 0;
};

// As Dataset::batch.
using BatchMaker = std::function<TrainBatch(int64_t first, int64_t count, int64_t place)>;

TrainStep make_step(const BatchMaker& data, int64_t first_sample, StepShape shape, StagingRooms& rooms);
TrainStep make_step(const Dataset& data, int64_t first_sample, StepShape shape);  // in ordinary memory

class Prefetcher {
 public:
  // device: where the steps will be uploaded to.
  Prefetcher(BatchMaker data, int64_t first_sample, StepShape shape, Device device = Device::kCpu);
  Prefetcher(const Dataset& data, int64_t first_sample, StepShape shape, Device device = Device::kCpu);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  TrainStep next();  // what went wrong while it was made is thrown here

 private:
  static constexpr size_t kAhead = 2;  // steps that wait for next()
  void work();

  BatchMaker data_;
  int64_t sample_;
  StepShape shape_;
  StagingRooms rooms_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TrainStep> ready_;
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace fathom
