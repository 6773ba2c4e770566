// Token strings and their ids, both ways. Ids may have gaps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

uint64_t hash_bytes(std::string_view bytes);

class Vocabulary {
 public:
  void reserve(size_t tokens, size_t bytes);

  // False when the id is taken. A text that is there already keeps its first id for find().
  bool add(std::string_view text, int32_t id);

  int32_t find(std::string_view text) const { return find(text, hash_bytes(text)); }  // -1: none
  int32_t find(std::string_view text, uint64_t hash) const;
  bool has(int32_t id) const { return id >= 0 && id < size() && spans_[id].size != kNone; }
  std::string_view text(int32_t id) const;                              // "" where there is no such id
  int32_t size() const { return static_cast<int32_t>(spans_.size()); }  // largest id + 1
  size_t count() const { return count_; }
  size_t distinct() const { return used_; }    // texts; less than count() when one came twice
  size_t longest() const { return longest_; }  // bytes of the longest text

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Span {
    uint32_t begin = 0, size = kNone;
  };
  struct Slot {
    uint32_t hash = 0;
    int32_t id = -1;
  };
  void grow(size_t slots);
  bool insert_slot(std::string_view text, int32_t id);

  std::string bytes_;
  std::vector<Span> spans_;  // by id
  std::vector<Slot> slots_;  // open addressing, a power of two
  size_t count_ = 0, used_ = 0, longest_ = 0;
};

// One past the largest id that a vocabulary of `entries` tokens may have: gaps are allowed, huge ids are not
// (they would be an allocation that a few bytes of file ask for).
int64_t id_limit(size_t entries);

}  // namespace fathom
