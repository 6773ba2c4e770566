#include "train/text_sample.h"

#include <gtest/gtest.h>

#include <set>

#include "support/test_paths.h"
#include "text/tokenizer.h"
#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

class TextSample : public testing::Test {
 protected:
  TemporaryFolder folder_;
  std::shared_ptr<const Tokenizer> tokenizer_ =
      load_tokenizer(FATHOM_TEST_DATA "/tokenizers/gpt2_style.gguf");
};

// Documents from all over the file, never two in one sequence.
TEST_F(TextSample, ComesFromAllOverTheFile) {
  std::string text;
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k < 40; ++k) text += std::string(1, static_cast<char>('a' + i / 10)) + " ";
    text += "\n<|endoftext|>\n";
  }
  const auto sequences = sample_sequences(folder_.write("many.txt", text), *tokenizer_, {}, 10 * 20, 20);
  ASSERT_EQ(sequences.size(), 10u);
  std::set<char> letters;
  for (const auto& sequence : sequences) {
    EXPECT_EQ(sequence.size(), 20u);
    letters.insert(tokenizer_->decode(sequence)[0]);
  }
  EXPECT_EQ(letters.size(), 10u);
  EXPECT_EQ(sequences, sample_sequences(folder_.at("many.txt"), *tokenizer_, {}, 10 * 20, 20));
}

// A short text gives all its windows, in order, and no more than it has; a long one is cut into pieces.
TEST_F(TextSample, ShortAndLongTexts) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += std::to_string(i) + " ";
  const auto all = sample_sequences(folder_.write("short.txt", text), *tokenizer_, {}, 100000, 16);
  std::vector<int32_t> ids;
  for (const auto& sequence : all) ids.insert(ids.end(), sequence.begin(), sequence.end());
  EXPECT_EQ(tokenizer_->decode(ids).find("0 1 2 3"), 0u);
  const auto some = sample_sequences(folder_.at("short.txt"), *tokenizer_, {}, 32, 16);
  ASSERT_EQ(some.size(), 2u);
  EXPECT_EQ(some[0], all[0]);
  EXPECT_EQ(some[1], all[1]);
  std::string longer;
  for (int i = 0; i < 20000; ++i) longer += "word" + std::to_string(i % 10) + (i % 9 == 8 ? "\n" : " ");
  const auto spread = sample_sequences(folder_.write("long.txt", longer), *tokenizer_, {}, 64, 16);
  ASSERT_EQ(spread.size(), 4u);
  EXPECT_NE(spread[0], spread[1]);
}

// Lines of JSONL are documents, mostly shorter than a window: as many as give the tokens.
TEST_F(TextSample, ManyShortDocuments) {
  std::string lines;
  for (int i = 0; i < 400; ++i)
    lines += R"({"prompt": "a b c d", "answer": "e f )" + std::to_string(i) + "\"}\n";
  const auto sequences = sample_sequences(folder_.write("many.jsonl", lines), *tokenizer_, {}, 1000, 256);
  size_t tokens = 0;
  for (const auto& sequence : sequences) tokens += sequence.size();
  EXPECT_EQ(tokens, 1000u);
  EXPECT_EQ(tokenizer_->decode(sequences[0]).find("prompt"), std::string::npos);
  EXPECT_GT(sequences.size(), 40u);
}

}  // namespace
}  // namespace fathom
