// The model that ships: it is there, small, and its dial turns.
#include <gtest/gtest.h>

#include "program.h"

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

TEST(Builtin, WhatShipsIsSmall) {
  uintmax_t all = 0;
  for (const auto& entry : fs::recursive_directory_iterator(FATHOM_SOURCE_DIR "/models"))
    if (entry.is_regular_file()) all += entry.file_size();
  EXPECT_LT(all, 15'000'000u);
  EXPECT_LT(fs::file_size(FATHOM_SOURCE_DIR "/models/builtin/builtin.gguf"), 8'000'000u);
}

}  // namespace
}  // namespace fathom
