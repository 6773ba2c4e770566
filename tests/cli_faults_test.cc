// What goes wrong in the middle of the work, as a person meets it: one line that names it.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/isa.h"
#include "infer/story_model_test.h"
#include "model/save.h"
#include "program.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

// The exit code, nothing on stdout, and one line on stderr that holds `part`.
void expect_fault(const Words& arguments, int code, const std::string& part) {
  const ProgramResult r = run_fathom(arguments);
  EXPECT_EQ(r.exit_code, code) << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_TRUE(r.err.starts_with("fathom: ")) << r.err;
  EXPECT_EQ(r.err.find('\n'), r.err.size() - 1) << r.err;
  EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
}

// The file is mapped for reading: what is to change is copied first.
float* own_values(Tensor& weight) {
  const Tensor stored = weight;
  weight = Tensor::owned(Device::kCpu, DType::kF32, stored.shape());
  std::memcpy(weight.raw(), stored.raw(), static_cast<size_t>(stored.nbytes()));
  return weight.data<float>();
}

// The model that ships with the first number of one matrix changed, as a folder.
std::string spoiled(const ScratchFolder& folder, const std::string& name, int layer,
                    Tensor BlockWeights::*matrix, float value) {
  StoryModel story;
  Tensor& weight = story.model.weights.blocks[static_cast<size_t>(layer)].*matrix;
  own_values(weight)[0] = value;
  save_hf(story.ctx, story.model, folder / name, DType::kF32);
  return folder / name;
}

TEST(CliFaults, ANumberThatIsNoneNamesItsLayer) {
  const ScratchFolder folder;
  const std::string ffn = spoiled(folder, "ffn", 2, &BlockWeights::down, INFINITY),
                    attention = spoiled(folder, "attention", 4, &BlockWeights::o, NAN);
  const std::string ids = folder.write("ids.json", "[1, 403, 407, 261, 378]");
  for (const Words& verb :
       {Words{"generate", "-p", "Once upon a time", "-n", "5", "--temp", "0"},
        Words{"generate", "-p", "Once upon a time", "-n", "5", "--json"},
        Words{"generate", "-p", "Once", "-n", "9", "--speculate", "2", "--draft", "exit"},
        Words{"score", "--ids", ids, "--json"}, Words{"score", "--ids", ids, "--chunk", "1"}}) {
    for (const auto& [model, part] :
         {std::pair{ffn, "first not finite after the FFN of layer 2"},
          std::pair{attention, "first not finite after the attention of layer 4"}}) {
      Words words = verb;
      words.insert(words.end(), {"-m", model, "-q"});
      expect_fault(words, 1, part);
    }
  }
}

// Every matrix of a block, on every instruction set, in attention too; and one number of the output matrix.
TEST(CliFaults, ANumberThatIsNoneIsNeverText) {
  const ScratchFolder folder;
  const std::string ids = folder.write("ids.json", "[1, 403, 407, 261, 378, 400, 401]");
  for (Tensor BlockWeights::*matrix :
       {&BlockWeights::q, &BlockWeights::k, &BlockWeights::v, &BlockWeights::up}) {
    for (const float value : {NAN, INFINITY}) {
      std::filesystem::remove_all(folder / "model");
      const std::string model = spoiled(folder, "model", 1, matrix, value);
      for (const Isa isa : supported_isas()) {
        const ProgramOptions with{"", {std::string("FATHOM_ISA=") + name_of(isa)}, {}};
        const ProgramResult scored = run_fathom({"score", "-m", model, "--ids", ids, "-q"}, with);
        EXPECT_EQ(scored.exit_code, 1) << name_of(isa) << scored.out;
        EXPECT_NE(scored.err.find("of layer 1"), std::string::npos) << name_of(isa) << scored.err;
        const ProgramResult written = run_fathom(
            {"generate", "-m", model, "-p", "Once upon a time", "-n", "3", "--temp", "0", "-q"}, with);
        EXPECT_EQ(written.exit_code, 1) << name_of(isa) << written.out;
      }
    }
  }
  StoryModel story;
  own_values(story.model.weights.embedding)[500 * story.model.config.width] =
      NAN;  // a token that is not there
  story.model.weights.output = story.model.weights.embedding;
  save_hf(story.ctx, story.model, folder / "output", DType::kF32);
  const ProgramResult scored = run_fathom({"score", "-m", folder / "output", "--ids", ids, "-q"});
  EXPECT_EQ(scored.exit_code, 1) << scored.out;
  EXPECT_NE(scored.err.find("after the output matrix"), std::string::npos) << scored.err;
}

// One scale of a quantised matrix, and one weight of a norm, as files that were damaged: said when they are
// loaded.
TEST(CliFaults, AScaleThatIsNoneIsNamed) {
  const ScratchFolder folder;
  for (const char* type : {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0"}) {
    StoryModel story;
    convert_weights(story.ctx, story.model, DType::kF32, true);
    DType dtype;
    ASSERT_TRUE(parse_dtype(type, &dtype));
    Tensor& k = story.model.weights.blocks[3].k;
    k = convert_tensor(story.ctx, k, dtype);
    const uint16_t nan = 0x7e00;
    std::memcpy(k.data<std::byte>() + 2 * row_bytes(dtype, k.shape().last()), &nan, 2);
    const std::string path = folder / (std::string(type) + ".gguf");
    save_gguf(story.ctx, story.model, path);
    expect_fault({"generate", "-m", path, "-p", "x"}, 1,
                 "tensor 'blk.3.attn_k.weight' has a scale that is not finite, in row 2");
  }
  StoryModel story;
  own_values(story.model.weights.blocks[2].attention_norm)[7] = NAN;
  save_hf(story.ctx, story.model, folder / "norm", DType::kF32);
  expect_fault({"score", "-m", folder / "norm", "-p", "x"}, 1,
               "holds nan at 7: every number of it must be finite");
}

TEST(CliFaults, HelpThatCannotBeWritten) {
  for (const char* verb : {"generate", "train", "info"}) {
    const std::string command = std::string(FATHOM_BINARY) + " " + verb + " -h > /dev/full 2>/dev/null";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 1) << verb;
  }
}

