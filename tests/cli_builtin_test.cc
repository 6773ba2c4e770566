// The model that ships: it is there, small, and its dial turns.
#include <gtest/gtest.h>

#include "program.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

const Words kScore{
    "score",  "-m", "builtin",
    "--json", "-p", "The city lies on the river, and has been the capital of the province since the war."};

TEST(Builtin, SpeaksEnglishAtEveryBudget) {
  const nlohmann::json whole = run_fathom(kScore).json();
  EXPECT_EQ(whole.at("skip_ratio"), 0);
  EXPECT_LT(whole.at("nll"), 4.5);  // words at random: 8.3
  double before = 1;
  for (const char* budget : {"0.9", "0.8", "0.7", "0.6"}) {
    const nlohmann::json part = run_fathom(kScore + Words{"--budget", budget}).json();
    EXPECT_LT(part.at("block_flops"), before - 0.02) << budget;
    EXPECT_NEAR(part.at("nll"), whole.at("nll"), 0.4) << budget;
    before = part.at("block_flops");
  }
}

TEST(Builtin, DraftsForItself) {
  const Words generate{"generate", "-m", "builtin", "-p", "The old man", "-n", "40", "--temp", "0", "--json"};
  const nlohmann::json drafted =
      run_fathom(generate + Words{"--speculate", "4", "--draft-budget", "0.6"}).json();
  EXPECT_EQ(drafted.at("text"), run_fathom(generate).json().at("text"));
  EXPECT_GT(drafted.at("accepted"), 0);
}

TEST(Builtin, WritesJson) {
  const ScratchFolder folder;
  const std::string schema = folder.write(
      "schema.json", R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age":
                     {"type": "integer", "minimum": 18, "maximum": 99}}, "required": ["name", "age"]})");
  const Words generate{"generate", "-m",     "builtin", "-p",     "The old man",   "-n",
                       "100",      "--temp", "0",       "--json", "--json-schema", schema};
  const nlohmann::json plain = run_fathom(generate).json();
  EXPECT_EQ(plain.at("finish_reason"), "stop");
  const auto answer = nlohmann::json::parse(plain.at("text").get<std::string>());
  EXPECT_EQ(answer.size(), 2u);
  EXPECT_GE(answer.at("age"), 18);
  EXPECT_LE(answer.at("name").get<std::string>().size(), 80u);
  const nlohmann::json drafted =
      run_fathom(generate + Words{"--speculate", "4", "--draft-budget", "0.6"}).json();
  EXPECT_EQ(drafted.at("text"), plain.at("text"));
  const ProgramResult refused = run_fathom(
      {"generate", "-m", "builtin", "-p", "a", "--json-schema", folder.write("not.json", R"({"not": {}})")});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("JSON schema: 'not' at the top: this keyword is not supported"),
            std::string::npos)
      << refused.err;
  EXPECT_EQ(run_fathom({"generate", "-m", "builtin", "-p", "a", "--json-object", "--ignore-eos"}).exit_code,
            2);
}

TEST(Builtin, WhatShipsIsSmall) {
  uintmax_t all = 0, adapter = 0;
  for (const auto& entry : fs::recursive_directory_iterator(FATHOM_SOURCE_DIR "/models")) {
    if (!entry.is_regular_file()) continue;
    all += entry.file_size();
    if (entry.path().string().find("/smollm2-135m/") != std::string::npos) adapter += entry.file_size();
  }
  EXPECT_LT(all, 24'000'000u);
  EXPECT_GT(adapter, 0u);
  EXPECT_LT(adapter, 16'000'000u);
  EXPECT_LT(fs::file_size(FATHOM_SOURCE_DIR "/models/builtin/builtin.gguf"), 8'000'000u);
}

// What was asked and what ran is one line; so is the rule that runs where nothing was asked.
TEST(Builtin, SaysWhatRan) {
  const Words base{"generate", "-m", "builtin", "--temp", "0", "-p", "The old man", "-n"};
  const ProgramResult own = run_fathom(base + Words{"4"});
  EXPECT_NE(own.err.find("priced, without a budget: everything runs; calibrated budgets: 0.95, 0.9"),
            std::string::npos)
      << own.err;
  EXPECT_EQ(own.err.find("multiply-adds"), std::string::npos) << "nothing was skipped: " << own.err;
  const ProgramResult asked = run_fathom(base + Words{"8", "--budget", "0.7"});
  EXPECT_NE(asked.err.find("budget 0.7: 0."), std::string::npos) << asked.err;
  EXPECT_EQ(asked.err.find("without a budget"), std::string::npos) << asked.err;
  // Text that no router has seen, over enough rows to tell.
  const ScratchFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "0x" + std::to_string(i * 7919 % 997) + ";{}";
  const ProgramResult strange = run_fathom({"score", "-m", "builtin", "--file", folder.write("t.txt", text),
                                            "--window", "256", "--budget", "0.7", "--json"});
  EXPECT_NE(strange.err.find("was asked for and"), std::string::npos) << strange.err;
  EXPECT_NE(strange.err.find("unlike the one that was calibrated on"), std::string::npos) << strange.err;
  const ProgramResult drafts = run_fathom(base + Words{"4", "--speculate", "auto"});
  EXPECT_NE(drafts.err.find("no token was drafted: by its count"), std::string::npos) << drafts.err;
}

TEST(Builtin, BenchComparesBudgets) {
  const nlohmann::json out =
      run_fathom({"bench", "-m", "builtin", "-p", "16", "-n", "4", "-r", "1", "--budget", "0.9",
                  "--also-budget", "0.7", "--also-budget", "own", "--json"})
          .json();
  ASSERT_EQ(out.at("settings").size(), 3u);
  EXPECT_LT(out["settings"][1].at("block_flops"), out["settings"][0].at("block_flops"));
  EXPECT_EQ(out["settings"][2].at("skip_ratio"), 0);
}

}  // namespace
}  // namespace fathom
