// The counts of row sets. Kernels read them in device memory; a word of page-locked host memory beside each
// one tells the host, without a synchronisation, as soon as the selection has run.
#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "tensor/cuda_util.cuh"
#include "tensor/tensor.h"

namespace fathom {

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
};

namespace {

constexpr int64_t kRowTile = 128;

__global__ void set_count(int32_t* count, int32_t value) {
  *count = value;
}

std::shared_ptr<int32_t> owned(const std::shared_ptr<CountPool>& pool, int32_t* count) {
  return {count, [pool](int32_t* slot) { pool->give_back(slot); }};
}

CountPool::Slot take_slot(CudaHandle& handle, int32_t known) {
  if (!handle.counts) handle.counts = std::make_shared<CountPool>();
  return handle.counts->take(known);
}

// Until the selection has run. The stream is asked now and then: an error there would be waited for in vain.
int32_t wait_for(CudaHandle& handle, const CountPool::Slot& slot) {
  if (slot.known >= 0) return slot.known;
  const volatile uint64_t* word = slot.host;
  for (int polls = 1;; ++polls) {
    const uint64_t read = *word;
    if ((read ^ slot.tag) >> 32 == 0) return static_cast<int32_t>(static_cast<uint32_t>(read));
    if (polls % 1000 != 0) continue;
    const cudaError_t state = cudaStreamQuery(handle.stream);
    if (state == cudaErrorNotReady) continue;
    cuda_check(state, "a CUDA kernel before a count of rows");
    if ((*word ^ slot.tag) >> 32 != 0) throw std::runtime_error("a count of rows that no kernel has written");
  }
}

}  // namespace

std::shared_ptr<int32_t> cuda_count(CudaHandle& handle) {
  int32_t* slot = take_slot(handle, -1).device;  // makes the pool
  return owned(handle.counts, slot);
}

std::shared_ptr<int32_t> cuda_count(CudaHandle& handle, int32_t known) {
  int32_t* slot = take_slot(handle, known).device;
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

}  // namespace fathom
