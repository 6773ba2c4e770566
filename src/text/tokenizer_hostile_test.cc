// Files that must be refused, each with a message that says what is wrong.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "io/gguf.h"
#include "text/charsmap.h"
#include "text/hf_tokenizer.h"
#include "text/llama2c_tokenizer.h"
#include "text/sentencepiece.h"
#include "text/tiktoken.h"
#include "text/tokenizer.h"
#include "text/tokenizer_test_data.h"

namespace fathom {
namespace {

template <class Call>
void expect_refused(Call call, const std::string& words, const std::string& what) {
  try {
    call();
    ADD_FAILURE() << "taken: " << printable(what);
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos)
        << "expected '" << words << "' in: " << error.what();
    EXPECT_EQ(std::string(error.what()).find("json.exception"), std::string::npos) << error.what();
  }
}

void expect_json_refused(const std::string& text, const std::string& words) {
  expect_refused([&] { hf_tokenizer(text, {}, "t.json"); }, words, text);
}

std::string bpe(const std::string& vocab, const std::string& merges, const std::string& rest = "",
                const std::string& model = "") {
  return R"({"model":{"type":"BPE","vocab":)" + vocab + R"(,"merges":)" + merges + model + "}" + rest + "}";
}

TEST(HostileTokenizerJson, Shapes) {
  expect_json_refused("", "not JSON");
  expect_json_refused("[]", "expected an object");
  expect_json_refused("{}", "no model");
  expect_json_refused(R"({"model":{"type":"BPE","vocab":{"a":0}}})", "vocab and merges");
  expect_json_refused(R"({"model":{"type":"WordPiece","vocab":{"a":0}}})", "'WordPiece' is not supported");
  expect_json_refused(R"({"model":{"type":"WordLevel","vocab":{"a":0}}})", "'WordLevel' is not supported");
  expect_json_refused(R"({"model":{"vocab":{"a":0}}})", "of no type");
  expect_json_refused(R"({"model":{"type":7,"vocab":{"a":0}}})", "'type' must be a text");
  expect_json_refused(R"({"model":{"type":"BPE","vocab":["a"],"merges":[]}})", "[text, score]");
  expect_json_refused(bpe(R"({"a":0,"b":{}})", "[]"), "expected an id");
  expect_json_refused(bpe(R"({"a":0.5})", "[]"), "expected an id");
  expect_json_refused(bpe(R"({"a":"0"})", "[]"), "expected an id");
  expect_json_refused(bpe(R"({"a":0})", R"([["a"]])"), "pairs");
  expect_json_refused(bpe(R"({"a":0})", R"([["a","a","a"]])"), "pairs");
  expect_json_refused(bpe(R"({"a":0})", R"([[["a"]]])"), "flat list");
  expect_json_refused(bpe(R"({"a":0})", R"(["aa"])"), "not two tokens");
  expect_json_refused(bpe(R"({"a":0})", R"(["a a a"])"), "not two tokens");
  expect_json_refused(bpe(R"({"a":0})", R"([7])"), "texts and numbers");
  expect_json_refused(R"({"model":{},"model":{}})", "comes twice");
  expect_json_refused(std::string(100000, '['), "nested more than");
  expect_json_refused(R"({"version":)" + std::string(100000, '['), "nested more than");
  expect_json_refused(R"({"model":{"type":"BPE","merges":)" + std::string(100000, '['), "flat list");
  expect_json_refused("{\"model\":\"\xff\"}", "not JSON");
}

TEST(HostileTokenizerJson, Ids) {
  expect_json_refused(bpe(R"({"a":0,"b":0})", "[]"), "two tokens have the id 0");
  expect_json_refused(bpe(R"({"a":0,"a":1})", "[]"), "twice");
  expect_json_refused(bpe(R"({"a":-1})", "[]"), "the id -1");
  expect_json_refused(bpe(R"({"a":2147483648})", "[]"), "the id 2147483648");
  expect_json_refused(bpe(R"({"a":2000000000})", "[]"), "the id 2000000000");
  expect_json_refused(bpe(R"({"a":18446744073709551615})", "[]"), "the id 9223372036854775807");
  expect_json_refused(bpe(R"({"a":0})", R"(["a b"])"), "names a token that the vocabulary lacks");
  expect_json_refused(bpe(R"({"a":0,"b":1})", R"(["a b"])"), "names a token that the vocabulary lacks");
  const std::string added = R"(,"added_tokens":[{"id":)";
  expect_json_refused(bpe(R"({"a":0})", "[]", added + R"(1000000000,"content":"<s>"}])"),
                      "the id 1000000000");
  expect_json_refused(bpe(R"({"a":0})", "[]", added + R"(-5,"content":"<s>"}])"), "the id -5");
  expect_json_refused(bpe(R"({"a":0})", "[]", added + R"(0,"content":"<s>"}])"),
                      "which is 'a' in the vocabulary");
  expect_json_refused(bpe(R"({"a":0})", "[]", added + R"(1,"content":"<s>"},{"id":1,"content":"</s>"}])"),
                      "two added tokens");
  expect_json_refused(bpe(R"({"a":0})", "[]", added + R"(1,"content":"<s>"},{"id":2,"content":"<s>"}])"),
                      "two ids");
  expect_json_refused(bpe(R"({"a":0})", "[]", added + R"(1,"content":""}])"), "no text");
  expect_json_refused(bpe(R"({"a":0})", "[]", added + R"(1,"content":")" + std::string(5000, 'x') + R"("}])"),
                      "more than 4096");
  expect_json_refused(
      bpe(R"({"a":0})", "[]",
          R"(,"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}],)"
          R"("special_tokens":{"x":{"ids":[77]}}})"),
      "adds the id 77");
  expect_json_refused(R"({"model":{"type":"Unigram","unk_id":3,"vocab":[["a",0.0]]}})", "unk_id 3");
}

