// Every tokenizer against the ids of the reference packages (tools/make_tokenizer_goldens.py).
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "io/gguf.h"
#include "text/bpe.h"
#include "text/gguf_pre_types.h"
#include "text/hf_tokenizer.h"
#include "text/tiktoken.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_test_data.h"

namespace fathom {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

Json read_json(const std::string& name) {
  return Json::parse(read_text_file(tokenizer_data(name)));
}

const std::vector<std::string>& texts() {
  static const auto kTexts = read_json("texts.json").get<std::vector<std::string>>();
  return kTexts;
}

// Compares everything that a golden file has: see make_tokenizer_goldens.py for the fields.
void expect_golden(const Tokenizer& tokenizer, const std::string& golden_name) {
  const Json golden = read_json(golden_name + ".golden.json");
  ASSERT_EQ(golden["plain"].size(), texts().size()) << "the goldens are for other texts";
  const auto at = [&](const char* field, size_t i) {
    return golden.contains(field) ? golden[field][i] : Json();
  };
  for (size_t i = 0; i < texts().size(); ++i) {
    const std::string& text = texts()[i];
    SCOPED_TRACE(golden_name + ", text " + std::to_string(i) + ": '" + printable(text) + "'");
    const Ids plain = golden["plain"][i].get<Ids>();
    EXPECT_EQ(tokenizer.encode(text, {.add_special = false, .parse_special = false}), plain);
    const Ids parsed = at("parsed", i).is_null() ? plain : at("parsed", i).get<Ids>();
    if (golden.contains("parsed")) {
      EXPECT_EQ(tokenizer.encode(text, {.add_special = false, .parse_special = true}), parsed);
    }
    if (golden.contains("around")) {
      Ids all = golden["around"][0].get<Ids>();
      all.insert(all.end(), parsed.begin(), parsed.end());
      const Ids after = golden["around"][1].get<Ids>();
      all.insert(all.end(), after.begin(), after.end());
      EXPECT_EQ(tokenizer.encode(text), all);
    }
    if (!golden.contains("decoded") || at("decoded", i).is_boolean()) continue;
    const std::string decoded = at("decoded", i).is_null() ? text : at("decoded", i).get<std::string>();
    EXPECT_EQ(tokenizer.decode(parsed), decoded);
    if (!golden.contains("shown")) continue;
    EXPECT_EQ(tokenizer.decode(parsed, true),
              at("shown", i).is_null() ? decoded : at("shown", i).get<std::string>());
  }
}

class SmallTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(SmallTokenizer, MatchesReference) {
  const std::string name = GetParam();
  expect_golden(*load_tokenizer(tokenizer_data(name)), name);
}

INSTANTIATE_TEST_SUITE_P(, SmallTokenizer,
                         testing::Values("gpt2_style.json", "llama3_style.json", "dolma_style.json",
                                         "nfc_digits.json", "deepseek_style.json", "falcon_style.json",
                                         "split_behaviours.json", "whitespace_removed.json",
                                         "llama2_style.json", "metaspace_first.json", "gemma_style.json",
                                         "unknown_words.json", "unigram.json", "precompiled.json",
                                         "added_tokens.json", "sp_bpe.model", "sp_unigram.model",
                                         "sp_unigram_bytes.model", "sp_suffix.model", "sp_unused.model",
                                         "llama2c.bin"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name;
                         });

TEST(SmallTokenizerFiles, Gpt2FilesEqualTokenizerJson) {
  const auto files = load_tokenizer(tokenizer_data("gpt2_files"));
  expect_golden(*files, "gpt2_style.json");
  EXPECT_EQ(files->eos(), files->id_of("<|endoftext|>"));
}

TEST(SmallTokenizerFiles, Tiktoken) {
  const std::string ranks = read_text_file(tokenizer_data("ranks.tiktoken"));
  const auto tokenizer = tiktoken_tokenizer(ranks, llama3_rules(), "ranks.tiktoken");
  expect_golden(*tokenizer, "ranks.tiktoken");
  EXPECT_EQ(tokenizer->token(tokenizer->bos()), "<|begin_of_text|>");
  EXPECT_EQ(tokenizer->encode("").size(), 1u);
  EXPECT_EQ(tokenizer->id_of("<|eot_id|>") - tokenizer->id_of("<|begin_of_text|>"), 9);
  EXPECT_EQ(tokenizer->vocab_size() - tokenizer->bos(), 256);
}

TEST(SmallTokenizerFiles, GgufBpeEqualsTokenizerJson) {
  const auto tokenizer = load_tokenizer(tokenizer_data("gpt2_style.gguf"));
  expect_golden(*tokenizer, "gpt2_style.json");
  EXPECT_EQ(tokenizer->chat_template(), "{{ messages }}");
  EXPECT_FALSE(tokenizer->adds_bos());
}

TEST(SmallTokenizerFiles, GgufGemma) {
  const auto gguf = load_tokenizer(tokenizer_data("gemma_style.gguf"));
  const auto hf = load_tokenizer(tokenizer_data("gemma_style.json"));
  const EncodeOptions plain{.add_special = false, .parse_special = false};
  for (const std::string& text : texts()) {
    EXPECT_EQ(gguf->encode(text, plain), hf->encode(text, plain)) << printable(text);
    EXPECT_EQ(gguf->decode(gguf->encode(text, plain), true), hf->decode(hf->encode(text, plain), true));
  }
  EXPECT_TRUE(gguf->adds_bos());
}

// A GGUF "llama" vocabulary has no user-defined symbols before merging but those of the type; otherwise it is
// the SentencePiece model that it was made from.
TEST(SmallTokenizerFiles, GgufSentencePiece) {
  const auto gguf = load_tokenizer(tokenizer_data("sp_bpe.gguf"));
  const auto model = load_tokenizer(tokenizer_data("sp_bpe.model"));
  EXPECT_TRUE(gguf->adds_bos());
  for (const std::string& text : texts()) {
    bool other = false;
    for (const char* odd : {"ab", "   ", "▁", "<s>", "<unk>"})
      other = other || text.find(odd) != std::string::npos;
    if (other) continue;
    EXPECT_EQ(gguf->encode(text), model->encode(text)) << printable(text);
    EXPECT_EQ(gguf->decode(gguf->encode(text)), text);
  }
}

uint32_t crc32(const std::string& bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
  }
  return ~crc;
}

