// The verbs that read and write files: what they refuse, what they write, and that nothing half-written is
// left.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "base/mapped_file.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "program.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

const std::string kTestData = FATHOM_TEST_DATA;

void expect_file_refused(const Words& arguments, int code, const std::string& part,
                         const ProgramOptions& options = {}) {
  const ProgramResult r = run_fathom(arguments, options);
  std::string command;
  for (const std::string& word : arguments) command += word + " ";
  SCOPED_TRACE(command + "-> " + r.err);
  EXPECT_EQ(r.exit_code, code);
  EXPECT_EQ(r.out, "");
  EXPECT_EQ(r.err.find('\n'), r.err.size() - 1) << "one line";
  EXPECT_TRUE(r.err.starts_with("fathom: "));
  EXPECT_NE(r.err.find(part), std::string::npos) << "expected: " << part;
}

std::string greedy_text(const std::string& model, const Words& more = {}) {
  return run_fathom(
             Words{"generate", "-m", model, "-p", "Once upon a time", "-n", "40", "--temp", "0", "--json"} +
             more)
      .json()
      .at("text");
}

TEST(CliFiles, WrongFilesAreRefusedByWhatTheyAre) {
  const ScratchFolder folder;
  const auto refused = [](const std::string& path, const std::string& part) {
    expect_file_refused({"generate", "-m", path, "-p", "x"}, 1, part);
    expect_file_refused({"info", "-m", path}, 1, part);
  };
  refused(folder / "missing.gguf", "no such file or folder");
  refused(folder.write("note.txt", "just a text"), "note.txt");
  refused(folder.write("pytorch_model.bin",
                       std::string("\x80\x02}q\x00(X\x05\x00\x00\x00", 12) + std::string(64, 'x')),
          "pickle");
  refused(folder.write("consolidated.pth",
                       std::string("PK\x03\x04", 4) + std::string(26, '\0') + "archive/data.pkl"),
          "safetensors");
  refused(folder.write("empty.gguf", ""), "empty");
  refused(folder.write("cut.gguf", std::string("GGUF\x03\0\0\0\x01", 9)), "gguf");
  folder.write("lora/adapter_config.json", R"({"peft_type": "LORA", "base_model_name_or_path": "org/base"})");
  refused(folder / "lora", "LoRA");
  folder.write("strange/config.json", R"({"model_type": "mamba", "architectures": ["MambaForCausalLM"]})");
  refused(folder / "strange", "mamba");
  folder.write("\x1b[1mred\n/config.json", R"({"model_type": "mamba"})");
  refused(folder / "\x1b[1mred\n", "\\x1b[1mred\\x0a");  // and expect_file_refused wants one line
  folder.write("bare/readme.txt", "nothing");
  refused(folder / "bare", "bare");
  fs::copy(kStories, folder / "alone.bin");
  expect_file_refused({"generate", "-m", folder / "alone.bin", "-p", "x"}, 1, "--tokenizer");
  expect_file_refused({"tokenize", "-m", folder / "alone.bin", "-p", "x"}, 1, "--tokenizer");
}

TEST(CliFiles, Llama2cWithItsTokenizer) {
  const ScratchFolder folder;
  fs::copy(kStories, folder / "alone.bin");
  const std::string vocabulary = fs::path(kStories).parent_path() / "tokenizer.bin";
  EXPECT_EQ(greedy_text(folder / "alone.bin", {"--tokenizer", vocabulary}), greedy_text(kStories));
  EXPECT_EQ(greedy_text(kStories, {"--no-mmap"}), greedy_text(kStories));
}

TEST(CliFiles, ModelsOfTheHuggingFaceCache) {
  const ScratchFolder cache;
  ProgramOptions options;
  options.environment = {"HF_HUB_CACHE=" + cache / "hub"};
  expect_file_refused({"info", "-m", "some-org/tiny"}, 1, "not in the Hugging Face cache", options);
  const std::string repository = "hub/models--some-org--tiny/";
  fs::create_directories(cache / (repository + "snapshots"));
  fs::copy(kTestData + "/models/llama3", cache / (repository + "snapshots/0123abc"));
  cache.write(repository + "refs/main", "0123abc\n");
  EXPECT_EQ(run_fathom({"info", "-m", "some-org/tiny", "--json"}, options).json().at("architecture"),
            "llama");
  cache.write(repository + "refs/main", "../../escape\n");  // no commit: the only snapshot is taken
  EXPECT_EQ(run_fathom({"info", "-m", "some-org/tiny", "--json"}, options).json().at("layers").is_number(),
            true);
  options.environment = {"HF_HOME=" + cache / ""};
  EXPECT_EQ(run_fathom({"info", "-m", "some-org/tiny"}, options).exit_code, 0);
}