TEST(HostileTokenizerJson, PartsNotKnown) {
  const auto with = [](const std::string& part) { return bpe(R"({"a":0})", "[]", "," + part); };
  expect_json_refused(with(R"("normalizer":{"type":"BertNormalizer"})"), "'BertNormalizer' is not supported");
  expect_json_refused(with(R"("pre_tokenizer":{"type":"UnicodeScripts"})"),
                      "'UnicodeScripts' is not supported");
  expect_json_refused(with(R"("decoder":{"type":"WordPiece"})"), "'WordPiece' is not supported");
  expect_json_refused(with(R"("post_processor":{"type":"Odd"})"), "'Odd' is not supported");
  expect_json_refused(
      with(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"})"),
      "cannot be compiled");
  expect_json_refused(
      with(R"-("pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?~a)"},"behavior":"Isolated"})-"),
      "not supported");
  expect_json_refused(with(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"a"},"behavior":"Odd"})"),
                      "'Odd' is not known");
  expect_json_refused(
      with(R"("pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"odd"})"), "'odd'");
  expect_json_refused(with(R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"AAAA!"})"),
                      "not base64");
  expect_json_refused(with(R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"/////wAA"})"),
                      "does not fit");
  expect_json_refused(bpe(R"({"a":0})", "[]", "", R"(,"dropout":0.1)"), "dropout");
  expect_json_refused(bpe(R"({"a":0})", "[]", "", R"(,"continuing_subword_prefix":"##")"),
                      "continuing_subword_prefix");
  expect_json_refused(bpe(R"({"a":0})", "[]", "", R"(,"unk_token":"<unk>")"), "lacks the unk_token");
  expect_refused(
      [] {
        hf_tokenizer(bpe(R"({"a":0})", "[]"), {R"({"added_tokens_decoder":{"x":{}}})", ""}, "t");
      },
      "is no id", "config");
}

// A pattern that never ends must be given up, not waited for.
std::string repeated(const std::string& one, int times) {
  std::string all = one;
  for (int i = 1; i < times; ++i) all += "," + one;
  return all;
}

