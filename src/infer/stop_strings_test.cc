#include "infer/stop_strings.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"

namespace fathom {
namespace {

TEST(StopStrings, MatchesAcrossPieces) {
  StopStrings stops({"</end>"});
  EXPECT_EQ(stops.feed("one <"), "one ");
  EXPECT_EQ(stops.feed("/en"), "");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.feed("d> two"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.matched(), "</end>");
  EXPECT_EQ(stops.feed("three"), "");
  EXPECT_EQ(stops.flush(), "");
}

TEST(StopStrings, GivesBackWhatDidNotBecomeAStop) {
  StopStrings stops({"</end>"});
  EXPECT_EQ(stops.feed("a </e"), "a ");
  EXPECT_EQ(stops.feed("x"), "</ex");
  EXPECT_EQ(stops.feed("</en"), "");
  EXPECT_EQ(stops.flush(), "</en");
  EXPECT_FALSE(stops.stopped());
}

TEST(StopStrings, HoldsTheLongestPossiblePrefix) {
  StopStrings stops({"aab"});
  EXPECT_EQ(stops.feed("aaa"), "a");  // "aa" may still begin "aab"
  EXPECT_EQ(stops.feed("b"), "");
  EXPECT_TRUE(stops.stopped());
}

TEST(StopStrings, TheMatchThatIsCompleteFirstWins) {
  StopStrings by_end({"abcd", "bc"});
  EXPECT_EQ(by_end.feed("xabcd"), "xa");
  EXPECT_EQ(by_end.matched(), "bc");
  StopStrings longest({"c", "abc"});
  EXPECT_EQ(longest.feed("xabc"), "x");
  EXPECT_EQ(longest.matched(), "abc");
}

TEST(StopStrings, NoneAndEmpty) {
  StopStrings none;
  EXPECT_EQ(none.feed("text"), "text");
  EXPECT_THROW(StopStrings({""}), UsageError);
}

// Two letters and short stops make every kind of overlap; the oracle feeds byte by byte and looks at the
// whole text.
TEST(StopStrings, CutsDoNotMatter) {
  Rng rng(11);
  const auto word = [&](uint32_t most) {
    std::string s;
    for (uint32_t n = 1 + rng.below(most); n > 0; --n) s += rng.below(2) ? 'a' : 'b';
    return s;
  };
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> stops{word(5), word(5), word(5)};
    const std::string text = word(30);
    std::string expected = text;
    for (size_t end = 1, found = 0; end <= text.size() && !found; ++end) {
      for (size_t start = 0; start < end && !found; ++start) {
        for (const std::string& stop : stops) {
          if (text.substr(start, end - start) != stop) continue;
          expected = text.substr(0, start);
          found = 1;
        }
      }
    }
    StopStrings matcher(stops);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + rng.below(6);
      shown += matcher.feed(text.substr(at, n));
      at += n;
    }
    EXPECT_EQ(shown + matcher.flush(), expected)
        << text << " stops " << stops[0] << " " << stops[1] << " " << stops[2];
  }
}

}  // namespace
}  // namespace fathom
