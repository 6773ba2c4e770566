#include "infer/lookup.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "infer/draft_length.h"

namespace fathom {
namespace {

using Tokens = std::vector<int32_t>;
using Match = LookupIndex::Match;

Match find_in(const Tokens& text) {
  LookupIndex index;
  return index.find(text);
}

Tokens drafts_of(const Tokens& text, int64_t count) {
  const Match match = find_in(text);
  Tokens drafts;
  for (int64_t i = 0; i < count && match.length > 0; ++i) drafts.push_back(continued(text, match, i));
  return drafts;
}

TEST(Lookup, TheLongestThenTheNewest) {
  EXPECT_EQ(find_in({1, 2, 3, 4}).length, 0);
  EXPECT_EQ(find_in({1}).length, 0);
  EXPECT_EQ(find_in({}).length, 0);
  EXPECT_EQ(find_in({2, 1, 3, 1}).length, 0) << "one token is too little";
  EXPECT_EQ(drafts_of({5, 1, 2, 7, 8, 1, 2}, 2), (Tokens{7, 8}));
  EXPECT_EQ(drafts_of({5, 1, 2, 7, 9, 1, 2, 8, 9, 5, 1, 2}, 1), Tokens{7}) << "three in common, not two";
  EXPECT_EQ(drafts_of({4, 1, 2, 7, 9, 1, 2, 8, 9, 5, 1, 2}, 1), Tokens{8}) << "the newest of equals";
  // At the end of the text it goes on with itself.
  EXPECT_EQ(drafts_of({3, 1, 2, 6, 1, 2}, 7), (Tokens{6, 1, 2, 6, 1, 2, 6}));
  EXPECT_EQ(drafts_of({9, 4, 4, 4}, 3), (Tokens{4, 4, 4}));
  Tokens twice;
  for (int round = 0; round < 2; ++round) {
    for (int32_t i = 0; i < 50; ++i) twice.push_back(i);
  }
  twice.resize(90);
  EXPECT_EQ(find_in(twice).length, LookupIndex::kLongest);
  EXPECT_EQ(find_in(twice).next, 40);
}

// Against every place of the text, as the text grows.
TEST(Lookup, FindsWhatASearchFinds) {
  for (const uint32_t vocab : {2u, 5u, 30u}) {
    Rng rng(vocab);
    LookupIndex index;
    Tokens text;
    int64_t found = 0;
    for (int step = 0; step < 60; ++step) {
      for (int64_t i = 1 + rng.below(2); i > 0; --i) text.push_back(static_cast<int32_t>(rng.below(vocab)));
      const auto size = std::ssize(text);
      Match best;
      for (int64_t place = size - 1; place >= LookupIndex::kShortest && size - place <= 64; --place) {
        int64_t length = 0;
        while (length < std::min(place, LookupIndex::kLongest) &&
               text[static_cast<size_t>(place - 1 - length)] == text[static_cast<size_t>(size - 1 - length)])
          ++length;
        if (length >= LookupIndex::kShortest && length > best.length) best = {length, place};
      }
      const Match match = index.find(text);
      if (size <= 64) {
        EXPECT_EQ(match.length, best.length) << size;
        EXPECT_EQ(match.next, best.next) << size;
      }
      const Match anew = find_in(text);
      EXPECT_EQ(match.length, anew.length);
      EXPECT_EQ(match.next, anew.next);
      found += match.length > 0;
    }
    EXPECT_GT(found, 0);
  }
}

TEST(Lookup, MemoryIsBounded) {
  LookupIndex index;
  Rng rng(3);
  Tokens text{1000001, 1000002, 1000003};
  constexpr int64_t kMost = (LookupIndex::kBuckets + LookupIndex::kWindow) * 4;
  while (std::ssize(text) < 3 * LookupIndex::kWindow) {
    for (int i = 0; i < 1000; ++i) text.push_back(static_cast<int32_t>(rng.below(50000)));
    index.find(text);
    EXPECT_LE(index.bytes(), kMost);
  }
  EXPECT_EQ(index.bytes(), kMost);
  text.insert(text.end(), {1000001, 1000002});
  EXPECT_EQ(index.find(text).length, 0) << "too long ago";
  for (int i = 0; i < 2000; ++i) text.push_back(static_cast<int32_t>(rng.below(50000)));
  text.insert(text.end(), {1000001, 1000002});
  EXPECT_EQ(index.find(text).length, 2);
}

// Passes that `tokens` tokens took where each looked-up draft stays with the given chance; a match in
// `share` of the places.
double passes_for(double chance, double share, int64_t tokens, int64_t* longest = nullptr) {
  const DraftCost cost;
  LookupLength length = LookupLength::adaptive(cost);
  Rng rng(5);
  double passes = 0;
  for (int64_t made = 0; made < tokens;) {
    const bool found = rng.uniform_double() < share;
    const int64_t match = 2 + rng.below(12), drafts = found ? length.next(match, 16) : 0;
    if (longest) *longest = std::max(*longest, drafts);
    if (drafts == 0) {
      length.plain();
      ++made;
      ++passes;
      continue;
    }
    int64_t accepted = 0;
    while (accepted < drafts && rng.uniform_double() < chance) ++accepted;
    length.round(match, drafts, accepted);
    made += accepted + 1;
    passes += cost.pass(drafts + 1);
  }
  return passes / static_cast<double>(tokens);
}

TEST(LookupLength, CostsLittleWhereItDoesNotPay) {
  for (const double chance : {0.0, 0.05, 0.1, 0.3}) {
    for (const double share : {0.1, 0.5, 1.0}) {
      for (const int64_t tokens : {8, 16, 32, 64, 128, 2000}) {
        const double most = 1 + kDraftStake + LookupLength::kCredit / static_cast<double>(tokens);
        EXPECT_LE(passes_for(chance, share, tokens), most) << chance << " " << share << " " << tokens;
      }
    }
  }
  EXPECT_LT(passes_for(0, 1, 20000), 1.03) << "what never stays is drafted ever less";
}

TEST(LookupLength, UsesWhatPays) {
  int64_t longest = 0;
  EXPECT_LT(passes_for(0.98, 1, 1000, &longest), 0.45);
  EXPECT_GE(longest, 7);
  EXPECT_LT(passes_for(0.6, 0.5, 1000), 0.9);
  EXPECT_EQ(LookupLength::fixed(5).next(2, 16), 5);
  EXPECT_EQ(LookupLength::fixed(5).next(2, 3), 3);
  EXPECT_LE(LookupLength::fixed(5).next(2, -1), 0);
  // A long match is worth more drafts than a short one, and whole fours are filled.
  const LookupLength fresh = LookupLength::adaptive({.row = 0.01, .first_four = 1.02, .further_four = 0.1});
  EXPECT_GT(fresh.next(16, 16), fresh.next(2, 16));
}

// Lookup, the model or neither, by counts alone.
TEST(DraftLengths, TheBetterSourceDrafts) {
  DraftLengths both(LookupLength::adaptive({}, kDraftStake / 2));
  both.model = DraftLength::adaptive({.draft = 0.3}, kDraftStake / 2);
  EXPECT_EQ(both.next(0, 16).drafts, 0) << "nothing is found, and nothing is laid by for the model's drafts";
  DraftLengths::Choice choice = both.next(9, 16);
  EXPECT_TRUE(choice.looked_up);
  EXPECT_GT(choice.drafts, 0);
  EXPECT_EQ(both.next(9, 0).drafts, 0);
  for (int i = 0; i < 60; ++i) both.plain();
  EXPECT_GT(both.next(0, 16).drafts, 0) << "the model's turn";
  EXPECT_FALSE(both.next(0, 16).looked_up);
  EXPECT_TRUE(both.next(9, 16).looked_up);
  // Lookups that never stay lose against drafts of the model that do.
  for (int i = 0; i < 40; ++i) {
    both.lookup->round(9, 1, 0);
    both.model->round(2, 2);
  }
  for (int i = 0; i < 200; ++i) both.plain();
  choice = both.next(9, 16);
  EXPECT_FALSE(choice.looked_up);
  EXPECT_GT(choice.drafts, 0);
}

}  // namespace
}  // namespace fathom