// Small files whose steps make gigabytes out of a word.
TEST(HostileTokenizerJson, TextsThatGrow) {
  const std::string vocab = R"({"a":0,"b":1,"aa":2})", merges = R"(["a a"])";
  const std::string twice = R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  const auto sequence = [](const char* part, const char* list, const std::string& steps) {
    return std::string(",\"") + part + R"(":{"type":"Sequence",")" + list + "\":[" + steps + "]}";
  };
  const auto tokenizer = [&](const std::string& rest) {
    return hf_tokenizer(bpe(vocab, merges, rest), {}, "t.json");
  };
  const std::string words(1000, 'a');
  for (const std::string& step :
       {twice, std::string(R"({"type":"Replace","pattern":{"Regex":"a"},"content":"aa"})"),
        R"({"type":"Prepend","prepend":")" + std::string(2000, 'a') + "\"}",
        R"({"type":"Replace","pattern":{"String":"a"},"content":")" + std::string(1 << 20, 'a') + "\"}"}) {
    const auto grows = tokenizer(sequence("normalizer", "normalizers", repeated(step, 28)));
    expect_refused([&] { grows->encode(words); }, "the normalizer makes a text longer than 16256 bytes",
                   step);
  }
  const auto spelt =
      tokenizer(sequence("pre_tokenizer", "pretokenizers",
                         repeated(R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})", 28)));
  expect_refused([&] { spelt->encode("\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9"); },
                 "the pre-tokenizer makes a text longer than", "ByteLevel");
  const auto marked = tokenizer(R"(,"pre_tokenizer":{"type":"Metaspace","split":false,"replacement":")" +
                                std::string(1 << 20, 'x') + "\"}");
  expect_refused([&] { marked->encode("a b"); }, "the pre-tokenizer makes a text longer than", "Metaspace");
  const auto decodes = tokenizer(sequence("decoder", "decoders", repeated(twice, 28)));
  expect_refused([&] { decodes->decode({0, 2}); }, "the decoder makes a text longer than", "decoder");
  expect_refused([&] { decodes->piece(0); }, "the decoder makes a text longer than", "decoder");
  // What Unicode itself does is no reason: one character, eleven times its bytes.
  std::string ligatures;
  for (int i = 0; i < 500; ++i) ligatures += "\uFDFA";
  EXPECT_NO_THROW(tokenizer(R"(,"normalizer":{"type":"NFKD"})")->encode(ligatures));
}

TEST(HostileTokenizerJson, TooManyStepsAndIds) {
  const std::string vocab = R"({"a":0,"b":1})";
  const auto steps = [&](const char* part, const char* list, const std::string& step) {
    return bpe(
        vocab, "[]",
        std::string(",\"") + part + R"(":{"type":"Sequence",")" + list + "\":[" + repeated(step, 257) + "]}");
  };
  expect_json_refused(steps("normalizer", "normalizers", R"({"type":"NFC"})"),
                      "the normalizer has more than 256 steps");
  expect_json_refused(steps("pre_tokenizer", "pretokenizers", R"({"type":"WhitespaceSplit"})"),
                      "the pre-tokenizer has more than 256 steps");
  expect_json_refused(steps("decoder", "decoders", R"({"type":"Fuse"})"),
                      "the decoder has more than 256 steps");
  const auto of_template = [&](int items, int ids) {
    return bpe(vocab, "[]",
               R"(,"post_processor":{"type":"TemplateProcessing","single":[)" +
                   repeated(R"({"SpecialToken":{"id":"x"}})", items) +
                   R"(,{"Sequence":{"id":"A"}}],"special_tokens":{"x":{"ids":[)" + repeated("0", ids) +
                   "]}}}");
  };
  expect_json_refused(of_template(20000, 20000), "the template puts more than 256 tokens around a text");
  expect_json_refused(of_template(257, 1), "the template puts more than 256 tokens around a text");
  EXPECT_EQ(hf_tokenizer(of_template(2, 100), {}, "t.json")->encode("").size(), 200u);
}

// Stripped one by one from the front, a long token takes a minute.
TEST(HostileTokenizerJson, StrippingIsLinear) {
  const std::string token(1 << 20, 'a');
  const auto tokenizer =
      hf_tokenizer(bpe(R"({"b":1,")" + token + "\":0}", "[]",
                       R"(,"decoder":{"type":"Strip","content":"a","start":1000000,"stop":1000000})"),
                   {}, "t.json");
  EXPECT_EQ(tokenizer->decode({0, 1}), "b");
}

