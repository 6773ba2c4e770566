// fathom calibrate, and the budgets that it makes: as processes, on the model that ships.
#include <gtest/gtest.h>

#include "program.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class CalibrateVerb : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("fathom-calibrate-verb-" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ifstream book(FATHOM_SOURCE_DIR "/configs/small/secret_garden.txt");
    std::string text(24000, ' ');
    book.read(text.data(), static_cast<std::streamsize>(text.size()));
    std::ofstream(at("text.txt")) << text;
    Words words{"tune", "-m", "builtin", "--method", "gate_skip", "-o", at("gates"), "-q"};
    for (const char* setting : {"schedule_steps=1", "context=32", "batch=2", "method.gate=scalar",
                                "method.frozen_backbone=true", "method.init_std=0.2"})
      words = words + Words{"--set", setting};
    const auto tuned =
        run_fathom(words + Words{"--data", at("text.txt"), "--set", "data_cache=" + at("cache")});
    ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  static std::string at(const std::string& name) { return (folder_ / name).string(); }
  // A copy of the untouched adapter.
  static std::string adapter(const std::string& name) {
    fs::remove_all(at(name));
    fs::copy(at("gates"), at(name), fs::copy_options::recursive);
    return at(name);
  }
  static ProgramResult calibrate(const std::string& adapter, const Words& more) {
    return run_fathom(Words{"calibrate", "-m", "builtin", "--adapter", adapter, "--data", at("text.txt"),
                            "--window", "128", "--tokens", "4096", "-q"} +
                      more);
  }
  static ProgramResult score(const std::string& adapter, const Words& more) {
    return run_fathom(Words{"score", "-m", "builtin", "--adapter", adapter, "-p",
                            "Once upon a time there was a girl", "--json"} +
                      more);
  }
  static void expect_refused(const ProgramResult& result, int exit_code, const std::string& what) {
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_NE(result.err.find(what), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  }

  static inline fs::path folder_;
};

TEST_F(CalibrateVerb, ReportsWhatWasAskedAndWhatCame) {
  const std::string gates = adapter("reported");
  const auto result = calibrate(gates, {"--budgets", "0.7,0.9", "--json"}).json();
  ASSERT_EQ(result["budgets"], (std::vector<double>{0.9, 0.7}));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(result["achieved"][i].get<double>(), result["budgets"][i].get<double>(), 0.005);
    EXPECT_NEAR(result["checked"][i].get<double>(), result["budgets"][i].get<double>(), 0.02);
  }
  // The same in words, and the table serves.
  const auto words = calibrate(gates, {"--budgets", "0.7,0.9"});
  EXPECT_NE(words.out.find("on other text"), std::string::npos) << words.out;
  const auto full = score(gates, {"--budget", "1"}).json(), less = score(gates, {"--saved", "0.25"}).json();
  EXPECT_EQ(full["block_flops"], 1.0);
  EXPECT_LT(less["block_flops"], 0.95);
  expect_refused(score(gates, {"--budget", "0.5"}), 1,
                 "a budget of 0.5 is below the smallest of the calibration table, 0.7");
}

TEST_F(CalibrateVerb, ATableOfAnotherWeightTypeServesWithAWarning) {
  const std::string gates = adapter("types");
  ASSERT_EQ(calibrate(gates, {"--budgets", "0.8", "--dtype", "q8_0"}).exit_code, 0);
  const auto other = score(gates, {"--budget", "0.8"});
  EXPECT_EQ(other.exit_code, 0);
  EXPECT_NE(other.err.find("was calibrated for q8_0 weights, not f32"), std::string::npos) << other.err;
  ASSERT_EQ(calibrate(gates, {"--budgets", "0.9"}).exit_code, 0);
  EXPECT_EQ(score(gates, {"--budget", "0.9"}).err.find("was calibrated for"), std::string::npos);
  EXPECT_EQ(score(gates, {"--budget", "0.8", "--dtype", "q8_0"}).exit_code, 0);
}

TEST_F(CalibrateVerb, ANewFolderLeavesTheOldOneAlone) {
  const std::string gates = adapter("old");
  fs::remove_all(at("new"));
  ASSERT_EQ(calibrate(gates, {"--budgets", "0.8", "-o", at("new")}).exit_code, 0);
  EXPECT_EQ(score(at("new"), {"--budget", "0.8"}).exit_code, 0);
  expect_refused(score(gates, {"--budget", "0.8"}), 1,
                 "needs a calibration table: make one with fathom calibrate -m ");
  expect_refused(score(gates, {"--budget", "0.8"}), 1, " --adapter " + gates + " --data FILE");
  EXPECT_EQ(score(gates, {"--budget", "1"}).json()["skip_ratio"], 0);
  expect_refused(calibrate(gates, {"-o", at("new")}), 2, "-o must name a new folder");
}

TEST_F(CalibrateVerb, WhatDoesNotFitIsRefused) {
  const std::string gates = adapter("refused");
  expect_refused(calibrate(gates, {"--budgets", "0.8,1.2"}), 2, "--budgets must be numbers above 0");
  expect_refused(calibrate(gates, {"--budgets", "0.8,nan"}), 2, "--budgets must be numbers above 0");
  expect_refused(calibrate(gates, {"--budgets", "0.02"}), 1, "cannot meet a budget of 0.02");
  expect_refused(calibrate(gates, {"--force-adapter"}), 2, "give a new folder with -o");
  const std::string config = gates + "/adapter_config.json";
  const auto edit = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = nlohmann::json::parse(std::ifstream(config));
    change(json);
    std::ofstream(config) << json.dump();
  };
  edit([](nlohmann::json& json) {
    json["calibration"]["f32"] =
        nlohmann::json::parse(R"([{"budget": 0.8, "achieved": 0.8, "thresholds": [1]}])");
  });
  expect_refused(score(gates, {"--budget", "0.8"}), 1, "a calibration point needs 10 thresholds, got 1");
  edit([](nlohmann::json& json) {
    json["calibration"]["f32"][0]["thresholds"] = std::vector<double>(10, 1e300);
  });
  expect_refused(score(gates, {"--budget", "0.8"}), 1, "a threshold must be a finite number");
  edit([](nlohmann::json& json) { json["fingerprint"]["tokenizer"] = "another"; });
  expect_refused(score(gates, {"--budget", "0.8"}), 1, "a model with another tokenizer");
  expect_refused(calibrate(gates, {"--budgets", "0.8"}), 1, "a model with another tokenizer");
}

}  // namespace
}  // namespace fathom
