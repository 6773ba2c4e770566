// Which pages of the cache's pool are in use, and by how many sequences. Host only: contents live elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fathom {

inline constexpr int32_t kNoPage = -1;  // where one was

class PagePool {
 public:
  explicit PagePool(int64_t pages);

  int64_t size() const { return static_cast<int64_t>(pages_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t used() const { return size() - free(); }

  // A page for the slots [index · page size, …) of a layer: the caller has seen that one is free.
  int32_t take(int64_t layer, int64_t index);
  void share(int32_t page) { ++at(page).holders; }  // one sequence more holds it
  void release(int32_t page);                       // one less; the last one frees it
  bool shared(int32_t page) const { return at(page).holders > 1; }
  int64_t layer(int32_t page) const { return at(page).layer; }
  int64_t index(int32_t page) const { return at(page).index; }  // of the sequence's pages of that layer

 private:
  struct Page {
    int32_t holders = 0, layer = 0, index = 0;
  };
  Page& at(int32_t page) { return pages_[static_cast<size_t>(page)]; }
  const Page& at(int32_t page) const { return pages_[static_cast<size_t>(page)]; }

  std::vector<Page> pages_;
  std::vector<int32_t> free_;
};

}  // namespace fathom