TEST(HostileTokenizerJson, RunawayRegex) {
  const auto tokenizer = hf_tokenizer(
      bpe(R"({"a":0})", "[]",
          R"-(,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a+)+(?=b)"},"behavior":"Isolated"})-"),
      {}, "t");
  expect_refused([&] { tokenizer->encode(std::string(60, 'a') + "c"); }, "gave up", "(a+)+");
}

TEST(HostileSentencePiece, CutAndChanged) {
  const std::string good = read_text_file(tokenizer_data("sp_unigram.model"));
  for (size_t size = 0; size < good.size(); size += 1 + size / 40) {
    try {
      sentencepiece_tokenizer(good.substr(0, size), {}, "m");  // cut between two fields it may still be whole
    } catch (const UserError&) {
    }
  }
  for (size_t at = 0; at < good.size(); at += 3) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x81);
    try {
      const auto tokenizer = sentencepiece_tokenizer(bad, {}, "m");
      tokenizer->encode("The keeper\u00a0counted \ufb01ve <tool> \xFF ships");
    } catch (const UserError&) {
    }
  }
  expect_refused([] { sentencepiece_tokenizer("", {}, "m"); }, "no pieces", "");
  expect_refused([] { sentencepiece_tokenizer("\x0a\xff\xff\xff\xff\x0f", {}, "m"); }, "longer than the file",
                 "");
  expect_refused(
      [] {
        sentencepiece_tokenizer(
            "\x0a\x03\x0a\x01"
            "a",
            {}, "m");
      },
      "no unknown piece", "");
}

TEST(HostileSentencePiece, Charsmap) {
  const auto blob = [](std::initializer_list<uint32_t> units, const std::string& rest) {
    const uint32_t size = static_cast<uint32_t>(units.size() * 4);
    std::string bytes(reinterpret_cast<const char*>(&size), 4);
    for (const uint32_t unit : units) bytes.append(reinterpret_cast<const char*>(&unit), 4);
    return bytes + rest;
  };
  std::string_view replacement;
  expect_refused([&] { Charsmap(blob({0}, "")); }, "does not fit", "no replacements");
  expect_refused([&] { Charsmap(blob({0}, "x")); }, "has no end", "no end");
  EXPECT_EQ(Charsmap(blob({0xFFFFFFFF}, std::string(1, '\0'))).longest("a", 0, &replacement), 0u);
  // The root's offset leads to unit 'a' ^ 0x60, which says a value hangs at a place outside.
  const std::string outside = blob({0x60u << 10, 'a' | 1 << 8 | 0x3FFu << 10}, std::string(1, '\0'));
  expect_refused([&] { Charsmap(outside).longest("a", 0, &replacement); }, "points outside", "outside");
}

TEST(HostileTiktoken, Lines) {
  const auto refuse = [](const std::string& text, const std::string& words) {
    expect_refused([&] { tiktoken_tokenizer(text, llama3_rules(), "r"); }, words, text);
  };
  refuse("IQ==", "expected base64 and a rank");
  refuse("IQ== x\n", "expected base64 and a rank");
  refuse("I!== 0\n", "not base64");
  refuse("IQ== 4294967296\n", "out of range");
  refuse("IQ== -1\n", "out of range");
  refuse("IQ== 0\nIg== 0\n", "two tokens have the rank 0");
  refuse("IQ== 0\nIQ== 1\n", "twice");
  refuse("IQ== 0\nIg== 2\n", "the largest is 2");
  refuse("= 0\n", "is empty");
  refuse("IQ== 0\n", "no token for the byte 0");
  EXPECT_FALSE(is_tiktoken("\x0a\x05hello"));
  EXPECT_TRUE(is_tiktoken("IQ== 0\n"));
}