TEST(CliFiles, InfoSaysWhatAFileHolds) {
  const nlohmann::json story = run_fathom({"info", "-m", kStories, "--json"}).json();
  EXPECT_EQ(story.at("architecture"), "llama");
  EXPECT_EQ(story.at("parameters"), 260032);
  EXPECT_EQ(story.at("layers"), 5);
  EXPECT_EQ(story.at("context"), 512);
  EXPECT_EQ(story.at("dtypes").at("f32").at("tensors"), 47);
  EXPECT_EQ(story.at("cache_bytes_per_token"), 5 * 4 * 8 * 2 * 2);
  EXPECT_EQ(story.at("tokenizer").at("adds_bos"), true);
  EXPECT_EQ(story.at("tokenizer").at("bos").at("id"), 1);
  EXPECT_EQ(story.at("method"), "dense");
  const ProgramResult plain = run_fathom({"info", "-m", kTestData + "/models/llama31/model.gguf"});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  for (const char* part :
       {"architecture", "weights bf16", "general.architecture = llama", "cache_bytes_per_token"}) {
    EXPECT_NE(plain.out.find(part), std::string::npos) << part;
  }
}

// A GGUF without tensors is a vocabulary; one of an unknown architecture is still described.
TEST(CliFiles, InfoAndTokenizeOfAVocabulary) {
  const ScratchFolder folder;
  const auto source = GgufFile::open(kTestData + "/models/llama3/model.gguf");
  write_gguf(folder / "vocab.gguf", source->metadata(), {});
  const nlohmann::json vocab = run_fathom({"info", "-m", folder / "vocab.gguf", "--json"}).json();
  EXPECT_EQ(vocab.at("vocabulary_only"), true);
  EXPECT_EQ(vocab.at("parameters"), 0);
  EXPECT_TRUE(vocab.at("tokenizer").contains("kind"));
  EXPECT_EQ(run_fathom({"tokenize", "-m", folder / "vocab.gguf", "-p", "a b", "--json"}).json(),
            run_fathom({"tokenize", "-m", kTestData + "/models/llama3", "-p", "a b", "--json"}).json());
  expect_file_refused({"generate", "-m", folder / "vocab.gguf", "-p", "x"}, 1, "vocab.gguf");

  std::vector<GgufKeyValue> metadata = source->metadata();
  for (GgufKeyValue& pair : metadata) {
    if (pair.key == "general.architecture") pair.value.value = std::string("mamba");
  }
  std::vector<NamedTensor> tensors;
  for (const GgufTensorInfo& info : source->tensors()) tensors.push_back({info.name, source->tensor(info)});
  write_gguf(folder / "mamba.gguf", metadata, tensors);
  const nlohmann::json unknown = run_fathom({"info", "-m", folder / "mamba.gguf", "--json"}).json();
  EXPECT_EQ(unknown.at("architecture"), "mamba");
  EXPECT_EQ(unknown.at("runs"), false);
  EXPECT_NE(unknown.at("why_not").get<std::string>().find("mamba"), std::string::npos);
  expect_file_refused({"generate", "-m", folder / "mamba.gguf", "-p", "x"}, 1, "mamba");
}

TEST(CliFiles, TokenizeThereAndBack) {
  const ScratchFolder folder;
  const std::string text = "Once upon a time, caf\xC3\xA9 \xF0\x9F\x99\x82\n  two";
  const nlohmann::json encoded = run_fathom({"tokenize", "-m", kStories, "-p", text, "--json"}).json();
  EXPECT_EQ(encoded.at("count"), encoded.at("ids").size());
  EXPECT_EQ(encoded.at("ids")[0], 1);
  EXPECT_EQ(run_fathom({"tokenize", "-m", kStories, "--file", folder.write("t.txt", text), "--json"}).json(),
            encoded);
  const std::string ids = folder.write("ids.json", encoded.at("ids").dump());
  EXPECT_EQ(run_fathom({"tokenize", "-m", kStories, "--decode", "--no-special", "--ids", ids, "--json"})
                .json()
                .at("text"),
            text);
  EXPECT_EQ(run_fathom({"tokenize", "-m", kStories, "-p", "Once upon", "--no-special"}).out, "403 407\n");
  const Words decode{"tokenize", "-m", kStories, "--decode", "--ids"};
  expect_file_refused(decode + Words{folder.write("bad.json", "[1, 512]")}, 1,
                      "entry 1 must be a token id from 0 to 511, got 512");
  expect_file_refused(decode + Words{folder.write("bad.json", "[1, -1]")}, 1, "got -1");
  expect_file_refused(decode + Words{folder.write("bad.json", "[1.5]")}, 1, "got 1.5");
  expect_file_refused(decode + Words{folder.write("bad.json", "{}")}, 1, "expected a JSON list");
  expect_file_refused(decode + Words{folder.write("bad.json", "[1")}, 1, "expected a JSON list");
  expect_file_refused({"tokenize", "-m", kStories}, 2, "give a text");
  expect_file_refused({"tokenize", "-m", kStories, "--decode"}, 2, "go together");
}

