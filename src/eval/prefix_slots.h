// Which tokens each sequence of the cache holds, so that what a new text begins with is not computed again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "infer/feeder.h"

namespace fathom {

class PrefixSlots {
 public:
  explicit PrefixSlots(Feeder& feeder);  // empties all sequences

  bool any_free() const { return taken_ < busy_.size(); }
  // The free sequence that holds the most of what `tokens` begins with.
  int32_t take(std::span<const int32_t> tokens);
  void give_back(int32_t slot);

  // Call it before the passes that feed `tokens`. The sequence goes back to the tokens that it has in common
  // with them, or becomes a fork of a sequence that has more of them in common; `most` rows at most. Returns
  // the rows it then holds, or -1 while another sequence is being fed the same first tokens: call it again
  // after the pass.
  int64_t begin(int32_t slot, std::span<const int32_t> tokens, int64_t most);
  // What a pass that has run fed.
  void fed(int32_t slot, std::span<const int32_t> tokens);

 private:
  Feeder& feeder_;
  std::vector<std::vector<int32_t>> held_;
  std::vector<std::vector<int32_t>> coming_;  // what a sequence will hold when it is fed; empty: it waits
  std::vector<bool> busy_;
  size_t taken_ = 0;
};

}  // namespace fathom
