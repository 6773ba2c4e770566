// The slots of the cache: which lane is in which, and what other lanes can take from them. A lane begins with
// the longest beginning of its tokens that is in the cache already, forked from a sequence that runs or has
// ended.
#pragma once

#include "infer/feeder.h"
#include "infer/lane.h"

namespace fathom {

// Keys and values may be shared only where everything that made them is the same. One engine has one model,
// adapter and policy, and the decisions that a sequence holds are forked with it: what is left is the budget,
// and a salt of the requests that keeps their prompts apart.
struct PrefixKey {
  std::vector<float> thresholds;  // (2L), or empty: the method's own rule
  std::string salt;
  bool operator==(const PrefixKey&) const = default;
};

PrefixKey key_of(const Lane& lane);

// Tokens that both begin with.
int64_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b);

class Slots {
 public:
  // share: beginnings can be forked at all. keep: what a lane computed stays when it has ended.
  Slots(Feeder& feeder, bool share, bool keep);
  ~Slots();  // empties all of them

  // A place for a lane, if one is free and the pool has room for its tokens beside those that the others
  // still have to feed. What was kept is given up for it.
  bool place(Lane& lane, int64_t pass);
  // The lane goes; `finished`: with nothing wrong, so that what it computed can be kept.
  void leave(Lane& lane, bool finished, int64_t pass);

  // Returns how many of the lane's tokens it could take from the cache now.
  int64_t shared_with(const Lane& lane) const { return longest_prefix(lane).tokens; }

  bool fits(const Lane& lane, int64_t rows) const { return feeder_.cache().fits(lane.slot, rows); }
  // Before any of a pass's `rows` are reserved: where they might not fit, what skipped rows did not use is
  // given back. (On the CPU every pass has done so.)
  void make_ready(int64_t rows);
  // Gives up the least recently used kept sequence. Returns false when there is none.
  bool forget_oldest(int32_t but = -1);

 private:
  struct Slot {
    Lane* lane = nullptr;
    std::vector<int32_t> kept;  // tokens of a sequence that has ended
    PrefixKey key;
    int64_t used = 0;  // the last pass
    bool free() const { return !lane && kept.empty(); }
  };
  struct Prefix {
    int32_t slot = -1;
    int64_t tokens = 0;
  };
  std::span<const int32_t> tokens_in(const Slot& slot) const;
  Prefix longest_prefix(const Lane& lane) const;
  int32_t find_free() const;
  int64_t free_pages() const;
  bool settle();
  void set_budget(const Lane& lane);
  int64_t pages_to_come(int64_t tokens, int64_t held) const;
  bool has_room(const Lane& lane, int64_t held) const;

  Feeder& feeder_;
  const bool share_, keep_;
  std::vector<Slot> slots_;
};

}  // namespace fathom