TEST(CliFiles, ScoreGivesEveryLogProbability) {
  const ScratchFolder folder;
  const Words base{"score", "-m", kStories, "--json"};
  const std::string text = "Once upon a time, there was a little girl named Lily.";
  const nlohmann::json all = run_fathom(base + Words{"--file", folder.write("t.txt", text)}).json();
  const size_t count = all.at("ids").size();
  ASSERT_EQ(all.at("logprobs").size(), count);
  EXPECT_TRUE(all.at("logprobs")[0].is_null());
  double sum = 0, late = 0;
  for (size_t i = 1; i < count; ++i) {
    const double logprob = all.at("logprobs")[i];
    sum -= logprob;
    if (i >= 8) late -= logprob;
  }
  EXPECT_NEAR(all.at("nll"), sum / static_cast<double>(count - 1), 1e-6);
  EXPECT_NEAR(all.at("perplexity"), std::exp(all.at("nll").get<double>()), 1e-6);
  EXPECT_GT(all.at("seconds"), 0);
  for (const char* field :
       {"skip_ratio", "block_flops", "net_flops", "net_bytes", "cache_bytes", "cache_bytes_dense"})
    EXPECT_TRUE(all.contains(field));
  const Words ids{"--ids", folder.write("ids.json", all.at("ids").dump())};
  for (const char* chunk : {"1", "3", "100"}) {
    EXPECT_EQ(run_fathom(base + ids + Words{"--chunk", chunk}).json().at("logprobs"), all.at("logprobs"))
        << chunk;
  }
  EXPECT_NEAR(run_fathom(base + ids + Words{"--prompt-tokens", "8"}).json().at("nll"),
              late / static_cast<double>(count - 8), 1e-6);
  const nlohmann::json top = run_fathom(base + ids + Words{"--top", "3"}).json().at("top");
  EXPECT_TRUE(top[0].is_null());
  EXPECT_EQ(top[5].size(), 3u);
  const ProgramResult plain = run_fathom({"score", "-m", kStories, "-p", text});
  EXPECT_NE(plain.out.find("perplexity"), std::string::npos);
  expect_file_refused(base + ids + Words{"--prompt-tokens", "500"}, 2,
                      "--prompt-tokens must be below the text's");
  expect_file_refused(base + Words{"--ids", folder.write("one.json", "[1]")}, 1, "at least 2 tokens");
  expect_file_refused(base + Words{"--ids", folder.write("big.json", "[1, 99999]")}, 1,
                      "from 0 to 511, got 99999");
  expect_file_refused(base, 2, "one of --file, -p and --ids");
}

// Every architecture through the program, against transformers' logits (tests/data/models).
TEST(CliFiles, ScoresMatchTransformersForEveryArchitecture) {
  const ScratchFolder folder;
  int models = 0;
  for (const auto& entry : fs::directory_iterator(kTestData + "/models")) {
    if (!fs::exists(entry.path() / "golden.safetensors")) continue;
    SCOPED_TRACE(entry.path().filename().string());
    const auto golden = SafetensorsFile::open(entry.path() / "golden.safetensors");
    const Tensor ids = *golden->find("ids"), logits = *golden->find("logits");
    std::vector<int32_t> list(ids.data<int32_t>(), ids.data<int32_t>() + ids.numel());
    const std::string file = folder.write("ids.json", nlohmann::json(list).dump());
    const nlohmann::json out =
        run_fathom({"score", "-m", entry.path(), "--ids", file, "--dtype", "f32", "--json"}).json();
    ASSERT_EQ(out.at("logprobs").size(), list.size());
    for (size_t i = 1; i < list.size(); ++i) {
      const float* row = logits.data<float>() + static_cast<int64_t>(i - 1) * logits.dim(1);
      double total = 0;
      for (int64_t v = 0; v < logits.dim(1); ++v) total += std::exp(static_cast<double>(row[v]));
      EXPECT_NEAR(out.at("logprobs")[i], row[list[i]] - std::log(total), 2e-4) << "token " << i;
    }
    ++models;
  }
  EXPECT_GE(models, 15);
}

