// A vocabulary written as GGUF and as a Hugging Face folder encodes as the one it was written from.
#include "text/export_vocab.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/tokenizer.h"
#include "text/tokenizer_test_data.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class ExportVocab : public testing::Test {
 protected:
  void SetUp() override {
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = fs::temp_directory_path() / ("fathom-vocab-" + test + "-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  std::string write_as_gguf(const std::string& source, int64_t vocab = -1) {
    const std::string path = at("v.gguf");
    std::vector<GgufKeyValue> metadata = vocab_to_gguf(source, vocab);
    metadata.push_back({"general.architecture", {GgufType::kString, std::string("llama")}});
    write_gguf(path, metadata, {});
    return path;
  }
  std::string write_as_hf(const std::string& source, int64_t vocab = -1) {
    fs::remove_all(at("hf"));
    fs::create_directories(at("hf"));
    vocab_to_hf(source, vocab, at("hf"));
    return at("hf");
  }
  std::string refusal(const std::string& source) {
    try {
      vocab_to_gguf(source, -1);
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing was refused";
  }

  fs::path folder_;
};

std::vector<std::string> hard_texts() {
  std::vector<std::string> texts{
      "",
      " ",
      "Hello world",
      "  two  spaces   three\n\n\tTabs\r\n ",
      "The year 1999 was 12345678 days, 3.14159 or 1,000,000",
      "na\u00efve caf\u00e9 d\u00e9j\u00e0 \u2014 \u201cquotes\u201d \u00bd \u0663\u0664\u0665",
      "\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8 \u6f22\u5b57 \u0645\u0631\u062d\u0628\u0627",
      "\U0001F984\U0001F469\u200D\U0001F469\u200D\U0001F467 emoji",
      "don't I'LL we've He'S",
      "<s>hey</s> there <|im_start|>user\nhi<|im_end|><unk><|endoftext|>",
      "def f(x):\n    return x**2  # comment\n\n\n",
      std::string("\x01\x7f", 2),
      "trailing "};
  for (char c : {'a', ' ', '\n', '=', '0'}) texts.push_back(std::string(37, c));
  return texts;
}

void expect_same(const Tokenizer& expected, const Tokenizer& got, const std::string& skip_with = {}) {
  for (const std::string& text : hard_texts()) {
    if (!skip_with.empty() && text.find(skip_with) != std::string::npos) continue;
    EXPECT_EQ(got.encode(text), expected.encode(text)) << text;
    const EncodeOptions plain{.add_special = false, .parse_special = false};
    EXPECT_EQ(got.encode(text, plain), expected.encode(text, plain)) << text;
    EXPECT_EQ(got.decode(got.encode(text)), expected.decode(expected.encode(text))) << text;
  }
  EXPECT_EQ(got.bos(), expected.bos());
  EXPECT_EQ(got.eos(), expected.eos());
  EXPECT_EQ(got.adds_bos(), expected.adds_bos());
  EXPECT_EQ(got.adds_eos(), expected.adds_eos());
  EXPECT_EQ(got.chat_template(), expected.chat_template());
}

TEST_F(ExportVocab, ByteLevelBpe) {
  for (const char* name : {"gpt2_style.json", "llama3_style.json", "dolma_style.json", "falcon_style.json"}) {
    SCOPED_TRACE(name);
    const std::string source = tokenizer_data(name);
    const auto original = load_tokenizer(source);
    const std::string gguf = write_as_gguf(source);
    expect_same(*original, *load_tokenizer(gguf));
    expect_same(*original, *load_tokenizer(write_as_hf(gguf)));
  }
}

TEST_F(ExportVocab, ByteFallbackBpe) {
  for (const char* name : {"llama2_style.json", "sp_bpe.model", "sp_bpe.gguf", "gpt2_style.gguf"}) {
    SCOPED_TRACE(name);
    const std::string source = tokenizer_data(name);
    const auto original = load_tokenizer(source);
    const std::string gguf = write_as_gguf(source);
    expect_same(*original, *load_tokenizer(gguf));
    expect_same(*original, *load_tokenizer(write_as_hf(gguf)));
    expect_same(*original, *load_tokenizer(write_as_hf(source)));
  }
}

TEST_F(ExportVocab, Llama2c) {
  const std::string source = tokenizer_data("llama2c.bin");
  const auto original = load_tokenizer(source);
  expect_same(*original, *load_tokenizer(write_as_gguf(source)), "<unk>");  // there it is text like any other
  expect_same(*original, *load_tokenizer(write_as_hf(source)), "<unk>");
}

TEST_F(ExportVocab, LargeVocabularies) {
  FATHOM_NEEDS_LARGE_TOKENIZERS();
  const std::string large = large_tokenizer_data() + "/";
  for (const char* name :
       {"llama2/tokenizer.json", "llama2/tokenizer.model", "gpt2/tokenizer.json", "dolma2/tokenizer.json",
        "ggml/ggml-vocab-llama-spm.gguf", "ggml/ggml-vocab-gpt-2.gguf", "ggml/ggml-vocab-refact.gguf",
        "ggml/ggml-vocab-deepseek-llm.gguf", "ggml/ggml-vocab-baichuan.gguf"}) {
    SCOPED_TRACE(name);
    fs::create_directories(at("source"));
    const std::string source = at("source/") + fs::path(name).filename().string();
    fs::copy_file(large + name, source);
    const auto original = load_tokenizer(source);
    const std::string gguf = write_as_gguf(source);
    expect_same(*original, *load_tokenizer(gguf));
    expect_same(*original, *load_tokenizer(write_as_hf(gguf)));
    fs::remove_all(at("source"));
  }
}

std::string string_of(const std::vector<GgufKeyValue>& metadata, const char* key) {
  for (const GgufKeyValue& pair : metadata) {
    if (pair.key == key) return std::get<std::string>(pair.value.value);
  }
  return "(none)";
}

TEST_F(ExportVocab, CutsHaveTheNamesThatLlamaCppKnows) {
  const auto pre = [&](const char* name) {
    return string_of(vocab_to_gguf(tokenizer_data(name), -1), "tokenizer.ggml.pre");
  };
  EXPECT_EQ(pre("gpt2_style.json"), "gpt-2");
  EXPECT_EQ(pre("llama3_style.json"), "llama-bpe");
  EXPECT_EQ(pre("nfc_digits.json"), "smollm");
  EXPECT_EQ(pre("llama2_style.json"), "default");
}

TEST_F(ExportVocab, WhatGgufCannotSayIsRefused) {
  EXPECT_NE(refusal(tokenizer_data("unigram.json")).find("GGUF states BPE vocabularies, not 'Unigram'"),
            std::string::npos);
  EXPECT_NE(refusal(tokenizer_data("sp_unigram.model")).find("sp_unigram.model: "), std::string::npos);
  EXPECT_NE(refusal(tokenizer_data("split_behaviours.json"))
                .find("GGUF has no name for this tokenizer's way of cutting words"),
            std::string::npos);
  EXPECT_NE(refusal(tokenizer_data("unknown_words.json")).find("unknown_words.json: GGUF "),
            std::string::npos);
}

// Merges that are no list of scores: one that is left out, and two tokens' merges interleaved.
TEST_F(ExportVocab, MergesThatAreNoScoresAreRefused) {
  Json json = Json::parse(read_text_file(tokenizer_data("llama2_style.json")));
  const Json merges = json["model"]["merges"];
  ASSERT_GT(merges.size(), 10u);
  json["model"]["merges"].erase(5);
  std::ofstream(at("tokenizer.json")) << json.dump();
  EXPECT_NE(refusal(at("tokenizer.json")).find("are not all there"), std::string::npos)
      << refusal(at("tokenizer.json"));
}

TEST_F(ExportVocab, TheVocabularyIsPaddedToTheModels) {
  const auto original = load_tokenizer(tokenizer_data("gpt2_style.json"));
  const int64_t size = original->vocab_size() + 7;
  const auto padded = load_tokenizer(write_as_gguf(tokenizer_data("gpt2_style.json"), size));
  EXPECT_EQ(padded->vocab_size(), size);
  expect_same(*original, *padded);
}

TEST_F(ExportVocab, FoldersAreCopied) {
  fs::create_directories(at("source"));
  fs::copy_file(tokenizer_data("gpt2_style.json"), at("source/tokenizer.json"));
  std::ofstream(at("source/tokenizer_config.json"))
      << R"({"eos_token": null, "chat_template": "{{ messages }}"})";
  std::ofstream(at("source/config.json")) << "{}";
  write_as_hf(at("source"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(read_text_file(at("hf/") + name), read_text_file(at("source/") + name));
  }
  EXPECT_FALSE(fs::exists(at("hf/config.json")));
}

}  // namespace
}  // namespace fathom
