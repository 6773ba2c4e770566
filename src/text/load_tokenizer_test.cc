// What lies beside a tokenizer file, and how paths are taken.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "io/gguf.h"
#include "text/tokenizer.h"
#include "text/tokenizer_test_data.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

class Folder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "fathom_tokenizer_folder_" + std::to_string(getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void put(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }
  void copy(const std::string& data, const std::string& name) {
    fs::copy_file(tokenizer_data(data), folder_ + "/" + name);
  }

  std::string folder_;
};

TEST_F(Folder, ConfigNamesTokensAndTemplate) {
  copy("llama2_style.json", "tokenizer.json");
  put("tokenizer_config.json",
      R"({"bos_token":{"content":"<s>"},"eos_token":"</s>","chat_template":"{{ a }}","add_bos_token":false,
      "added_tokens_decoder":{"1":{"content":"<s>","special":true},"756":{"content":"<extra>","special":true}}})");
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_TRUE(tokenizer->adds_bos());  // tokenizer.json's post-processor is the rule, not add_bos_token
  EXPECT_TRUE(tokenizer->adds_eos());
  EXPECT_EQ(tokenizer->chat_template(), "{{ a }}");
  EXPECT_EQ(tokenizer->id_of("<extra>"), 756);
  EXPECT_EQ(tokenizer->encode("<extra>", {.add_special = false}), std::vector<int32_t>{756});
  EXPECT_EQ(load_tokenizer(folder_ + "/tokenizer.json")->eos(), 2);
}

TEST_F(Folder, ThePaddingToken) {
  copy("llama2_style.json", "tokenizer.json");
  EXPECT_EQ(load_tokenizer(folder_)->pad(), -1);
  put("tokenizer_config.json", R"({"pad_token":"</s>"})");
  EXPECT_EQ(load_tokenizer(folder_)->pad(), 2);
  put("tokenizer_config.json", R"({"pad_token":{"content":"<s>"}})");
  EXPECT_EQ(load_tokenizer(folder_)->pad(), 1);
  put("tokenizer_config.json", R"({"pad_token":null})");
  EXPECT_EQ(load_tokenizer(folder_)->pad(), -1);
  fs::remove(folder_ + "/tokenizer.json");
  copy("sp_bpe.model", "tokenizer.model");
  EXPECT_EQ(load_tokenizer(folder_)->pad(), -1);
  put("tokenizer_config.json", R"({"pad_token":"</s>"})");
  EXPECT_EQ(load_tokenizer(folder_)->pad(), load_tokenizer(folder_)->eos());
  const auto base = GgufFile::open(tokenizer_data("gpt2_style.gguf"));
  const auto padded = [&](int64_t id) {
    std::vector<GgufKeyValue> metadata = base->metadata();
    std::erase_if(metadata, [](const auto& each) { return each.key == "tokenizer.ggml.padding_token_id"; });
    metadata.push_back({"tokenizer.ggml.padding_token_id", {GgufType::kU32, id}});
    write_gguf(folder_ + "/x.gguf", metadata, {});
    return load_tokenizer(folder_ + "/x.gguf")->pad();
  };
  EXPECT_EQ(padded(7), 7);
  EXPECT_EQ(padded(4000000000), -1);
}

TEST_F(Folder, TemplateFileGoesFirst) {
  copy("gpt2_style.json", "tokenizer.json");
  put("tokenizer_config.json",
      R"({"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]})");
  EXPECT_EQ(load_tokenizer(folder_)->chat_template(), "d");
  put("chat_template.jinja", "{{ file }}");
  EXPECT_EQ(load_tokenizer(folder_)->chat_template(), "{{ file }}");
}

TEST_F(Folder, SentencePieceTakesBosFromTheConfig) {
  copy("sp_bpe.model", "tokenizer.model");
  EXPECT_TRUE(load_tokenizer(folder_)->adds_bos());
  EXPECT_FALSE(load_tokenizer(folder_)->adds_eos());
  put("tokenizer_config.json", R"({"add_bos_token":false,"add_eos_token":true,"chat_template":"x"})");
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_TRUE(tokenizer->adds_eos());
  EXPECT_EQ(tokenizer->encode("").back(), tokenizer->eos());
  EXPECT_EQ(tokenizer->chat_template(), "x");
}

TEST_F(Folder, OldGpt2Files) {
  copy("gpt2_files/vocab.json", "vocab.json");
  copy("gpt2_files/merges.txt", "merges.txt");
  const auto plain = load_tokenizer(folder_);
  EXPECT_EQ(load_tokenizer(folder_ + "/vocab.json")->encode("ships"), plain->encode("ships"));
  put("tokenizer_config.json", R"({"tokenizer_class":"GPT2Tokenizer","add_prefix_space":true})");
  EXPECT_EQ(load_tokenizer(folder_)->encode("ships"), plain->encode(" ships"));
  put("tokenizer_config.json", R"({"tokenizer_class":"Qwen2Tokenizer"})");
  EXPECT_ANY_THROW(load_tokenizer(folder_));
}

}  // namespace
}  // namespace fathom