TEST(CliFiles, ConvertedModelsSayTheSame) {
  const ScratchFolder folder;
  const std::string expected = greedy_text(kStories);
  const nlohmann::json report =
      run_fathom({"convert", "-m", kStories, "-o", folder / "a.gguf", "--json"}).json();
  EXPECT_EQ(report.at("tensors"), 47);
  EXPECT_EQ(report.at("bytes"), 260032 * 4);
  EXPECT_EQ(greedy_text(folder / "a.gguf"), expected);
  EXPECT_EQ(run_fathom({"convert", "-m", folder / "a.gguf", "-o", folder / "hf"}).exit_code, 0);
  EXPECT_EQ(greedy_text(folder / "hf"), expected);
  EXPECT_EQ(run_fathom({"convert", "-m", folder / "hf", "-o", folder / "w.safetensors", "--dtype", "bf16"})
                .exit_code,
            0);
  EXPECT_EQ(SafetensorsFile::open(folder / "w.safetensors")->find("model.embed_tokens.weight")->dtype(),
            DType::kBF16);
  EXPECT_EQ(run_fathom({"quantize", "-m", folder / "hf", "-o", folder / "q.gguf", "--type", "q8_0", "--json"})
                .json()
                .at("tensors"),
            47);
  const nlohmann::json info = run_fathom({"info", "-m", folder / "q.gguf", "--json"}).json();
  EXPECT_GT(info.at("dtypes").at("q8_0").at("tensors"), 10);
  EXPECT_EQ(greedy_text(folder / "q.gguf").substr(0, 20), expected.substr(0, 20));
  EXPECT_EQ(folder.names().size(), 4u) << "no temporary files are left";
}

// Four bits cost most in the embedding and the output matrix.
TEST(CliFiles, QuantizeKeepsTheEndsFine) {
  const ScratchFolder folder;
  const Words quantize{"quantize", "-m", "builtin", "--type", "q4_0", "-o"};
  const auto types = [&](const std::string& name, const Words& more = {}) {
    const auto made = run_fathom(quantize + Words{folder / name} + more);
    EXPECT_EQ(made.exit_code, 0) << made.err;
    const auto file = GgufFile::open(folder / name);
    std::map<std::string, DType> all;
    for (const GgufTensorInfo& each : file->tensors()) all[each.name] = each.dtype;
    return all;
  };
  const auto usual = types("usual.gguf");
  EXPECT_EQ(usual.at("token_embd.weight"), DType::kQ8_0);
  EXPECT_EQ(usual.at("blk.0.ffn_up.weight"), DType::kQ4_0);
  const auto coarse = types("coarse.gguf", {"--embedding-type", "q4_0", "--output-type", "q4_0"});
  EXPECT_EQ(coarse.at("token_embd.weight"), DType::kQ4_0);
  const auto made = run_fathom(quantize + Words{folder / "again.gguf"});
  EXPECT_NE(made.err.find("the source is q8_0 already"), std::string::npos) << made.err;
}

TEST(CliFiles, FathomModelsIsWhereBuiltinIs) {
  ProgramOptions options;
  options.environment = {"FATHOM_MODELS=/nonexistent"};
  const auto none = run_fathom({"info", "-m", "builtin"}, options);
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(none.err.find("FATHOM_MODELS names /nonexistent"), std::string::npos) << none.err;
}

