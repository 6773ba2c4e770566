// fathom calibrate, and the budgets that it makes: as processes, on the model that ships.
#include <gtest/gtest.h>

#include <fstream>

#include "program.h"
#include "support/test_paths.h"
#include "tuned_gates.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

class CalibrateVerb : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("fathom-calibrate-verb-" + std::to_string(getpid()));
    ASSERT_NO_FATAL_FAILURE(tune_gates(folder_));
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
    return run_fathom(Words{"calibrate", "-m", kStories, "--adapter", adapter, "--data", at("text.txt"),
                            "--window", "128", "--tokens", "4096", "-q"} +
                      more);
  }
  static ProgramResult score(const std::string& adapter, const Words& more) {
    return run_fathom(Words{"score", "-m", kStories, "--adapter", adapter, "-p",
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
  // Of each kind how sure the miss is, over its sequences.
  for (const auto& [kind, shares] : result["kinds"].items()) {
    ASSERT_EQ(result["kind_errors"][kind].size(), 2u) << result.dump();
    for (const double error : result["kind_errors"][kind]) {
      EXPECT_GT(error, 0) << kind;
      EXPECT_LT(error, 0.05) << kind;
    }
  }
  // The same in words, and the table serves.
  const auto words = calibrate(gates, {"--budgets", "0.7,0.9"});
  EXPECT_NE(words.out.find("on other text"), std::string::npos) << words.out;
  EXPECT_NE(words.out.find(" ± "), std::string::npos) << words.out;
  const auto full = score(gates, {"--budget", "1"}).json(), less = score(gates, {"--saved", "0.25"}).json();
  EXPECT_EQ(full["block_flops"], 1.0);
  EXPECT_LT(less["block_flops"], 0.95);
  expect_refused(score(gates, {"--budget", "0.5"}), 1,
                 "a budget of 0.5 is below the smallest of the calibration table, 0.7");
}

// Budgets hold on other text where thresholds are found on much: 32,768 tokens, unless another number is
// asked for.
TEST_F(CalibrateVerb, AsksForManyTokens) {
  const std::string gates = adapter("tokens");
  const Words base{"calibrate",    "-m",       kStories, "--adapter", gates,       "--data",
                   at("text.txt"), "--window", "128",    "-q",        "--budgets", "0.8"};
  EXPECT_NE(run_fathom(base).err.find(" tokens to calibrate with, 32768 were asked for"), std::string::npos);
  EXPECT_EQ(run_fathom(base + Words{"--tokens", "4096"}).err.find("were asked for"), std::string::npos);
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

// One router that rates all sequences alike: its attention runs for all rows or for none, and what lies
// between is missed.
TEST_F(CalibrateVerb, AMissOnTheTextItselfIsSaid) {
  Words words{"tune", "-m", kStories, "--method", "mind_skip", "-o", at("alike"), "-q"};
  for (const char* setting : {"schedule_steps=1", "schedule.rate=1e-12", "context=32", "batch=2",
                              "method.layers=[2]", "method.pool=full"})
    words = words + Words{"--set", setting};
  const auto tuned =
      run_fathom(words + Words{"--data", at("text.txt"), "--set", "data_cache=" + at("cache")});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  const ProgramResult missed = calibrate(at("alike"), {"--budgets", "0.95", "--json"});
  const double achieved = missed.json()["achieved"][0];
  EXPECT_NEAR(achieved, 0.925, 0.01);
  EXPECT_NE(missed.err.find("a budget of 0.95 is asked for and 0.9"), std::string::npos) << missed.err;
  const ProgramResult met = calibrate(at("alike"), {"--budgets", std::to_string(achieved), "--json"});
  EXPECT_EQ(met.err.find("is asked for"), std::string::npos) << met.err;
  expect_refused(calibrate(at("alike"), {"--budgets", "0.85"}), 1, "cannot meet a budget of 0.85");
}

// What each budget leaves of the cache: `info` from the table, and a run from what it really held.
TEST_F(CalibrateVerb, TheCachesBytesAreReported) {
  const std::string gates = adapter("bytes");
  const auto edit = [&](const char* rule) {
    nlohmann::json json = nlohmann::json::parse(std::ifstream(gates + "/adapter_config.json"));
    json["method"]["skipped_kv"] = rule;
    std::ofstream(gates + "/adapter_config.json") << json.dump();
  };
  edit("hide");
  ASSERT_EQ(calibrate(gates, {"--budgets", "0.6,0.9"}).exit_code, 0);
  const Words info{"info", "-m", kStories, "--adapter", gates};
  const nlohmann::json out = run_fathom(info + Words{"--json"}).json();
  EXPECT_EQ(out["calibration"]["f32"], (std::vector<double>{0.9, 0.6}));
  ASSERT_EQ(out["cache_held"]["f32"].size(), 2u);
  const double most = out["cache_held"]["f32"][0], least = out["cache_held"]["f32"][1];
  EXPECT_LT(most, 1);
  EXPECT_LT(least, most - 0.1);
  EXPECT_GT(least, 0.3);
  const ProgramResult plain = run_fathom(info);
  EXPECT_NE(plain.out.find("budgets for f32        [0.9,0.6], holding [0."), std::string::npos) << plain.out;
  EXPECT_NE(plain.out.find("cache f16              "), std::string::npos) << plain.out;
  EXPECT_EQ(out["cache"]["f16"]["bytes_per_token"], out["cache_bytes_per_token"]);
  EXPECT_EQ(out["cache"]["f32"]["bytes_full_context"], 512 * 5 * 4 * 8 * 4 * 2);
  EXPECT_FALSE(out["cache"].contains("q8_0"));  // heads of 8
  // 400 tokens at that budget: about as much as the table says, and all of it at full depth.
  const auto run = [&](const char* budget) {
    return run_fathom({"generate", "-m", kStories, "--adapter", gates, "-p", "Once upon a time", "-n", "400",
                       "--temp", "0", "--ignore-eos", "--json", "--budget", budget})
        .json();
  };
  const nlohmann::json full = run("1"), less = run("0.6");
  EXPECT_EQ(full["cache_bytes"], full["cache_bytes_dense"]);
  EXPECT_EQ(less["cache_bytes_dense"], full["cache_bytes_dense"]);
  EXPECT_NEAR(less["cache_bytes"].get<double>() / less["cache_bytes_dense"].get<double>(), least,
              0.2);  // pages that are not full
  edit("project");   // every row leaves its entry, whatever was measured
  EXPECT_EQ(run_fathom(info + Words{"--json"}).json()["cache_held"]["f32"], (std::vector<double>{1, 1}));
}

// Several files, text and JSONL, each with its share of the tokens; what each kind gave is said.
TEST_F(CalibrateVerb, SeveralKindsOfText) {
  const std::string gates = adapter("kinds");
  std::ofstream lines(at("lines.jsonl"));
  std::ifstream book(at("text.txt"));
  for (std::string line; std::getline(book, line);)
    lines << nlohmann::json{{"text", line + " " + line + " " + line}}.dump() << "\n";
  lines.close();
  const Words files{"--data", at("text.txt") + ":3", "--data", at("lines.jsonl") + ":1"};
  const auto run = [&](const Words& data) {
    return run_fathom(Words{"calibrate", "-m", kStories, "--adapter", gates, "--window", "128", "--tokens",
                            "2048", "--budgets", "0.8", "-q", "--json"} +
                      data);
  };
  const auto both = run(files).json();
  ASSERT_TRUE(both["kinds"].contains("text") && both["kinds"].contains("lines") &&
              both["kinds"].contains("sequences of 64 tokens"))
      << both.dump();
  EXPECT_NEAR(both["kinds"]["text"][0].get<double>(), 0.8, 0.05);
  // Its weight counts, and a broken line is named.
  const Words heavier{"--data", at("text.txt") + ":1", "--data", at("lines.jsonl") + ":9"};
  EXPECT_NE(run(heavier).json()["achieved"], both["achieved"]);
  std::ofstream(at("broken.jsonl")) << "{\"text\": \"one\"}\n{\"nothing\": 1}\n";
  expect_refused(run({"--data", at("broken.jsonl")}), 1, "broken.jsonl:2: ");
  expect_refused(run({"--data", at("nowhere.txt")}), 1, "nowhere.txt");
  // Another kind only checks.
  std::ofstream(at("upper.txt")) << std::string(4000, 'A');
  const auto checked = run(files + Words{"--check", at("upper.txt")}).json();
  EXPECT_TRUE(checked["kinds"].contains("upper")) << checked.dump();
  EXPECT_EQ(checked["achieved"], both["achieved"]);
  EXPECT_EQ(checked["checked"], both["checked"]);
  expect_refused(run(files + Words{"--check", at("nowhere.txt")}), 1, "nowhere.txt");
}

// The dial by quality: a budget is found, stored and used; what cannot be kept is refused with the range.
TEST_F(CalibrateVerb, QualityChoosesTheBudget) {
  const std::string gates = adapter("quality");
  const auto made = calibrate(gates, {"--budgets", "0.9,0.7", "--quality", "kl=1,ppl=4", "--json"}).json();
  ASSERT_EQ(made["qualities"].size(), 2u);
  const double budget = made["qualities"][0]["budget"];
  EXPECT_EQ(made["qualities"][0]["measure"], "kl");
  EXPECT_LE(made["qualities"][0]["bound"], 1.0);
  EXPECT_GE(budget, 0.7);
  const auto by_quality = score(gates, {"--quality", "kl=1"}).json();
  EXPECT_EQ(by_quality["logprobs"], score(gates, {"--budget", std::to_string(budget)}).json()["logprobs"]);
  EXPECT_EQ(score(gates, {"--quality", "kl=1.5"}).json()["logprobs"],
            by_quality["logprobs"]);  // kept by kl=1
  expect_refused(score(gates, {"--quality", "kl=0.5"}), 1,
                 "no calibrated budget keeps kl=0.5: the table has kl=1, ppl=4");
  expect_refused(score(gates, {"--quality", "kl"}), 2, "--quality: a quality must be kl=NATS");
  expect_refused(score(gates, {"--quality", "ppl=0.9"}), 2, "ppl=RATIO (above 1)");
  expect_refused(score(gates, {"--quality", "kl=1", "--budget", "0.8"}), 2, "--quality chooses the budget");
  expect_refused(calibrate(gates, {"--quality", "kl=1e-9"}), 1, "cannot be kept: on ");
  // Its table is still kept, and so is the quality beside it.
  const std::string bare = adapter("unreachable");
  expect_refused(score(bare, {"--budget", "0.7"}), 1, "needs a calibration table");
  expect_refused(calibrate(bare, {"--budgets", "0.9,0.7", "--quality", "kl=1e-9,kl=1"}), 1,
                 "; the table of budgets is stored in " + bare);
  EXPECT_EQ(score(bare, {"--budget", "0.7"}).exit_code, 0);
  EXPECT_EQ(score(bare, {"--quality", "kl=1"}).json()["logprobs"], by_quality["logprobs"]);
  expect_refused(score(bare, {"--quality", "kl=0.5"}), 1, "the table has kl=1;");
  const ProgramResult range = calibrate(gates, {"--budgets", "0.7", "--quality", "kl=1e-9"});
  expect_refused(range, 1, " (at a budget of 1, on ");
  expect_refused(range, 1, " (at 0.7, on ");
  expect_refused(calibrate(gates, {"--quality", "words=3"}), 2, "a quality must be kl=NATS");
  for (const char* tokens : {"1024", "2048"})  // none and one of them
    expect_refused(run_fathom({"calibrate", "-m", kStories, "--adapter", gates, "--data", at("text.txt"),
                               "--window", "512", "--tokens", tokens, "--quality", "kl=1"}),
                   1, "--quality needs two sequences of each kind of text that are kept back");
  expect_refused(run_fathom({"score", "-m", kStories, "-p", "Once upon a time", "--quality", "kl=1"}), 2,
                 "a bound on kl needs an adapter with a calibration table");
}

TEST_F(CalibrateVerb, ThresholdsAreSteeredUnlessTheyAreToStay) {
  for (const char* steer : {"auto", "off"}) {
    const std::string gates = adapter("steered");
    const auto result = calibrate(gates, {"--budgets", "0.8", "--steer", steer, "--json"}).json();
    EXPECT_NEAR(result["achieved"][0].get<double>(), 0.8, 0.005);
    std::ifstream file(gates + "/adapter_config.json");
    const std::string table{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(table.find("steering") != std::string::npos, steer == std::string("auto"));
    EXPECT_EQ(score(gates, {"--budget", "0.9"}).exit_code, 0);
  }
  expect_refused(calibrate(adapter("steered"), {"--steer", "maybe"}), 2, "--steer must be one of");
}

TEST_F(CalibrateVerb, AnAdapterOfAnotherBaseIsRefused) {
  const std::string gates = adapter("other");
  const std::string llama = std::string(FATHOM_TEST_DATA) + "/models/llama3";
  for (const Words& verb : {Words{"generate", "-p", "x"}, Words{"score", "-p", "one two three"},
                            Words{"info"}, Words{"inspect", "-p", "one two three", "-o", at("nothing")},
                            Words{"calibrate", "--data", at("text.txt")}}) {
    const ProgramResult r = run_fathom(verb + Words{"-m", llama, "--adapter", gates});
    expect_refused(r, 1, gates + ": ");
    EXPECT_TRUE(r.err.starts_with("fathom: ")) << r.err;
    EXPECT_EQ(r.err.find('\n'), r.err.size() - 1) << r.err;
  }
  EXPECT_FALSE(fs::exists(at("nothing")));
}

TEST_F(CalibrateVerb, AFullContextUnderSkipping) {
  const std::string gates = adapter("full");
  ASSERT_EQ(calibrate(gates, {"--budgets", "0.7"}).exit_code, 0);
  const Words base{"generate", "-m", kStories,       "--adapter", gates, "--budget",        "0.7",
                   "--temp",   "0",  "--ignore-eos", "--json",    "-p",  "Once upon a time"};
  const nlohmann::json full = run_fathom(base + Words{"-c", "16", "-n", "-1"}).json();
  EXPECT_EQ(full["finish_reason"], "length");
  EXPECT_EQ(full["generated_tokens"], 12);
  const nlohmann::json shifted = run_fathom(base + Words{"-c", "16", "-n", "40", "--context-shift"}).json();
  EXPECT_EQ(shifted["generated_tokens"], 40);
  EXPECT_GE(shifted["context_shifts"], 2);
  EXPECT_LT(shifted["block_flops"], 0.95);
  expect_refused(run_fathom(base + Words{"-c", "4"}), 1, "the prompt has 5 tokens, the context 4");
}

// Two texts that differ only in every fourth window, which is kept back: the same table, checked otherwise.
TEST_F(CalibrateVerb, WhatIsKeptBackIsNotFitted) {
  const auto text = [](int kept_back) {
    const Words ones{" the", " and", " was", " they", " she"};  // a token each
    std::string all;
    for (int i = 1; i < 1024; ++i) {  // the first is BOS
      const int window = i / 64, kind = window % 4 == 3 ? kept_back : 1;
      all += ones[static_cast<size_t>((i * i / 7 + i * kind) % 5)];
    }
    return all.substr(1);  // the tokenizer puts a space before
  };
  nlohmann::json tables[2], checked[2];
  for (const int other : {0, 1}) {
    const std::string gates = adapter("kept"), file = at("kept.txt");
    std::ofstream(file) << text(other);
    const auto ids = run_fathom({"tokenize", "-m", kStories, "--file", file, "--json"}).json();
    ASSERT_EQ(ids["count"], 1024) << "each word is to be one token";
    const ProgramResult made =
        run_fathom({"calibrate", "-m", kStories, "--adapter", gates, "--data", file, "--window", "64",
                    "--tokens", "768", "--budgets", "0.8", "--json"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    checked[other] = made.json()["checked"];
    tables[other] =
        nlohmann::json::parse(std::ifstream(gates + "/adapter_config.json"))["calibration"]["f32"]["points"];
    for (nlohmann::json& point : tables[other]) {
      point.erase("checked");
      point.erase("kinds");
    }
  }
  EXPECT_EQ(tables[0], tables[1]);
  EXPECT_NE(checked[0], checked[1]);
}

}  // namespace
}  // namespace fathom
