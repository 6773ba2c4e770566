// fathom train and tune as processes: what a crash, a signal or a wrong recipe leaves behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "base/sha256.h"
#include "program.h"
#include "support/test_paths.h"

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

// A run that never ends by itself, in a process.
class LiveRun {
 public:
  LiveRun(const std::string& config, const std::string& out) : child_(fork()) {
    if (child_ > 0) return;
    execl(FATHOM_BINARY, FATHOM_BINARY, "train", "--config", config.c_str(), "-q", "-o", out.c_str(), "-t",
          "1", "--set", "schedule_steps=1000000", static_cast<char*>(nullptr));
    _exit(127);
  }
  ~LiveRun() { end(); }
  LiveRun(const LiveRun&) = delete;
  LiveRun& operator=(const LiveRun&) = delete;
  pid_t id() const { return child_; }
  void end() {
    if (child_ > 0) kill(child_, SIGKILL), waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  pid_t child_;
};

TEST_F(TrainVerb, OneRunToAFolder) {
  const std::string out = at("run");
  LiveRun live(at("recipe.json"), out);
  for (int i = 0; i < 6000 && !fs::exists(out + "/step-5/DONE"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  fs::create_directories(out + "/step-77.tmp-1");  // as if it were being written
  std::ofstream(out + "/step-77.tmp-1/.fathom-checkpoint") << "";
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--resume"}}) {
    std::vector<std::string> words{"-o", out};
    words.insert(words.end(), more.begin(), more.end());
    const auto second = train(words);
    EXPECT_EQ(second.exit_code, 1);
    EXPECT_EQ(second.err,
              "fathom: " + out + " is in use: process " + std::to_string(live.id()) + " is writing to it\n");
    EXPECT_TRUE(fs::exists(out + "/step-77.tmp-1"));
  }
  live.end();
  const auto resumed = train({"-o", out, "--resume", "--set", "schedule_steps=1000000", "--steps", "1"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_FALSE(fs::exists(out + "/step-77.tmp-1"));
  EXPECT_FALSE(fs::exists(out + "/.lock"));
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
  EXPECT_NE(
      error({"--set", "model.layers=9223372036854775807"}, 1).find("the number of layers must be between"),
      std::string::npos);
  EXPECT_NE(error({"--set", "model.bos=4096"}, 1).find("model.bos must be a token of the vocabulary of"),
            std::string::npos);
  EXPECT_NE(error({"--set", "model.eos=[1, -2]"}, 1).find("model.eos must be a token"), std::string::npos);
  EXPECT_NE(error({"--set", "batch=4611686018427387904"}, 1).find("less than 2^30"), std::string::npos);
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

// As seen from the recipe's file, whatever the working folder is.
TEST_F(TrainVerb, ARecipesDataLiesBesideIt) {
  fs::create_directories(at("recipes/data"));
  fs::copy(at("data.txt"), at("recipes/data/mine.txt"));
  std::ofstream(at("recipes/recipe.json"))
      << R"({"tokenizer": ")" << kStories.substr(0, kStories.rfind('/')) << R"(/tokenizer.bin",
             "data": ["data/mine.txt:1"], "schedule_steps": 1, "batch": 2, "context": 32,
             "model": {"width": 32, "layers": 2, "heads": 2, "ffn_width": 48}})";
  const auto run = run_fathom({"train", "--config", at("recipes/recipe.json"), "-o", at("run"), "--set",
                               "data_cache=" + at("cache"), "-q"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
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
  EXPECT_NE(again.err.find("the file is there already: --force replaces it"), std::string::npos) << again.err;
  EXPECT_EQ(run_fathom(quantize + Words{"--force"}).exit_code, 0);
  EXPECT_EQ(run_fathom({"info", "-m", at("small.gguf"), "--json"}).json()["method"], "skip_layer");
  fs::remove(at("small.gguf"));
  const auto beside = run_fathom(quantize);
  EXPECT_EQ(beside.exit_code, 2);
  EXPECT_NE(beside.err.find("small.skip is there already"), std::string::npos) << beside.err;
  // A dense model takes nothing of it over.
  EXPECT_EQ(run_fathom({"convert", "-m", kStories, "-o", at("small.gguf"), "--force"}).exit_code, 0);
  EXPECT_EQ(run_fathom({"info", "-m", at("small.gguf"), "--json"}).json()["method"], "dense");
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

// A file's f32 tensors whose name ends so, one after another.
std::vector<float> tensors_named(const fs::path& path, const std::string& suffix) {
  const std::string bytes = file_text(path);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::vector<float> all;
  const nlohmann::json tensors = nlohmann::json::parse(bytes.substr(8, header));
  for (const auto& [name, tensor] : tensors.items()) {
    if (!name.ends_with(suffix)) continue;
    const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1], old = all.size();
    all.resize(old + (end - begin) / sizeof(float));
    std::memcpy(all.data() + old, bytes.data() + 8 + header + begin, end - begin);
  }
  return all;
}

// On a pretrained base Mixture-of-Depths begins with open gates; a model from nothing begins without a bias.
TEST_F(TrainVerb, MixtureOfDepthsBeginsOpenOnAPretrainedBase) {
  const Words settings{"--method", "mixture_of_depths", "--data", at("data.txt"), "-q"};
  const Words sets{"--set", "schedule_steps=1", "--set", "schedule.rate=1e-12",      "--set", "context=32",
                   "--set", "batch=2",          "--set", "data_cache=" + at("cache")};
  const auto tuned = run_fathom(Words{"tune", "-m", kStories, "-o", at("mod")} + settings + sets);
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_EQ(tensors_named(at("mod") + "/adapter_model.safetensors", "router.bias"),
            std::vector<float>(5, 5.0f));
  const auto new_one =
      run_fathom(Words{"train", "--config", at("recipe.json"), "-o", at("new")} + settings + sets);
  ASSERT_EQ(new_one.exit_code, 0) << new_one.err;
  const std::string adapter = at("new") + "/last/skip/adapter_model.safetensors";
  EXPECT_FALSE(tensors_named(adapter, "router.weight").empty());
  EXPECT_TRUE(tensors_named(adapter, "router.bias").empty());
}

// Whatever a method's paper trains: the base stays as it is unless all weights are asked for.
TEST_F(TrainVerb, TuneAlwaysMakesAnAdapter) {
  const auto tune = [&](const std::string& method, const std::string& out, const Words& more = {}) {
    return run_fathom(Words{"tune", "-m", kStories, "--method", method, "--data", at("data.txt"), "-o",
                            at(out), "--set", "schedule_steps=2", "--set", "context=32", "--set", "batch=2",
                            "--set", "prepare_tokens=64", "--set", "data_cache=" + at("cache")} +
                      more);
  };
  for (const std::string method : {"gate_skip", "skip_layer", "mixture_of_depths", "calm", "short_gpt"}) {
    const auto made = tune(method, method, {"--json"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_EQ(made.json().at("adapter"), at(method));
    EXPECT_FALSE(fs::exists(at(method) + "/last/model.safetensors"));
    const auto scored =
        run_fathom({"score", "-m", kStories, "--adapter", at(method), "-p", "Once upon a time", "--json"});
    EXPECT_EQ(scored.exit_code, 0) << method << ": " << scored.err;
  }
  const auto planned = tune("priced", "priced", {"--dry-run", "--json"});
  const auto ran = tune("priced", "priced");
  const std::string count = planned.json().at("trained_parameters").dump();
  EXPECT_NE(ran.err.find("priced: " + count + " parameters train"), std::string::npos) << ran.err;

  EXPECT_NE(tune("layer_skip", "exits").err.find("everything runs: change its settings"), std::string::npos);

  EXPECT_EQ(tune("dense", "none").exit_code, 2);
  EXPECT_NE(tune("dense", "none").err.find("fathom train -m BASE"), std::string::npos);
  EXPECT_EQ(tune("gate_skip", "none", {"--set", "method.frozen_backbone=false"}).exit_code, 2);
  EXPECT_FALSE(fs::exists(at("none")));
  const auto all = tune("gate_skip", "all", {"--all-weights"});
  ASSERT_EQ(all.exit_code, 0) << all.err;
  EXPECT_NE(all.err.find("all weights train"), std::string::npos) << all.err;
  EXPECT_TRUE(fs::exists(at("all") + "/last/model.safetensors"));
  EXPECT_FALSE(fs::exists(at("all") + "/adapter_config.json"));
}

}  // namespace
}  // namespace fathom