TEST(CliFiles, WritingThatFailsLeavesNothing) {
  const ScratchFolder folder;
  const Words convert{"convert", "-m", kStories, "-o"};
  expect_file_refused(convert + Words{folder / "no/such/place.gguf"}, 1, "place.gguf");
  expect_file_refused({"convert", "-m", kStories}, 2, "-o is missing");
  expect_file_refused(convert + Words{folder / "hf", "--dtype", "q8_0"}, 2, "f32, f16 or bf16");
  expect_file_refused({"quantize", "-m", kStories, "-o", folder / "x.gguf", "--type", "int3"}, 2,
                      "--type must be one of f32, f16");
  expect_file_refused({"quantize", "-m", kStories, "-o", folder / "x.gguf"}, 2, "--type is missing");
  expect_file_refused({"quantize", "-m", kStories, "-o", folder / "x.bin", "--type", "q8_0"}, 2,
                      "must end in .gguf");
  EXPECT_TRUE(folder.names().empty());
  ASSERT_EQ(run_fathom(convert + Words{folder / "a.gguf"}).exit_code, 0);
  expect_file_refused({"quantize", "-m", folder / "a.gguf", "-o", folder / "a.gguf", "--type", "q8_0"}, 2,
                      "the model itself");
  folder.write("hf/keep.txt", "mine");
  expect_file_refused(convert + Words{folder / "hf"}, 1, "hf");
  EXPECT_EQ(read_text_file(folder / "hf/keep.txt"), "mine");
  EXPECT_EQ(folder.names().size(), 2u);
  const std::string before = read_text_file(folder / "a.gguf");
  expect_file_refused({"convert", "-m", "builtin", "-o", folder / "a.gguf"}, 2, "--force replaces it");
  EXPECT_EQ(read_text_file(folder / "a.gguf"), before);
  EXPECT_EQ(run_fathom({"convert", "-m", "builtin", "-o", folder / "a.gguf", "--force"}).exit_code, 0);
  EXPECT_NE(read_text_file(folder / "a.gguf"), before);
  expect_file_refused(convert + Words{folder / "out.bin"}, 2, ".bin files are not written");
}

TEST(CliFiles, BenchMeasures) {
  const nlohmann::json out = run_fathom({"bench", "-m", kStories, "-p", "16", "-n", "4", "-r", "3",
                                         "--also-dtype", "q8_0", "--batch", "2", "--json"})
                                 .json();
  for (const char* field : {"prefill_tokens_per_s", "decode_tokens_per_s"}) {
    EXPECT_GT(out.at(field).at("min"), 0);
    EXPECT_LE(out.at(field).at("min"), out.at(field).at("median"));
    EXPECT_LE(out.at(field).at("median"), out.at(field).at("max"));
  }
  EXPECT_EQ(out.at("weight_bytes"), 260032 * 4);
  EXPECT_GT(out.at("bandwidth_share"), 0);
  EXPECT_GT(out.at("bandwidth_bytes_per_s"), 1e8);
  EXPECT_EQ(out.at("net_flops"), 1);
  EXPECT_EQ(out.at("settings").size(), 2u);
  EXPECT_NE(run_fathom({"bench", "-m", kStories, "-p", "8", "-n", "4", "-r", "1"}).out.find("tokens/s"),
            std::string::npos);
  expect_file_refused({"bench", "-m", kStories, "-p", "600"}, 1, "the context has 512");
  expect_file_refused({"bench", "-m", kStories, "-p", "0", "-n", "0"}, 2, "nothing to measure");
  expect_file_refused({"bench", "-m", kStories, "--peer", "other=x"}, 2, "llama.cpp=PATH");
  expect_file_refused(
      {"bench", "-m", kStories, "-p", "8", "-n", "4", "-r", "1", "--peer", "llama.cpp=/no/such/program"}, 1,
      "cannot be started");
}

TEST(CliFiles, BenchPrintsItsTable) {
  const nlohmann::json out = run_fathom({"bench", "-m", kStories, "-p", "16", "-n", "4", "-r", "2", "--json",
                                         "--table", "decode,prefill,batch,verify,skip,routers,load"})
                                 .json();
  std::map<std::string, nlohmann::json> lines;
  for (const nlohmann::json& line : out.at("lines")) {
    EXPECT_GT(line.at("tokens_per_s").at("min"), 0) << line;
    EXPECT_TRUE(!line.contains("ratio") || line.at("ratio").at("median") > 0) << line;
    lines[line.at("name")] = line;
  }
  EXPECT_EQ(lines.size(), 23u);
  EXPECT_EQ(lines.at("2 rows of a sequence").at("bar"), 1.8);
  EXPECT_FALSE(lines.at("decode 4").contains("ratio"));  // there is no peer
  // What is not computed is not read: the ideal beside a line of skipping comes from the kernels' own counts.
  const auto ideal = [&](const char* name) { return lines.at(name).at("note").at("value").get<double>(); };
  EXPECT_GT(ideal("prefill, 50 % skipped, hide"), ideal("prefill, 25 % skipped, hide"));
  EXPECT_GT(ideal("prefill, 50 % skipped, hide"), ideal("prefill, 50 % skipped, project"));
  EXPECT_GT(ideal("prefill, 50 % skipped, project"), 1.2);
  expect_file_refused({"bench", "-m", kStories, "--table", "decode,speed"}, 2, "got 'speed'");
  expect_file_refused({"bench", "-m", kStories, "--table", "context"}, 1, "the context has 512");
}

}  // namespace
}  // namespace fathom
