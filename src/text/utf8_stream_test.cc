#include "text/utf8_stream.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fathom {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

TEST(Utf8Stream, ReleasesACharacterWithItsLastByte) {
  Utf8Stream stream;
  EXPECT_EQ(stream.feed("a\xF0"), "a");
  EXPECT_EQ(stream.feed("\x9F"), "");
  EXPECT_EQ(stream.feed("\x98"), "");
  EXPECT_EQ(stream.held(), 3u);
  EXPECT_EQ(stream.feed("\x80!"), "\xF0\x9F\x98\x80!");
  EXPECT_EQ(stream.flush(), "");
}

TEST(Utf8Stream, InvalidBytesAreReplacedAsSoonAsTheyAreKnown) {
  Utf8Stream stream;
  EXPECT_EQ(stream.feed("\x80"), kBad);     // a continuation with nothing to continue
  EXPECT_EQ(stream.feed("\xE2\x82"), "");   // may still become €
  EXPECT_EQ(stream.feed("z"), kBad + "z");  // did not: one replacement for the two bytes
  EXPECT_EQ(stream.feed("\xC3"), "");
  EXPECT_EQ(stream.feed("\xC3"), kBad);  // the second C3 starts again
  EXPECT_EQ(stream.feed("\xA9"), "\xC3\xA9");
  EXPECT_EQ(stream.feed("\xE2\x82"), "");
  EXPECT_EQ(stream.flush(), kBad);
  EXPECT_EQ(stream.flush(), "");
}

// The expected texts are Python's bytes.decode("utf-8", "replace").
TEST(Utf8Stream, ReplacesLongestPrefixesAsPythonDoes) {
  EXPECT_EQ(to_valid_utf8("\xC0\xAF"), kBad + kBad);                        // overlong /
  EXPECT_EQ(to_valid_utf8("\xE0\x80\xAF"), kBad + kBad + kBad);             // overlong
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80"), kBad + kBad + kBad);             // surrogate
  EXPECT_EQ(to_valid_utf8("\xF4\x90\x80\x80"), kBad + kBad + kBad + kBad);  // past U+10FFFF
  EXPECT_EQ(to_valid_utf8("\xF0\x80\x80\x41"), kBad + kBad + kBad + "A");
  EXPECT_EQ(to_valid_utf8("\xF1\x80\x80\xE1\x80\xC2\x62"), kBad + kBad + kBad + "b");
  EXPECT_EQ(to_valid_utf8("\xFF\xFE"), kBad + kBad);
  EXPECT_EQ(to_valid_utf8("\xF4\x8F\xBF\xBF"), "\xF4\x8F\xBF\xBF");
  EXPECT_EQ(to_valid_utf8(std::string("a\0b", 3)), std::string("a\0b", 3));
}

TEST(Utf8Stream, CutsDoNotMatter) {
  Rng rng(7);
  for (int round = 0; round < 200; ++round) {
    std::string bytes;
    for (int i = 0; i < 40; ++i) {
      bytes += static_cast<char>(rng.below(3) ? 0x80 + rng.below(128) : rng.below(128));
    }
    Utf8Stream stream;
    std::string streamed;
    for (size_t at = 0; at < bytes.size();) {
      const size_t n = 1 + rng.below(4);
      streamed += stream.feed(std::string_view(bytes).substr(at, n));
      at += n;
      EXPECT_EQ(to_valid_utf8(streamed), streamed);  // never half a character
    }
    EXPECT_EQ(streamed + stream.flush(), to_valid_utf8(bytes));
  }
}

}  // namespace
}  // namespace fathom