// Every tokenizer.ggml.pre whose cuts differ, against the same patterns in Oniguruma.
TEST(GgufPreTypes, CutAsOnigurumaDoes) {
  const Json goldens = read_json("pre_types.golden.json");
  ASSERT_GT(goldens.size(), 30u);
  for (const auto& [name, sums] : goldens.items()) {
    PreTokenizer cuts;
    gguf_pre_type(name, cuts);
    for (size_t i = 0; i < texts().size(); ++i) {
      Pieces pieces;
      pieces.text = texts()[i];
      cuts.run(pieces);
      std::string joined;
      for (const TextSpan& span : pieces.spans) {
        if (!joined.empty()) joined += '\x1f';
        joined += pieces.text.substr(span.begin, span.end - span.begin);
      }
      EXPECT_EQ(crc32(joined), sums[i].get<uint32_t>())
          << name << ", text " << i << ": " << printable(joined);
    }
  }
}

TEST(GgufPreTypes, LoadWithWhatTheyImply) {
  const auto base = GgufFile::open(tokenizer_data("gpt2_style.gguf"));
  const std::string path = testing::TempDir() + "fathom_pre_type_" + std::to_string(getpid()) + ".gguf";
  const auto load = [&](const std::string& pre) {
    std::vector<GgufKeyValue> metadata = base->metadata();
    for (GgufKeyValue& entry : metadata) {
      if (entry.key == "tokenizer.ggml.pre") entry.value.value = pre;
    }
    write_gguf(path, metadata, {});
    return load_tokenizer(path);
  };
  EXPECT_TRUE(load("llama-bpe")->adds_bos());
  EXPECT_TRUE(load("tekken")->adds_bos());
  EXPECT_FALSE(load("qwen2")->adds_bos());
  EXPECT_EQ(load("smollm")->kind(), "GGUF BPE (smollm)");
  std::filesystem::remove(path);
}

