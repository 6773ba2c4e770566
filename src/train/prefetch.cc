#include "train/prefetch.h"

#include <system_error>

namespace fathom {
namespace {

BatchMaker source_of(const Dataset& data) {
  return [&data](int64_t first, int64_t count, int64_t place) { return data.batch(first, count, place); };
}

}  // namespace

TrainStep make_step(const BatchMaker& data, int64_t first_sample, StepShape shape, StagingRooms& rooms) {
  TrainStep step;
  step.first_sample = first_sample;
  for (int64_t i = 0; i < shape.accumulate; ++i) {
    const int64_t place = i * shape.batch;
    step.parts.push_back(data(first_sample + place, shape.batch, place));
    step.weight_sum += step.parts.back().weight_sum;
    step.rows += step.parts.back().rows();
  }
  for (const TrainBatch& part : step.parts) step.staged.push_back(stage_part(part, step.weight_sum, rooms));
  return step;
}

TrainStep make_step(const Dataset& data, int64_t first_sample, StepShape shape) {
  StagingRooms rooms(Device::kCpu);
  return make_step(source_of(data), first_sample, shape, rooms);
}

Prefetcher::Prefetcher(const Dataset& data, int64_t first_sample, StepShape shape, Device device)
    : Prefetcher(source_of(data), first_sample, shape, device) {}

Prefetcher::Prefetcher(BatchMaker data, int64_t first_sample, StepShape shape, Device device)
    : data_(std::move(data)), sample_(first_sample), shape_(shape), rooms_(device) {
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error&) {  // no thread to be had: next() makes each step itself
  }
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Prefetcher::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || ready_.size() < kAhead; });
    if (stop_) return;
    lock.unlock();
    TrainStep step;
    std::exception_ptr error;
    try {
      step = make_step(data_, sample_, shape_, rooms_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    sample_ += shape_.samples();
    if (error)
      error_ = error;
    else
      ready_.push_back(std::move(step));
    changed_.notify_all();
    if (error) return;
  }
}

TrainStep Prefetcher::next() {
  if (!thread_.joinable()) {
    TrainStep step = make_step(data_, sample_, shape_, rooms_);
    sample_ += shape_.samples();
    return step;
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || error_; });
  if (ready_.empty()) std::rethrow_exception(error_);
  TrainStep step = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  return step;
}

}  // namespace fathom
