// The counts of row sets. Kernels read them in device memory; a word of page-locked host memory beside each
// one tells the host, without a synchronisation, as soon as the selection has run.
#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "tensor/cuda_idle.h"
#include "tensor/cuda_util.cuh"
#include "tensor/tensor.h"

namespace fathom {

// Pairs of events in a stream: the first when the host begins to wait for a count, behind all that was queued
// before, the second when it goes on. The time between them is the time in which the device had nothing to
// do.
class IdleTimes {
 public:
  ~IdleTimes() {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  void mark(cudaStream_t stream) {
    events_.emplace_back();
    cuda_check(cudaEventCreate(&events_.back()), "cudaEventCreate");
    cuda_check(cudaEventRecord(events_.back(), stream), "cudaEventRecord");
  }
  double seconds() const {  // after the stream has been waited for
    double sum = 0;
    for (size_t i = 0; i + 1 < events_.size(); i += 2) {
      float milliseconds = 0;
      cuda_check(cudaEventElapsedTime(&milliseconds, events_[i], events_[i + 1]), "cudaEventElapsedTime");
      sum += milliseconds / 1e3;
    }
    return sum;
  }

 private:
  std::vector<cudaEvent_t> events_;
};

// Hands out slots: a count on the device, and its word on the host. A slot that comes back may be handed out
// again while kernels that use it are still queued: on the device the stream's order keeps them apart, on the
// host the tag (how often the slot was handed out) says which selection wrote the word.
class CountPool {
 public:
  struct Slot {
    int32_t* device;
    uint64_t* host;
    uint64_t tag;   // in the upper half; the lower one is the count's
    int32_t known;  // -1: only the device knows
  };

  ~CountPool() {
    for (const Page& page : pages_) cudaFreeHost(page.host);
  }

  Slot take(int32_t known) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) add_page();
    const size_t index = free_.back();
    free_.pop_back();
    Page& page = pages_[index / kPage];
    ++page.tags[index % kPage];
    page.known[index % kPage] = known;
    return slot(page, index % kPage);
  }

  void give_back(const int32_t* device) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < pages_.size(); ++i) {
      if (pages_[i].holds(device)) free_.push_back(i * kPage + pages_[i].index_of(device));
    }
  }

  IdleTimes* idle() { return idle_.get(); }  // null: not measured
  void measure_idle() { idle_ = std::make_unique<IdleTimes>(); }
  std::unique_ptr<IdleTimes> take_idle() { return std::move(idle_); }

  // A slot that is handed out; its `device` is null where the pointer is not from here.
  Slot find(const int32_t* device) {
    const std::lock_guard lock(mutex_);
    for (Page& page : pages_) {
      if (page.holds(device)) return slot(page, page.index_of(device));
    }
    return {};
  }

 private:
  static constexpr size_t kPage = 4096;
  struct Page {
    std::shared_ptr<void> device;
    uint64_t* host;
    std::vector<uint32_t> tags;
    std::vector<int32_t> known;

    int32_t* counts() const { return static_cast<int32_t*>(device.get()); }
    bool holds(const int32_t* count) const { return count >= counts() && count < counts() + kPage; }
    size_t index_of(const int32_t* count) const { return static_cast<size_t>(count - counts()); }
  };

  static Slot slot(const Page& page, size_t i) {
    return {page.counts() + i, page.host + i, uint64_t{page.tags[i]} << 32, page.known[i]};
  }

  void add_page() {
    pages_.reserve(pages_.size() + 1);
    free_.reserve((pages_.size() + 1) * kPage);
    Page page{cuda_allocate_uninitialised(kPage * sizeof(int32_t)), nullptr, std::vector<uint32_t>(kPage),
              std::vector<int32_t>(kPage)};
    void* host = nullptr;
    cuda_check(cudaHostAlloc(&host, kPage * sizeof(uint64_t), cudaHostAllocMapped), "cudaHostAlloc");
    page.host = static_cast<uint64_t*>(host);
    std::fill_n(page.host, kPage, uint64_t{0});
    for (size_t i = kPage; i-- > 0;) free_.push_back(pages_.size() * kPage + i);
    pages_.push_back(std::move(page));
  }

  std::mutex mutex_;
  std::vector<Page> pages_;
  std::vector<size_t> free_;
  std::unique_ptr<IdleTimes> idle_;
};

