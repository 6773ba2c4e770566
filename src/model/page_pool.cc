#include "model/page_pool.h"

namespace fathom {

PagePool::PagePool(int64_t pages) : pages_(static_cast<size_t>(pages)) {
  free_.reserve(pages_.size());
  for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

int32_t PagePool::take(int64_t layer, int64_t index) {
  const int32_t page = free_.back();
  free_.pop_back();
  at(page) = {1, static_cast<int32_t>(layer), static_cast<int32_t>(index)};
  return page;
}

void PagePool::release(int32_t page) {
  if (--at(page).holders == 0) free_.push_back(page);
}

}  // namespace fathom
