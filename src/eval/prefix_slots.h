// Which tokens each sequence of the cache holds, so that what a new text begins with is not computed again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "infer/feeder.h"

namespace fathom {

class PrefixSlots {
 public:
  explicit PrefixSlots(Feeder& feeder);  // all sequences begin anew

  bool any_free() const { return taken_ < busy_.size(); }
  // The free sequence that holds the most of what `tokens` begins with.
  int32_t take(std::span<const int32_t> tokens);
  void give_back(int32_t slot);

  // The sequence goes back to what it has in common with `tokens`, and to `most` rows at most. -> the rows it
  // then holds
  int64_t rewind(int32_t slot, std::span<const int32_t> tokens, int64_t most);
  void fed(int32_t slot, std::span<const int32_t> tokens);

 private:
  Feeder& feeder_;
  std::vector<std::vector<int32_t>> held_;
  std::vector<bool> busy_;
  size_t taken_ = 0;
};

}  // namespace fathom