namespace {

constexpr int64_t kRowTile = 128;

__global__ void set_count(int32_t* count, int32_t value) {
  *count = value;
}

std::shared_ptr<int32_t> owned(const std::shared_ptr<CountPool>& pool, int32_t* count) {
  return {count, [pool](int32_t* slot) { pool->give_back(slot); }};
}

CountPool& pool_of(CudaHandle& handle) {
  if (!handle.counts) handle.counts = std::make_shared<CountPool>();
  return *handle.counts;
}

bool is_written(const CountPool::Slot& slot) {
  const volatile uint64_t* word = slot.host;
  return (*word ^ slot.tag) >> 32 == 0;
}

// The stream is asked now and then: an error there would be waited for in vain.
void poll(CudaHandle& handle, const CountPool::Slot& slot) {
  for (int polls = 1; !is_written(slot); ++polls) {
    if (polls % 1000 != 0) continue;
    const cudaError_t state = cudaStreamQuery(handle.stream);
    if (state == cudaErrorNotReady) continue;
    cuda_check(state, "a CUDA kernel before a count of rows");
    if (!is_written(slot)) throw std::runtime_error("a count of rows that no kernel has written");
  }
}

// Until the selection has run.
int32_t wait_for(CudaHandle& handle, const CountPool::Slot& slot) {
  if (slot.known >= 0) return slot.known;
  if (!is_written(slot)) {
    IdleTimes* const idle = handle.counts->idle();
    if (idle) idle->mark(handle.stream);
    poll(handle, slot);
    if (idle) idle->mark(handle.stream);
  }
  return static_cast<int32_t>(static_cast<uint32_t>(*static_cast<const volatile uint64_t*>(slot.host)));
}

}  // namespace

std::shared_ptr<int32_t> cuda_count(CudaHandle& handle) {
  int32_t* slot = pool_of(handle).take(-1).device;  // makes the pool
  return owned(handle.counts, slot);
}

std::shared_ptr<int32_t> cuda_count(CudaHandle& handle, int32_t known) {
  int32_t* slot = pool_of(handle).take(known).device;
  const std::shared_ptr<int32_t> count = owned(handle.counts, slot);
  set_count<<<1, 1, 0, handle.stream>>>(slot, known);
  check_launch("known_count");
  return count;
}

DeviceCount device_count(CudaBackend dev, Tensor& count) {
  int32_t* data = count.data<int32_t>();
  const CountPool::Slot slot = dev.handle.counts ? dev.handle.counts->find(data) : CountPool::Slot{};
  return {data, slot.host, slot.tag};
}

int64_t present_rows(CudaBackend dev, const Tensor& t) {
  const int32_t* count = t.row_count();
  if (!count) return t.dim(0);
  if (const CountPool::Slot slot = dev.handle.counts ? dev.handle.counts->find(count) : CountPool::Slot{};
      slot.device)
    return wait_for(dev.handle, slot);
  int32_t copied = 0;  // made from host values, or by another handle
  cuda_copy(dev.handle, &copied, count, sizeof copied);
  cuda_wait(dev.handle);
  return copied;
}

int64_t bound(CudaBackend dev, const Tensor& t) {
  const int64_t rows = present_rows(dev, t);
  return std::min((rows + kRowTile - 1) / kRowTile * kRowTile, t.dim(0));
}

void cuda_measure_idle(CudaHandle& handle) {
  pool_of(handle).measure_idle();
}

double cuda_idle_seconds(CudaHandle& handle) {
  cuda_wait(handle);
  const std::unique_ptr<IdleTimes> times = pool_of(handle).take_idle();
  return times ? times->seconds() : 0;
}

}  // namespace fathom
