// Small models made for the one rule that each test is about.
#include <gtest/gtest.h>

#include <cstring>

#include "text/bpe.h"
#include "text/hf_tokenizer.h"
#include "text/llama2c_tokenizer.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"
#include "text/unigram.h"

namespace fathom {
namespace {

using Ids = std::vector<int32_t>;

Ids encode(const TokenModel& model, std::string_view text) {
  ModelScratch scratch;
  Ids out;
  model.encode(text, scratch, out);
  return out;
}

Vocabulary vocabulary_of(std::initializer_list<const char*> texts) {
  Vocabulary vocabulary;
  for (const char* text : texts) vocabulary.add(text, vocabulary.size());
  return vocabulary;
}

UnigramModel unigram_of(std::initializer_list<const char*> texts, std::vector<double> scores,
                        bool double_sums = false) {
  UnigramOptions options;
  options.double_sums = double_sums;
  options.unk = 0;
  options.byte_ids.fill(-1);
  options.in_text.assign(scores.size(), true);
  options.in_text[0] = false;
  options.user_defined.assign(scores.size(), false);
  options.scores = std::move(scores);
  return UnigramModel(vocabulary_of(texts), std::move(options));
}

TEST(Unigram, TakesTheBestSum) {
  EXPECT_EQ(encode(unigram_of({"?", "a", "aa", "b"}, {0, -1, -1.5, -1}), "aaab"), (Ids{1, 2, 3}));
  EXPECT_EQ(encode(unigram_of({"?", "a", "aa"}, {0, -1, -3}), "aa"), (Ids{1, 1}));
}

TEST(Unigram, EqualSumsGoToTheFirstFound) {
  EXPECT_EQ(encode(unigram_of({"?", "a", "aa"}, {0, -1, -2}), "aa"), (Ids{2}));
}

TEST(Unigram, UnknownCharactersInARowAreOne) {
  const auto model = unigram_of({"?", "a"}, {0, -1});
  EXPECT_EQ(encode(model, "\u00e9\u00e9a\u00e9"), (Ids{0, 1, 0}));
}

// Forty thousand additions: in 32 bits the sum has long lost the last digits of a score.
TEST(Unigram, SumsAreOfTheReferencesWidth) {
  const std::string text(40000, 'a');
  const std::vector<double> scores = {0, -10.0001,
                                      -20.0003};  // two of one are a little better than one of two
  EXPECT_EQ(encode(unigram_of({"?", "a", "aa"}, scores, true), text).size(), 40000u);
  EXPECT_LT(encode(unigram_of({"?", "a", "aa"}, scores, false), text).size(), 40000u);
}

std::string bpe_json(const std::string& options) {
  return R"({"model":{"type":"BPE","vocab":{"<unk>":0,"a":1,"b":2,"c":3,"ab":4,"bc":5,"abc":6},"merges":["b c"])" +
         options + R"(},"decoder":{"type":"Fuse"}})";
}

TEST(Bpe, IgnoreMergesTakesWholeWords) {
  EXPECT_EQ(hf_tokenizer(bpe_json(""), {}, "t")->encode("abc"), (Ids{1, 5}));
  EXPECT_EQ(hf_tokenizer(bpe_json(R"(,"ignore_merges":true)"), {}, "t")->encode("abc"), (Ids{6}));
}

TEST(Bpe, UnknownCharacters) {
  const std::string text = "axxbx";
  EXPECT_EQ(hf_tokenizer(bpe_json(""), {}, "t")->encode(text), (Ids{1, 2}));
  EXPECT_EQ(hf_tokenizer(bpe_json(R"(,"unk_token":"<unk>")"), {}, "t")->encode(text), (Ids{1, 0, 0, 2, 0}));
  EXPECT_EQ(hf_tokenizer(bpe_json(R"(,"unk_token":"<unk>","fuse_unk":true)"), {}, "t")->encode(text),
            (Ids{1, 0, 2, 0}));
}

std::string llama2c_file(std::initializer_list<std::pair<const char*, float>> extra) {
  std::vector<std::pair<std::string, float>> tokens = {{"<unk>", 0}, {"\n<s>\n", 0}, {"\n</s>\n", 0}};
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    tokens.emplace_back(text, 0);
  }
  tokens.insert(tokens.end(), extra.begin(), extra.end());
  const auto raw = [](auto value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  };
  std::string file = raw(int32_t{8});
  for (const auto& [text, score] : tokens) file += raw(score) + raw(static_cast<int32_t>(text.size())) + text;
  return file;
}

// 'é' is no token: llama2.c turns it into bytes at once, and "xé" is never found.
TEST(Llama2c, BytesComeBeforeMerging) {
  const auto tokenizer =
      llama2c_tokenizer(llama2c_file({{" ", -1}, {"x", -2}, {"x\u00e9", -3}, {" x", -4}}), -1, "t");
  EXPECT_EQ(tokenizer->encode("x\u00e9"), (Ids{1, 262, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(tokenizer->encode(""), (Ids{1}));
  EXPECT_EQ(tokenizer->decode({1, 262, 3 + 0xC3, 3 + 0xA9}), "x\u00e9");
}

std::string cut(const PreTokenizer& pre, std::string_view text) {
  Pieces pieces;
  pieces.text = text;
  pre.run(pieces);
  std::string out;
  for (const TextSpan& span : pieces.spans)
    out += std::string(pieces.text.substr(span.begin, span.end - span.begin)) + "|";
  return out;
}

TEST(PreTokenizer, DigitGroupsCountFromTheRight) {
  PreTokenizer pre;
  pre.add_digit_groups();
  EXPECT_EQ(cut(pre, "1234567 12 123a1234"), "1|234|567| |12| |123|a|1|234|");
}

TEST(PreTokenizer, Behaviours) {
  const auto with = [](SplitBehavior behavior, bool invert) {
    PreTokenizer pre;
    pre.add_split(Regex("-"), behavior, invert);
    return cut(pre, "the-final--countdown");
  };
  EXPECT_EQ(with(SplitBehavior::kRemoved, false), "the|final|countdown|");
  EXPECT_EQ(with(SplitBehavior::kRemoved, true), "-|-|-|");
  EXPECT_EQ(with(SplitBehavior::kIsolated, false), "the|-|final|-|-|countdown|");
  EXPECT_EQ(with(SplitBehavior::kMergedWithPrevious, false), "the-|final-|-|countdown|");
  EXPECT_EQ(with(SplitBehavior::kMergedWithNext, false), "the|-final|-|-countdown|");
  EXPECT_EQ(with(SplitBehavior::kContiguous, false), "the|-|final|--|countdown|");
}

TEST(PreTokenizer, Metaspace) {
  PreTokenizer always, first, never;
  always.add_metaspace("\u2581", PreTokenizer::Prepend::kAlways, true);
  first.add_metaspace("\u2581", PreTokenizer::Prepend::kFirst, false);
  never.add_metaspace("\u2581", PreTokenizer::Prepend::kNever, true);
  EXPECT_EQ(cut(always, "a  b"), "\u2581a|\u2581|\u2581b|");
  EXPECT_EQ(cut(always, " a"), "\u2581a|");
  EXPECT_EQ(cut(first, "a b"), "\u2581a\u2581b|");
  EXPECT_EQ(cut(never, "a b"), "a|\u2581b|");
}

}  // namespace
}  // namespace fathom
