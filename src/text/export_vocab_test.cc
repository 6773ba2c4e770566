// A vocabulary written as GGUF and as a Hugging Face folder encodes as the one it was written from.
#include "text/export_vocab.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
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
  EXPECT_TRUE(expected.eos() < 0 ||
              got.eos() == expected.eos());  // readers of GGUF take 2 where nothing is said
  EXPECT_EQ(got.adds_bos(), expected.adds_bos());
  EXPECT_EQ(got.adds_eos(), expected.adds_eos());
  EXPECT_EQ(got.chat_template(), expected.chat_template());
}

TEST_F(ExportVocab, ByteLevelBpe) {
  for (const char* name : {"gpt2_style.json", "llama3_style.json", "dolma_style.json"}) {
    SCOPED_TRACE(name);
    const std::string source = tokenizer_data(name);
    const auto original = load_tokenizer(source);
    const std::string gguf = write_as_gguf(source);
    expect_same(*original, *load_tokenizer(gguf));
    expect_same(*original, *load_tokenizer(write_as_hf(gguf)));
  }
}

// A text's "<unk>" is a token in GGUF and text elsewhere: such texts are left out.
TEST_F(ExportVocab, ByteFallbackBpe) {
  const std::string source = tokenizer_data("sp_bpe.gguf");
  const auto original = load_tokenizer(source);
  expect_same(*original, *load_tokenizer(write_as_gguf(source)));
  const std::string folder = write_as_hf(source);
  expect_same(*original, *load_tokenizer(folder));
  expect_same(*original, *load_tokenizer(write_as_gguf(folder)));  // scores from merges
}

TEST_F(ExportVocab, SentencePiece) {
  const std::string source = tokenizer_data("sp_bpe.model");
  const std::string folder = write_as_hf(source);
  EXPECT_EQ(read_text_file(folder + "/tokenizer.model"), read_text_file(source));
  EXPECT_NE(refusal(source).find("no space is added after the user-defined token"), std::string::npos)
      << refusal(source);
}

// A SentencePiece model of a few pieces: <unk>, <s>, </s>, the bytes, then these.
std::string tiny_sentencepiece(const std::vector<std::pair<std::string, float>>& pieces) {
  std::string out;
  const auto add = [&](const std::string& text, float score, char kind) {
    std::string piece =
        "\x0a" + std::string(1, static_cast<char>(text.size())) + text + "\x15" + std::string(4, 0);
    std::memcpy(piece.data() + piece.size() - 4, &score, 4);
    piece += std::string("\x18") + kind;
    out += "\x0a" + std::string(1, static_cast<char>(piece.size())) + piece;
  };
  add("<unk>", 0, 2);
  add("<s>", 0, 3);
  add("</s>", 0, 3);
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(byte));
    add(name, 0, 6);
  }
  for (const auto& [text, score] : pieces) add(text, score, 1);
  out += std::string("\x12\x05\x18\x02\x98\x02\x01", 7);    // trainer: BPE, byte fallback
  return out + std::string("\x1a\x04\x18\x01\x20\x00", 6);  // normaliser: a prefix, spaces kept
}

// Merges that state no scores, and the SentencePiece model with the scores beside them.
TEST_F(ExportVocab, ScoresComeFromTheSentencePieceModelWhereThereIsOne) {
  const std::string model = at("tokenizer.model"), word = "\u2581a";
  std::ofstream(model) << tiny_sentencepiece(
      {{"bc", -1}, {"ab", -2}, {word, -3}, {"abc", -4}, {"a", -5}, {"b", -6}, {"c", -7}, {"\u2581", -8}});
  const auto original = load_tokenizer(model);
  EXPECT_EQ(original->encode("abc", {.add_special = false, .parse_special = false}).size(), 2u);  // ▁a bc
  expect_same(*original, *load_tokenizer(write_as_gguf(model)), "<unk>");
  const std::string folder = write_as_hf(at("v.gguf"));
  expect_same(*original, *load_tokenizer(folder), "<unk>");
  Json json = Json::parse(read_text_file(folder + "/tokenizer.json"));
  json["model"]["merges"].erase(json["model"]["merges"].size() - 1);
  std::ofstream(folder + "/tokenizer.json") << json.dump();
  EXPECT_NE(refusal(folder).find("are not all there"), std::string::npos) << refusal(folder);
  fs::copy_file(model, folder + "/tokenizer.model");
  expect_same(*original, *load_tokenizer(write_as_gguf(folder)), "<unk>");
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
    expect_same(*original, *load_tokenizer(gguf),
                "<s>");  // Llama-2's own tokenizer.json finds "<s>" at the start of a text only
    expect_same(*original, *load_tokenizer(write_as_hf(gguf)), "<s>");
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
  Json json = Json::parse(read_text_file(tokenizer_data("gpt2_style.json")));
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Digits"}, {"individual_digits", true}},
                             {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}}};
  std::ofstream(at("smollm.json")) << json.dump();
  EXPECT_EQ(string_of(vocab_to_gguf(at("smollm.json"), -1), "tokenizer.ggml.pre"), "smollm");
  EXPECT_EQ(pre("sp_bpe.gguf"), "default");
}

TEST_F(ExportVocab, WhatGgufCannotSayIsRefused) {
  EXPECT_NE(refusal(tokenizer_data("unigram.json")).find("GGUF states BPE vocabularies, not 'Unigram'"),
            std::string::npos);
  EXPECT_NE(refusal(tokenizer_data("sp_unigram.model")).find("sp_unigram.model: "), std::string::npos);
  EXPECT_NE(refusal(tokenizer_data("split_behaviours.json"))
                .find("GGUF has no name for this tokenizer's way of cutting words"),
            std::string::npos);
  EXPECT_NE(refusal(tokenizer_data("falcon_style.json")).find("GGUF has no name"), std::string::npos);
  EXPECT_NE(refusal(tokenizer_data("unknown_words.json")).find("unknown_words.json: GGUF "),
            std::string::npos);
}

// Merges that are no list of scores: learnt ones, which leave ways to make a token out.
TEST_F(ExportVocab, MergesThatAreNoScoresAreRefused) {
  const std::string message = refusal(tokenizer_data("llama2_style.json"));
  EXPECT_NE(message.find("GGUF states merges as one score for each token"), std::string::npos) << message;
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