// A limit on the size of files ends the write, not the process, and leaves nothing behind.
TEST(CliFaults, AFileThatMayNotGrow) {
  const ScratchFolder folder;
  const std::string out = folder / "out.gguf", err = folder / "err.txt";
  const std::string command = "ulimit -f 16; " + std::string(FATHOM_BINARY) + " convert -m " + kStories +
                              " --tokenizer " FATHOM_SOURCE_DIR "/tests/data/stories260k/tokenizer.bin -o " +
                              out + " 2> " + err;
  const int status = std::system(("bash -c '" + command + "'").c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"err.txt"});
  std::ifstream in(err);
  const std::string said{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(said.find("cannot write"), std::string::npos) << said;
}

TEST(CliFaults, ALinkToItselfIsNamed) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder / "adapter");
  const std::string config = folder / "adapter/adapter_config.json";
  std::filesystem::create_symlink("adapter_config.json", config);
  expect_fault({"score", "-m", kStories, "--adapter", folder / "adapter", "-p", "x"}, 1,
               config + ": Too many levels of symbolic links");
}

// A pipe without a writer, wherever a file is expected: an error at once, and no waiting.
TEST(CliFaults, APipeIsNoFile) {
  const ScratchFolder folder;
  const std::string pipe = folder / "pipe", text = folder.write("text.txt", "Once upon a time.\n");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0666), 0);
  const auto beside = [&](const std::string& name) {
    std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
    std::filesystem::create_symlink(pipe, folder / name);
    return std::filesystem::path(folder / name).parent_path().string();
  };
  const std::string hf = beside("hf/config.json"), adapter = beside("adapter/adapter_config.json"),
                    tokenizer = beside("tokenizer/tokenizer.json"), run = beside("run/log.jsonl");
  beside("checkpoint/step-1/DONE");
  folder.write("recipe.json", R"({"tokenizer": ")" + std::string(FATHOM_SOURCE_DIR) +
                                  R"(/tests/data/stories260k/tokenizer.bin", "data": [")" + text +
                                  R"("], "data_cache": ")" + (folder / "cache") +
                                  R"(", "context": 8, "steps": 1, "batch": 1,
                                  "model": {"width": 16, "layers": 1, "heads": 2, "ffn_width": 16}})");
  const std::string recipe = folder / "recipe.json";
  for (const Words& words :
       {Words{"generate", "-m", pipe, "-p", "x"}, Words{"generate", "-m", hf, "-p", "x"},
        Words{"generate", "-m", kStories, "--tokenizer", pipe, "-p", "x"},
        Words{"generate", "-m", kStories, "--tokenizer", tokenizer, "-p", "x"},
        Words{"generate", "-m", kStories, "--adapter", adapter, "-p", "x"},
        Words{"score", "-m", kStories, "--ids", pipe}, Words{"train", "--config", pipe, "-o", folder / "x"},
        Words{"train", "--config", recipe, "--data", pipe, "-o", folder / "x"},
        Words{"train", "--config", recipe, "-q", "-o", run}, Words{"eval", "-m", kStories, "--tasks", pipe},
        Words{"info", "-m", pipe}}) {
    const ProgramResult r = run_fathom(words);
    EXPECT_TRUE(r.exit_code == 1 || r.exit_code == 2)
        << words[0] << " " << words.back() << ": " << r.exit_code;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  }
  const auto resumed =
      run_fathom({"train", "--config", recipe, "-q", "-o", folder / "checkpoint", "--resume"});
  EXPECT_EQ(resumed.exit_code, 1);
  EXPECT_NE(resumed.err.find("step-1 is passed over"), std::string::npos) << resumed.err;
  beside("hub/models--a--b/refs/main");
  const auto hub = run_fathom({"info", "-m", "a/b"}, {"", {"HF_HUB_CACHE=" + (folder / "hub")}, {}});
  EXPECT_EQ(hub.exit_code, 1) << hub.err;
}

TEST(CliFaults, BudgetsOutOfRange) {
  for (const char* verb : {"generate", "score", "inspect"}) {
    const auto refused = [&](const char* option, const char* value, const std::string& part) {
      Words words{verb, "-m", kStories, "-p", "Once upon a time", option, value};
      if (words[0] == "inspect") words.insert(words.end(), {"-o", "nowhere"});
      expect_fault(words, 2, part);
    };
    for (const char* value : {"0", "-0.5", "1.01"})
      refused("--budget", value, std::string("the budget must be above 0 and at most 1, got ") + value);
    refused("--saved", "1", "the budget must be above 0 and at most 1, got 0");
    refused("--saved", "-0.1", "the budget must be above 0 and at most 1, got 1.1");
    for (const char* value : {"nan", "inf", "much"}) {
      refused("--budget", value, std::string("--budget must be a number, got '") + value);
      refused("--saved", value, std::string("--saved must be a number, got '") + value);
    }
  }
}

}  // namespace
}  // namespace fathom
