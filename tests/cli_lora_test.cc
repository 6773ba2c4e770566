// An adapter with a LoRA through the verbs: as processes, on a small model.
#include <gtest/gtest.h>

#include "program.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

class LoraVerbs : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("fathom-lora-verbs-" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ifstream book(FATHOM_SOURCE_DIR "/configs/small/secret_garden.txt");
    std::string text(24000, ' ');
    book.read(text.data(), static_cast<std::streamsize>(text.size()));
    std::ofstream(at("text.txt")) << text;
    Words words{"tune", "-m", kStories, "--method", "gate_skip", "-o", at("adapter"), "-q"};
    for (const char* setting : {"schedule_steps=6", "schedule.rate=0.02", "context=32", "batch=2",
                                "method.gate=scalar", "method.init_std=0.2", "lora.rank=4", "lora.alpha=8"})
      words = words + Words{"--set", setting};
    const auto tuned =
        run_fathom(words + Words{"--data", at("text.txt"), "--set", "data_cache=" + at("cache")});
    ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  static std::string at(const std::string& name) { return (folder_ / name).string(); }
  static ProgramResult score(const std::string& model, const Words& more) {
    return run_fathom(Words{"score", "-m", model, "-p", "Once upon a time there was a girl", "--json"} +
                      more);
  }
  static double nll(const std::string& model, const Words& more) {
    return score(model, more).json()["nll"].get<double>();
  }
  static void expect_refused(const ProgramResult& result, int exit_code, const std::string& what) {
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_NE(result.err.find(what), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  }

  static inline fs::path folder_;
};

TEST_F(LoraVerbs, MergedAndBesideAreTheSameModel) {
  const double base = nll(kStories, {}),
               merged = nll(kStories, {"--adapter", at("adapter"), "--budget", "1"});
  const auto side =
      score(kStories, {"--adapter", at("adapter"), "--budget", "1", "--lora-mode", "side"}).json();
  EXPECT_GT(std::abs(merged - base), 0.01);
  EXPECT_NEAR(side["nll"].get<double>(), merged, 1e-4);
  EXPECT_EQ(side["block_flops"], 1.0);  // its products are overhead, as gates are
  EXPECT_GT(side["net_flops"].get<double>(),
            score(kStories, {"--adapter", at("adapter"), "--budget", "1"}).json()["net_flops"].get<double>() +
                0.01);
  const auto info = run_fathom({"info", "-m", kStories, "--adapter", at("adapter"), "--json"}).json();
  EXPECT_EQ(info["lora_rank"], 4);
  EXPECT_EQ(info["lora_alpha"], 8.0);
  expect_refused(score(kStories, {"--adapter", at("adapter"), "--lora-mode", "both"}), 2, "--lora-mode");
}

TEST_F(LoraVerbs, OtherMatricesAreAWarning) {
  fs::copy(at("adapter"), at("other"), fs::copy_options::recursive);
  const std::string config = at("other") + "/adapter_config.json";
  nlohmann::json json = nlohmann::json::parse(std::ifstream(config));
  for (auto& each : json["fingerprint"]["projections"]) each = 1.2 * each.get<double>();
  std::ofstream(config) << json.dump();
  const auto warned = score(kStories, {"--adapter", at("other")});
  EXPECT_EQ(warned.exit_code, 0);
  EXPECT_NE(warned.err.find("was made for other weights: these are 17 % away"), std::string::npos)
      << warned.err;
  EXPECT_EQ(score(kStories, {"--adapter", at("adapter")}).err.find("other weights"), std::string::npos);
}

TEST_F(LoraVerbs, AForcedMergeLeavesNoOldMethod) {
  const auto convert = [&](const std::string& adapter) {
    return run_fathom({"convert", "-m", kStories, "--adapter", adapter, "-o", at("m.gguf"), "--force"});
  };
  EXPECT_EQ(convert(at("adapter")).exit_code, 0);
  EXPECT_TRUE(fs::exists(at("m.skip")));
  const auto again = convert(at("adapter") + "/lora");  // a LoRA without a method
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_FALSE(fs::exists(at("m.skip")));
}

TEST_F(LoraVerbs, CalibratesTheAdaptedModel) {
  const Words how{"--data",  at("text.txt"), "--window",       "128",    "--tokens", "4096", "--budgets",
                  "0.9,0.8", "-o",           at("calibrated"), "--json", "-q"};
  const auto table = run_fathom(Words{"calibrate", "-m", kStories, "--adapter", at("adapter")} + how).json();
  EXPECT_GT(table["kl_to_base"].get<double>(), 0.001);
  EXPECT_LT(table["kl_to_base"].get<double>(), 5);
  EXPECT_TRUE(fs::exists(at("calibrated") + "/lora/adapter_model.safetensors"));
  EXPECT_EQ(nll(kStories, {"--adapter", at("calibrated"), "--budget", "1"}),
            nll(kStories, {"--adapter", at("adapter"), "--budget", "1"}));
  for (const char* mode : {"merge", "side"}) {
    const auto result =
        score(kStories, {"--adapter", at("calibrated"), "--budget", "0.8", "--lora-mode", mode});
    EXPECT_LT(result.json()["block_flops"].get<double>(), 0.97);
    EXPECT_EQ(result.err.find("made for other weights"), std::string::npos) << result.err;
  }
}

// A bound on quality is against the base without the LoRA: it is no smaller than what the LoRA alone changes.
TEST_F(LoraVerbs, QualityIsMeasuredAgainstTheBase) {
  const auto calibrate = [](const std::string& mode, const std::string& quality) {
    fs::remove_all(at("bounded"));
    return run_fathom(
        {"calibrate", "-m",           kStories,   "--adapter", at("adapter"), "--lora-mode", mode,
         "--data",    at("text.txt"), "--window", "128",       "--tokens",    "4096",        "--budgets",
         "0.99",      "--quality",    quality,    "-o",        at("bounded"), "--json",      "-q"});
  };
  for (const char* mode : {"merge", "side"}) {
    const auto made = calibrate(mode, "kl=100").json();
    EXPECT_GT(made["kl_to_base"].get<double>(), 0.5);
    EXPECT_GT(made["qualities"][0]["bound"].get<double>(), 0.8 * made["kl_to_base"].get<double>());
    expect_refused(calibrate(mode, "kl=0.3"), 1, "kl=0.3 cannot be kept");
    EXPECT_TRUE(fs::exists(at("bounded") + "/adapter_config.json"));  // the table of budgets is kept
  }
}

// A sweep holds the base and the adapted model side by side.
TEST_F(LoraVerbs, SweepsTheAdaptedModel) {
  // Nothing but a LoRA: without it the two would be one.
  Words words{"tune", "-m", kStories, "--method", "dense", "-o", at("alone"), "-q", "--data", at("text.txt")};
  for (const char* setting :
       {"schedule_steps=6", "schedule.rate=0.02", "context=32", "batch=2", "lora.rank=4"})
    words = words + Words{"--set", setting};
  const auto tuned = run_fathom(words + Words{"--set", "data_cache=" + at("cache")});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  std::ofstream(at("short.txt")) << "Once upon a time there was a girl who had a red ball.\n";
  const auto swept =
      run_fathom({"sweep", "-m", kStories, "--adapter", at("alone"), "--tasks", at("short.txt"), "--budgets",
                  "1", "--baselines", "none", "-o", at("sweep"), "-q"});
  ASSERT_EQ(swept.exit_code, 0) << swept.err;
  const auto results = nlohmann::json::parse(std::ifstream(at("sweep") + "/results.json"));
  std::vector<double> values;
  for (const auto& point : results["points"])
    values.push_back(point["metrics"]["token_perplexity"]["value"].get<double>());
  ASSERT_EQ(values.size(), 2u) << results.dump();
  EXPECT_GT(std::abs(values[0] - values[1]), 0.01);
}

// Random skipping runs on the adapted model. The shallower models are the base's; stderr and the page say so.
TEST_F(LoraVerbs, SweepsTheAdaptedModelBesideItsBaselines) {
  const auto calibrated =
      run_fathom({"calibrate", "-m", kStories, "--adapter", at("adapter"), "--data", at("text.txt"),
                  "--window", "128", "--tokens", "4096", "--budgets", "0.8", "-o", at("routers"), "-q"});
  ASSERT_EQ(calibrated.exit_code, 0) << calibrated.err;
  std::ofstream(at("girl.txt")) << "Once upon a time there was a girl who had a red ball and a dog.\n";
  const auto swept = run_fathom({"sweep", "-m", kStories, "--adapter", at("routers"), "--tasks",
                                 at("girl.txt"), "--budgets", "0.8", "--seeds", "2", "--data", at("text.txt"),
                                 "--order-tokens", "256", "-o", at("beside")});
  ASSERT_EQ(swept.exit_code, 0) << swept.err;
  const auto results = nlohmann::json::parse(std::ifstream(at("beside") + "/results.json"));
  EXPECT_EQ(results["seeds"], 2);
  for (const auto& point : results["points"]) {
    if (point["kind"] != "method") continue;
    EXPECT_GT(point["skip_ratio"].get<double>(), 0);
    EXPECT_TRUE(point.contains("random")) << point;
    EXPECT_TRUE(point.contains("shallow")) << point;
  }
  const std::string note =
      "routers: random skipping runs on the weights with the LoRA; the shallower models are the base";
  EXPECT_NE(swept.err.find(note), std::string::npos) << swept.err;
  std::ifstream file(at("beside") + "/index.html");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(page.find(note), std::string::npos);
  EXPECT_NE(page.find("without the LoRA of routers"), std::string::npos);
}

TEST_F(LoraVerbs, ConvertWritesAMergedModel) {
  const auto convert = [](const std::string& model, const std::string& out, const Words& more) {
    return run_fathom(Words{"convert", "-m", model, "--adapter", at("adapter"), "-o", out} + more);
  };
  ASSERT_EQ(convert(kStories, at("merged.gguf"), {"--type", "f32"}).exit_code, 0);
  ASSERT_EQ(convert(kStories, at("merged-hf"), {}).exit_code, 0);
  const Words full{"--budget", "1"};
  const double wanted = nll(kStories, Words{"--adapter", at("adapter")} + full);
  for (const char* name : {"merged.gguf", "merged-hf"}) {
    EXPECT_NEAR(nll(at(name), full), wanted, 1e-4);  // its gates came along
    expect_refused(score(at(name), {"--adapter", at("adapter")}), 1, "is part of");
  }
  const auto again =
      score(at("merged.gguf"), {"--adapter", at("adapter"), "--force-adapter", "--budget", "1"});
  EXPECT_GT(std::abs(again.json()["nll"].get<double>() - wanted), 1e-3);
  const auto info = run_fathom({"info", "-m", at("merged.gguf"), "--json"}).json();
  EXPECT_EQ(info["metadata"]["fathom.adapted"], at("adapter"));
  expect_refused(convert(at("merged.gguf"), at("twice.gguf"), {}), 1, "is part of");
}

}  // namespace
}  // namespace fathom
