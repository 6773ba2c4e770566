// Drafts from the text so far: finds the earlier place whose preceding tokens resemble the text's end most.
// The tokens that followed there are the draft. (Saxena 2023: prompt lookup decoding; Yang et al. 2023.)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fathom {

// One text that only grows. Chains of the places of each pair of tokens, so that a step adds its new tokens
// and looks at a few places: neither its time nor its memory grows beyond the bounds below.
class LookupIndex {
 public:
  static constexpr int64_t kShortest = 2;         // tokens that a place must have in common with the end
  static constexpr int64_t kLongest = 32;         // more are not compared
  static constexpr int64_t kWindow = 1 << 15;     // places that are remembered: the newest
  static constexpr int64_t kMostCandidates = 64;  // places that are compared, the newest first
  static constexpr int64_t kBuckets = 1 << 13;

  struct Match {
    int64_t length = 0;  // tokens in common; 0: there is no such place
    int64_t next = 0;    // index of the token that followed there
  };
  // The place with most in common, the newest of equals. `history` begins with that of the call before.
  Match find(std::span<const int32_t> history);

  int64_t bytes() const;  // held

 private:
  void add(std::span<const int32_t> history, int64_t end);
  void grow();

  std::vector<int32_t> heads_;     // (kBuckets): the newest place of a bucket; -1: none
  std::vector<int32_t> previous_;  // (places, at most kWindow): by place % kWindow, the one before it
  int64_t known_ = kShortest;      // the first place that is not in the chains; a place is its `next`
};

// The token at `index` of a text that goes on with itself after its end, `match.next` being behind it.
int32_t continued(std::span<const int32_t> history, const LookupIndex::Match& match, int64_t index);

}  // namespace fathom
