#include "text/normalizer.h"

#include <gtest/gtest.h>

#include "text/unicode.h"

namespace fathom {
namespace {

TEST(Normalizer, NormalForms) {
  EXPECT_EQ(to_normal_form("cafe\u0301", NormalForm::kNfc), "caf\u00e9");
  EXPECT_EQ(to_normal_form("caf\u00e9", NormalForm::kNfd), "cafe\u0301");
  EXPECT_EQ(to_normal_form("\ufb01\u2460\u212b", NormalForm::kNfkc), "fi1\u00c5");
  EXPECT_EQ(to_normal_form("\u212b", NormalForm::kNfkd), "A\u030a");
  EXPECT_EQ(to_normal_form("\u1112\u1161\u11ab", NormalForm::kNfc), "\ud55c");
  EXPECT_EQ(to_normal_form("q\u0307\u0323", NormalForm::kNfc), "q\u0323\u0307");  // by combining class
  EXPECT_EQ(to_normal_form("\u0344", NormalForm::kNfc), "\u0308\u0301");          // excluded from composition
}

// Marks in the worst order, a hundred thousand of them: sorting them must not be quadratic.
TEST(Normalizer, ManyMarks) {
  std::string text = "a", sorted = "a";
  for (int i = 0; i < 100000; ++i) text += "\u0301";
  for (int i = 0; i < 100000; ++i) text += "\u0323";
  for (int i = 0; i < 100000; ++i) sorted += "\u0323";
  for (int i = 0; i < 100000; ++i) sorted += "\u0301";
  EXPECT_EQ(to_normal_form(text, NormalForm::kNfd), sorted);
}

TEST(Normalizer, Steps) {
  Normalizer normalizer;
  normalizer.add_strip(true, true);
  normalizer.add_lowercase();
  normalizer.add_replace(Regex("\\s+"), "_");
  normalizer.add_replace(std::string("b"), "c");
  normalizer.add_prepend(">");
  EXPECT_EQ(normalizer.apply(" \u00a0A  B\u0130 "), ">a_ci\u0307");
  EXPECT_EQ(normalizer.apply("  "), "");
}

TEST(StandIns, AreInvertible) {
  for (const std::string text :
       {"\xff", "a\xc3", "\xe2\x96z", "\xf4\x8f\xbf\xbf\xff", "\xed\xa0\x80", "ok \xf0\x9f\x98\x80 \x80"}) {
    const std::string changed = with_stand_ins(text);
    EXPECT_TRUE(is_valid_utf8(changed));
    EXPECT_EQ(without_stand_ins(changed), text);
  }
}

}  // namespace
}  // namespace fathom