class LargeTokenizer : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(LargeTokenizer, MatchesReference) {
  FATHOM_NEEDS_LARGE_TOKENIZERS();
  const auto [path, golden] = GetParam();
  expect_golden(*load_tokenizer(large_tokenizer_data() + "/" + path), golden);
}

INSTANTIATE_TEST_SUITE_P(, LargeTokenizer,
                         testing::Values(std::pair{"gpt2/tokenizer.json", "large_gpt2"},
                                         std::pair{"gpt_neox_olmo", "large_gpt_neox_olmo"},
                                         std::pair{"dolma2", "large_dolma2"},
                                         std::pair{"llama2/tokenizer.json", "large_llama2"},
                                         std::pair{"llama2/tokenizer.model", "large_llama2_sp"},
                                         std::pair{"tinystories_sp4096.model", "large_tinystories_sp"},
                                         std::pair{"llama3/tokenizer.model", "large_llama3"},
                                         std::pair{"llama2/tokenizer.bin", "large_llama2c"}),
                         [](const auto& test) { return std::string(test.param.second); });

// llama.cpp's vectors: texts separated by a line, the ids of each on a line.
void expect_vectors(const Tokenizer& tokenizer, const std::string& name) {
  const std::string stem = large_tokenizer_data() + "/ggml/ggml-vocab-" + name + ".gguf";
  const std::string all = read_text_file(stem + ".inp"), ids_text = read_text_file(stem + ".out");
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::istringstream lines(ids_text);
  size_t count = 0;
  for (size_t at = 0, end; (end = all.find(separator, at)) != std::string::npos;
       at = end + separator.size(), ++count) {
    const std::string text = all.substr(at, end - at);
    std::string line;
    ASSERT_TRUE(std::getline(lines, line)) << name << ": fewer lines of ids than texts";
    std::istringstream numbers(line);
    const Ids want{std::istream_iterator<int32_t>(numbers), std::istream_iterator<int32_t>()};
    EXPECT_EQ(tokenizer.encode(text, {.add_special = false}), want)
        << name << ": '" << printable(text) << "'";
  }
  EXPECT_GE(count, 45u);
}

TEST(ConformanceVectors, Gguf) {
  FATHOM_NEEDS_LARGE_TOKENIZERS();
  for (const char* name : {"gpt-2", "llama-spm", "phi-3", "deepseek-llm", "refact"}) {
    expect_vectors(*load_tokenizer(large_tokenizer_data() + "/ggml/ggml-vocab-" + name + ".gguf"), name);
  }
}

TEST(ConformanceVectors, Llama3FromTiktokenRanks) {
  FATHOM_NEEDS_LARGE_TOKENIZERS();
  expect_vectors(*load_tokenizer(large_tokenizer_data() + "/llama3"), "llama-bpe");
}

// Qwen's vocab.json comes without merges. Its ids are tiktoken ranks, which is enough to merge by.
TEST(ConformanceVectors, Qwen2FromRanks) {
  FATHOM_NEEDS_LARGE_TOKENIZERS();
  const std::string path = large_tokenizer_data() + "/qwen2.5/vocab.json";
  TiktokenRules rules;
  rules.pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  expect_vectors(*tiktoken_tokenizer(ranks_of_vocab_json(read_text_file(path), path), rules, path), "qwen2");
}

TEST(ConformanceVectors, OtherGgufVocabularies) {
  FATHOM_NEEDS_LARGE_TOKENIZERS();
  const std::string folder = large_tokenizer_data() + "/ggml/ggml-vocab-";
  for (const char* name : {"baichuan", "gpt-neox"}) {  // no vectors: they load, and texts come back
    const auto tokenizer = load_tokenizer(folder + name + ".gguf");
    for (const std::string& text : texts()) {
      if (text.find("▁") != std::string::npos) continue;  // the same as a space to SentencePiece
      const Ids ids = tokenizer->encode(text, {.add_special = false, .parse_special = false});
      EXPECT_EQ(tokenizer->decode(ids, true), text) << name;
    }
  }
  try {
    load_tokenizer(folder + "bert-bge.gguf");
    FAIL() << "a bert vocabulary was taken";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("'bert'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace fathom