TEST(HostileLlama2c, CutAndChanged) {
  const std::string good = read_text_file(tokenizer_data("llama2c.bin"));
  const auto refuse = [](const std::string& bytes, int64_t size, const std::string& words) {
    expect_refused([&] { llama2c_tokenizer(bytes, size, "t.bin"); }, words, bytes.substr(0, 20));
  };
  refuse("", -1, "truncated");
  refuse(good.substr(0, 102), -1, "truncated");
  refuse(good, 1000000000000, "truncated");
  refuse(good, 100, "begins with 259");
  refuse(std::string(4, '\xff') + good.substr(4), -1, "longest token -1");
  refuse(std::string("\x01\0\0\0", 4) + good.substr(4), -1, "the longest should have 1");
  std::string nan = good;
  nan.replace(4, 4, std::string("\0\0\xc0\x7f", 4));
  refuse(nan, -1, "not a number");
  std::string swapped = good;  // "<0x00>" is no longer where it must be
  swapped[swapped.find("<0x00>") + 3] = 'F';
  refuse(swapped, -1, "should be the byte 0");
}

TEST(HostileGguf, Vocabularies) {
  const auto base = GgufFile::open(tokenizer_data("gpt2_style.gguf"));
  const std::string path = testing::TempDir() + "fathom_hostile_vocab_" + std::to_string(getpid()) + ".gguf";
  const auto refuse = [&](const std::string& key, GgufValue value, const std::string& words) {
    std::vector<GgufKeyValue> metadata;
    for (const GgufKeyValue& entry : base->metadata()) {
      if (entry.key != key) metadata.push_back(entry);
    }
    metadata.push_back({key, std::move(value)});
    write_gguf(path, metadata, {});
    expect_refused([&] { load_tokenizer(path); }, words, key);
  };
  const auto text = [](const char* value) { return GgufValue{GgufType::kString, std::string(value)}; };
  const auto number = [](int64_t value) { return GgufValue{GgufType::kU32, value}; };
  const auto texts = [](std::vector<std::string> values) {
    return GgufValue{GgufType::kArray, GgufArray{GgufType::kString, std::move(values)}};
  };
  const auto numbers = [](std::vector<int64_t> values) {
    return GgufValue{GgufType::kArray, GgufArray{GgufType::kI32, std::move(values)}};
  };
  for (const char* model : {"bert", "t5", "rwkv", "plamo2", "no_vocab", "hybriddna"}) {
    refuse("tokenizer.ggml.model", text(model), "'" + std::string(model) + "'");
  }
  refuse("tokenizer.ggml.pre", text("gpt-3"), "'gpt-3'");
  refuse("tokenizer.ggml.model", text("llama"), "must have scores");
  refuse("tokenizer.ggml.merges", texts({"a zzz"}), "names a token that the vocabulary lacks");
  refuse("tokenizer.ggml.merges", texts({"ab"}), "not two tokens");
  refuse("tokenizer.ggml.merges", numbers({1}), "another type");
  refuse("tokenizer.ggml.tokens", numbers({1}), "another type");
  refuse("tokenizer.ggml.tokens", texts({"a", "b"}), "token types for 2 tokens");
  refuse("tokenizer.ggml.token_type", numbers({1}), "1 token types");
  refuse("tokenizer.ggml.bos_token_id", number(4000000000), "4000000000");
  refuse("tokenizer.ggml.eos_token_id", number(600), "there are 600 tokens");
  std::filesystem::remove(path);
}

TEST(HostilePaths, AreNamed) {
  const std::string folder = testing::TempDir() + "fathom_no_tokenizer_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  expect_refused([&] { load_tokenizer(folder); }, "no tokenizer here", folder);
  expect_refused([] { load_tokenizer("/nowhere/at/all"); }, "no such file", "path");
  expect_refused([] { load_tokenizer("/nowhere/tokenizer.json"); }, "/nowhere/tokenizer.json", "path");
  expect_refused([] { load_tokenizer(tokenizer_data("ranks.tiktoken")); }, "not a tokenizer", "extension");
  std::filesystem::copy_file(tokenizer_data("ranks.tiktoken"), folder + "/tokenizer.model",
                             std::filesystem::copy_options::overwrite_existing);
  expect_refused([&] { load_tokenizer(folder); }, "only Llama-3's", "ranks");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace fathom
