// fathom train and tune as processes: what a crash, a signal or a wrong recipe leaves behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "base/sha256.h"
#include "program.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

std::string file_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class TrainVerb : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::temp_directory_path() /
        ("fathom-train-verb-" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) +
         "-" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream data(at("data.txt"));
    for (int i = 0; i < 80; ++i)
      data << "Once there was a dog with number " << i * 7 << " who liked the cat.\n<|endoftext|>\n";
    data.close();
    write_recipe("");
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  void write_recipe(const std::string& more) const {
    const fs::path vocabulary = fs::path(kStories).parent_path() / "tokenizer.bin";
    std::ofstream(at("recipe.json")) << R"({"tokenizer": )" << vocabulary << R"(, "data": [")"
                                     << at("data.txt") << R"("], "data_cache": ")" << at("cache")
                                     << R"(", // where
      "batch": 2, "context": 32, "accumulate": 2, "schedule_steps": 20, "checkpoint": {"every": 5, "keep": 0},
      "model": {"width": 32, "layers": 2, "heads": 2, "ffn_width": 64}, "method": "skip_layer")"
                                     << more << "}";
  }
  ProgramResult train(std::vector<std::string> more) const {
    std::vector<std::string> words{"train", "--config", at("recipe.json"), "-q", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run_fathom(words);
  }
  static std::map<std::string, std::string> sums(const fs::path& checkpoint) {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(checkpoint)) {
      if (entry.path().extension() != ".safetensors") continue;
      Sha256 hash;
      hash.add(file_text(entry.path()));
      all[entry.path().lexically_relative(checkpoint).string()] = hash.hex();
    }
    return all;
  }
  // Starts the run and kills it without warning once `path` is there.
  void kill_when_there(std::vector<std::string> words, const std::string& path) const {
    const pid_t child = fork();
    if (child == 0) {
      std::vector<char*> argv;
      words.insert(words.begin(), FATHOM_BINARY);
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      setenv("FATHOM_MODELS", FATHOM_SOURCE_DIR "/models", 1);
      execv(argv[0], argv.data());
      _exit(127);
    }
    for (int i = 0; i < 6000 && !fs::exists(path); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(fs::exists(path));
  }
  fs::path folder_;
};

// 20 steps = some, kill -9, resume to 20.
TEST_F(TrainVerb, ResumesBitForBitAfterAKill) {
  for (const char* threads : {"1", "2"}) {
    const std::string whole = at(std::string("whole") + threads), part = at(std::string("part") + threads);
    const auto result = train({"-o", whole, "-t", "2"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.json()["steps"], 20);
    kill_when_there({"train", "--config", at("recipe.json"), "-q", "-o", part, "-t", threads},
                    part + "/step-10/DONE");
    const auto resumed = train({"-o", part, "-t", threads, "--resume"});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_GE(sums(whole + "/step-20").size(), 3u);
    EXPECT_EQ(sums(part + "/step-20"), sums(whole + "/step-20"));
    const std::string log = file_text(part + "/log.jsonl");
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 20);
    for (const char* key : {"ce", "tokens_per_s", "checkpoint"})
      EXPECT_TRUE(resumed.json().contains(key)) << key;
  }
}

TEST_F(TrainVerb, StepsChangeNoSchedule) {
  ASSERT_EQ(train({"-o", at("a")}).exit_code, 0);
  const auto first = train({"-o", at("b"), "--steps", "7"});
  EXPECT_EQ(first.json()["steps"], 7);
  EXPECT_NE(train({"-o", at("b")}).err.find("already holds a run, at step 7"), std::string::npos);
  ASSERT_EQ(train({"-o", at("b"), "--resume"}).exit_code, 0);
  EXPECT_EQ(sums(at("a") + "/last"), sums(at("b") + "/last"));
}

TEST_F(TrainVerb, ASignalLeavesACheckpoint) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string out = at("run" + std::to_string(signal));
    const pid_t child = fork();
    if (child == 0) {
      setenv("FATHOM_MODELS", FATHOM_SOURCE_DIR "/models", 1);
      const std::string config = at("recipe.json");
      execl(FATHOM_BINARY, FATHOM_BINARY, "train", "--config", config.c_str(), "-q", "-o", out.c_str(),
            "--set", "schedule_steps=1000000", static_cast<char*>(nullptr));
      _exit(127);
    }
    for (int i = 0; i < 6000 && !fs::exists(out + "/step-5/DONE"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    kill(child, signal);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 130);
    const std::string log = file_text(out + "/log.jsonl");
    const auto steps = std::count(log.begin(), log.end(), '\n');
    EXPECT_TRUE(fs::exists(out + "/step-" + std::to_string(steps) + "/DONE")) << steps;
  }
}

