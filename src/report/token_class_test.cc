#include "report/token_class.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

std::vector<TokenClass> classes_of(const std::vector<std::string>& pieces, size_t special = 0) {
  std::vector<uint8_t> is_special(pieces.size(), 0);
  for (size_t i = 0; i < special; ++i) is_special[i] = 1;
  return token_classes(pieces, is_special);
}

TEST(TokenClass, WordsOfASentence) {
  using enum TokenClass;
  EXPECT_EQ(
      classes_of(
          {"<s>", "The",   " old", " gardener", " walked", " to", " the", " river", " with",  " Mary", ".",
           " He", " said", ":",    " \"",       "no",      "\"",  ",",    " 42",    " times", "\n"},
          1),
      (std::vector<TokenClass>{kBos,      kFunction,    kNoun,        kOther,    kVerb,        kPreposition,
                               kFunction, kNoun,        kPreposition, kNoun,     kPunctuation, kFunction,
                               kVerb,     kPunctuation, kPunctuation, kFunction, kPunctuation, kPunctuation,
                               kNumber,   kOther,       kPunctuation}));
}

// The pieces of a word share its class, however the tokenizer cuts it; so do the digits of a number.
TEST(TokenClass, PiecesFollowTheirWord) {
  using enum TokenClass;
  EXPECT_EQ(classes_of({" comp", "ut", "ation"}), (std::vector<TokenClass>{kNoun, kNoun, kNoun}));
  EXPECT_EQ(classes_of({" 1", ",", "000", ".", "5"}), (std::vector<TokenClass>(5, kNumber)));
  EXPECT_EQ(classes_of({" did", "n", "'", "t"}), (std::vector<TokenClass>(4, kFunction)));
  EXPECT_EQ(classes_of({" didn", "’t"}), (std::vector<TokenClass>(2, kFunction)));
}

TEST(TokenClass, CodeIsNotProse) {
  using enum TokenClass;
  EXPECT_EQ(classes_of({"for", " (", "int", " i", " =", " 0", ";"})[4], kCode);
  EXPECT_EQ(classes_of({" std", "::", "vector", "<", "int", ">"}), (std::vector<TokenClass>(6, kCode)));
  EXPECT_EQ(classes_of({" get", "Value", "()", ";"}), (std::vector<TokenClass>(4, kCode)));
  EXPECT_EQ(classes_of({" a", " (", "small", ")", " house"})[2], kNoun);
}

// Nothing crashes on bytes that are no text, and everything has a class.
TEST(TokenClass, AnyBytes) {
  std::vector<std::string> pieces{"",   "\xff\xfe",     "\xe2\x80", "\x99", "'",
                                  "a'", "\xe2\x80\x99", "9.",       "日本", std::string(3, '\0')};
  EXPECT_EQ(classes_of(pieces).size(), pieces.size());
  for (int b = 0; b < 256; ++b) pieces.emplace_back(2, static_cast<char>(b));
  EXPECT_EQ(classes_of(pieces).size(), pieces.size());
}

}  // namespace
}  // namespace fathom
