#include "base/error.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(Printable, LeavesTextAlone) {
  EXPECT_EQ(printable("blk.0.attn_q.weight"), "blk.0.attn_q.weight");
  EXPECT_EQ(printable("größe 中文 😀"), "größe 中文 😀");
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("a\x1b[31mb"), "a\\x1b[31mb");
  EXPECT_EQ(printable(std::string_view("a\0b\n\x7f", 5)), "a\\x00b\\x0a\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"), "\\xc2\\x9b") << "C1 control sequence introducer";
}

TEST(Printable, EscapesWhatIsNotUtf8) {
  EXPECT_EQ(printable("\xFF"), "\\xff");
  EXPECT_EQ(printable("\xE4\xB8"), "\\xe4\\xb8") << "cut short";
  EXPECT_EQ(printable("\xE4z"), "\\xe4z");
  EXPECT_EQ(printable("\x80"), "\\x80") << "no lead byte";
  EXPECT_EQ(printable("\xC0\x9B"), "\\xc0\\x9b") << "overlong ESC";
  EXPECT_EQ(printable("\xE0\x80\x9B"), "\\xe0\\x80\\x9b");
  EXPECT_EQ(printable("\xE0\x82\x9B"), "\\xe0\\x82\\x9b") << "overlong C1";
  EXPECT_EQ(printable("\xF0\x80\x82\x9B"), "\\xf0\\x80\\x82\\x9b");
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80") << "surrogate";
  EXPECT_EQ(printable("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "above U+10FFFF";
}

TEST(Printable, CutsLongNames) {
  EXPECT_EQ(printable(std::string(300, 'x')), std::string(200, 'x') + "…");
  EXPECT_EQ(printable("abcdef", 3), "abc…");
  EXPECT_EQ(printable("abc", 3), "abc");
}

TEST(NearestName, FindsASlipOfTheKeyboard) {
  const std::string names[] = {"temperature", "top_k", "top_p"};
  EXPECT_EQ(nearest_name("temprature", names, 3), "temperature");
  EXPECT_EQ(nearest_name("topk", names, 3), "top_k");
  EXPECT_EQ(nearest_name("zzzzzzzz", names, 3), "");
  EXPECT_EQ(nearest_name("x", names, 0), "");
}

TEST(Errors, AUsageErrorIsAUserError) {
  try {
    throw UsageError("a bad option");
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "a bad option");
  }
}

}  // namespace
}  // namespace fathom