TEST_F(TrainVerb, WhatIsWrongIsSaidInOneLine) {
  const auto error = [&](std::vector<std::string> more, int code) {
    more.insert(more.begin(), {"-o", at("bad")});
    const auto result = train(more);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_FALSE(fs::exists(at("bad") + "/last"));
    return result.err;
  };
  EXPECT_EQ(error({"--set", "bacth=3"}, 2),
            "fathom: --set: there is no key 'bacth' (did you mean 'batch'?)\n");
  EXPECT_EQ(error({"--set", "batch=0"}, 1), "fathom: batch must be at least 1, got 0\n");
  EXPECT_NE(error({"--data", at("none.txt")}, 1).find("none.txt"), std::string::npos);
  std::ofstream(at("bad.jsonl")) << "{\"text\": \"x\"}\n{\"txt\": 1}\n";
  EXPECT_NE(error({"--data", at("bad.jsonl")}, 1).find("bad.jsonl:2: expected an object with"),
            std::string::npos);
  std::ofstream(at("empty.txt")) << "\n";
  EXPECT_NE(error({"--data", at("empty.txt")}, 1).find("expected text to train on, it has none"),
            std::string::npos);
  EXPECT_NE(error({"--set", "model.context=8"}, 1).find("context is 32, and the model was made for"),
            std::string::npos);
  EXPECT_NE(error({"--set", "model.vocab=100"}, 1).find("more than the vocabulary of 100"),
            std::string::npos);
  EXPECT_NE(error({"--method", "nothing"}, 1).find("there is no method 'nothing'"), std::string::npos);
  EXPECT_EQ(train({}).err, "fathom: -o is missing: the folder of the run\n");
  // A folder that cannot be made.
  std::ofstream(at("file")) << "";
  const auto blocked = train({"-o", at("file") + "/run"});
  EXPECT_EQ(blocked.exit_code, 1);
  EXPECT_NE(blocked.err.find("cannot create the folder"), std::string::npos) << blocked.err;
  // Going on with another recipe.
  ASSERT_EQ(train({"-o", at("run"), "--steps", "2"}).exit_code, 0);
  const auto other =
      train({"-o", at("run"), "--resume", "--set", "clip=0.5", "--set", "method.share_end=0.3"});
  EXPECT_NE(other.err.find("these keys differ: clip, method.share_end"), std::string::npos) << other.err;
}

TEST_F(TrainVerb, DryRunStartsNothing) {
  const auto result = train({"-o", at("run"), "--dry-run"}).json();
  for (const char* key : {"parameters", "flops", "memory_bytes", "seconds", "tokens"})
    EXPECT_GT(result[key], 0) << key;
  EXPECT_FALSE(fs::exists(at("run")));
}

TEST_F(TrainVerb, AMethodGoesWithItsModel) {
  ASSERT_EQ(train({"-o", at("run"), "--steps", "1"}).exit_code, 0);
  const Words quantize{"quantize", "-m", at("run/last"), "--type", "q8_0", "-o", at("small.gguf")};
  ASSERT_EQ(run_fathom(quantize).exit_code, 0);
  EXPECT_EQ(run_fathom({"info", "-m", at("small.gguf"), "--json"}).json()["method"], "skip_layer");
  ASSERT_EQ(run_fathom({"convert", "-m", at("small.gguf"), "-o", at("folder")}).exit_code, 0);
  EXPECT_EQ(run_fathom({"info", "-m", at("folder"), "--json"}).json()["method"], "skip_layer");
  // A new method would stand beside an old model, or the other way round.
  const auto again = run_fathom(quantize);
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.err.find("small.skip is there"), std::string::npos) << again.err;
}

TEST_F(TrainVerb, AShapeThatItsFilesCannotHoldIsRefused) {
  const auto norm = train({"-o", at("run"), "--set", "model.embedding_norm=true"});
  EXPECT_EQ(norm.exit_code, 1);
  EXPECT_NE(norm.err.find("model.embedding_norm = true: architecture llama has false"), std::string::npos)
      << norm.err;
  EXPECT_FALSE(fs::exists(at("run")));
  EXPECT_EQ(train({"-o", at("run"), "--steps", "1", "--set", "model.embedding_norm=true", "--set",
                   "model.architecture=skip_middle"})
                .exit_code,
            0);
}

TEST_F(TrainVerb, TunedRoutersAreAnAdapter) {
  const auto result = run_fathom({"tune", "-m", kStories, "--method", "mind_skip", "--data", at("data.txt"),
                                  "-o", at("routers"), "--set", "schedule_steps=3", "--set", "context=32",
                                  "--set", "batch=2", "--set", "data_cache=" + at("cache"), "-q", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::exists(at("routers") + "/adapter_config.json"));
  EXPECT_LT(fs::file_size(at("routers") + "/adapter_model.safetensors"), 8192u);
  const auto scored =
      run_fathom({"score", "-m", kStories, "--adapter", at("routers"), "-p", "Once upon a time", "--json"});
  EXPECT_EQ(scored.exit_code, 0) << scored.err;
  EXPECT_NE(run_fathom({"tune", "--method", "mind_skip", "-o", at("x")}).err.find("-m is missing"),
            std::string::npos);
}

}  // namespace
}  // namespace fathom
