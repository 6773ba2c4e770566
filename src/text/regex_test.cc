#include "text/regex.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/regex_syntax.h"
#include "text/unicode.h"

namespace fathom {
namespace {

// The stretches, matches in brackets.
std::string cut(const std::string& pattern, const std::string& text) {
  std::vector<TextSpan> spans;
  Regex(pattern).split(text, spans);
  std::string out;
  for (const TextSpan& span : spans) {
    const std::string part = text.substr(span.begin, span.end - span.begin);
    out += span.match ? "[" + part + "]" : part;
  }
  return out;
}

TEST(Regex, CutsIntoMatchesAndTheRest) {
  EXPECT_EQ(cut("a+", "baab"), "b[aa]b");
  EXPECT_EQ(cut("a", "aa"), "[a][a]");
  EXPECT_EQ(cut("x", "ab"), "ab");
  EXPECT_EQ(cut("x", ""), "");
  EXPECT_EQ(cut("(?=b)", "abab"), "a[]ba[]b");  // empty matches cut
  EXPECT_EQ(cut("a*", "baac"), "[]b[aa]c[]");   // but not right after a match
  EXPECT_EQ(cut("é", "aéé"), "a[é][é]");
}

// What Oniguruma, as the tokenizers package calls it, makes of these: checked against that package.
TEST(Regex, OnigurumaSyntax) {
  EXPECT_EQ(cut(R"(\s+$)", "a  \nb  \n"), "a[  ]\nb[  \n]");
  EXPECT_EQ(cut("^b", "a\nb\nb"), "a\n[b]\n[b]");
  EXPECT_EQ(cut("a{,2}", "aaab"), "[aa][a]b[]");
  EXPECT_EQ(cut("(?m:a.)", "a\nb"), "[a\n]b");
  EXPECT_EQ(cut("a.b", "a\nb"), "a\nb");
  EXPECT_EQ(cut(R"(\u0061)", "ba"), "b[a]");
  EXPECT_EQ(cut(R"(\h+)", "xyz1fg \t"), "xyz[1f]g \t");
  EXPECT_EQ(cut(R"(\v)", "a\vb\nc"), "a[\v]b\nc");
  EXPECT_EQ(cut("[a-z&&[^b]]+", "abcd"), "[a]b[cd]");
  EXPECT_EQ(cut(R"([\p{L}&&\p{Han}])", "a一b"), "a[一]b");
  EXPECT_EQ(cut("[a[bc]]+", "abcd"), "[abc]d");
  EXPECT_EQ(cut("[^a[bc]]+", "abcd"), "abc[d]");
  EXPECT_EQ(cut("[^a-c&&[b-z]]+", "abcd"), "[a]bc[d]");
  EXPECT_EQ(cut(R"(\bx\b)", "ax x x\u0301 x"), "ax [x] x\u0301 [x]");
  EXPECT_EQ(cut(R"(\w+)", "a\u0301_\u203F-b"), "[a\u0301_\u203F]-[b]");
  EXPECT_EQ(cut(R"([[:punct:]]+)", "a+!b"), "a[+!]b");
  EXPECT_EQ(cut(R"(\p{^L}+)", "a1b"), "a[1]b");
  EXPECT_EQ(cut(R"([^\S\n]+)", "a \n\tb"), "a[ ]\n[\t]b");
  EXPECT_EQ(cut("(?i:'s)", "'S'\u017F"), "['S]['\u017F]");
  EXPECT_EQ(cut(R"(a++b|[\]\-^]+|{|\/)", "aab]-^{/"), "[aab][]-^][{][/]");
}

TEST(Regex, RefusesWhatItWouldMisread) {
  for (const char* pattern :
       {"(?~a)",     R"(\Ka)",      R"(\Ga)", R"(\Qa\E)", "a{1,2}+", "(*FAIL)", R"(\g<n>)",
        R"(\R)",     R"(\X)",       "(?#c)",  R"([\W])",  "[a",      "(",       "a)",
        "[[:odd:]]", R"(\p{Nope})", R"(\pL)", R"(\u12)",  "(?C1)",   "(?R)"}) {
    EXPECT_THROW(Regex{pattern}, UserError) << pattern;
  }
  EXPECT_THROW(Regex{"\xff"}, UserError);
}

TEST(Regex, SpacesAreUnicodes) {
  for (char32_t c = 0; c < 0x3100; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    EXPECT_EQ(cut(R"(\s)", text) != text, is_white_space(c)) << std::hex << static_cast<uint32_t>(c);
    EXPECT_EQ(cut(R"([\S])", text) != text, !is_white_space(c)) << std::hex << static_cast<uint32_t>(c);
  }
}

TEST(Regex, LiteralText) {
  std::vector<TextSpan> spans;
  Regex::literal("a.b").split("a.baxb", spans);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_TRUE(spans[0].match);
  EXPECT_EQ(spans[0].end, 3u);
}

}  // namespace
}  // namespace fathom
