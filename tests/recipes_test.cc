// The recipes that ship: each is what its name says, and each can be run or at least weighed.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "program.h"
#include "skip/methods.h"
#include "support/test_paths.h"
#include "train/config.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

const fs::path kConfigs = fs::path(FATHOM_SOURCE_DIR) / "configs";

TEST(Recipes, EveryMethodHasBoth) {
  for (const MethodEntry& method : methods()) {
    for (const char* kind : {"small", "paper"})
      EXPECT_TRUE(fs::exists(kConfigs / kind / (std::string(method.name) + ".json")))
          << kind << " " << method.name;
  }
}

TEST(Recipes, ThePapersAreWeighed) {
  int recipes = 0;
  for (const auto& entry : fs::directory_iterator(kConfigs / "paper")) {
    if (entry.path().extension() != ".json") continue;
    const ProgramResult r = run_fathom({"train", "--config", entry.path().string(), "--dry-run", "--json"});
    ASSERT_EQ(r.exit_code, 0) << entry.path() << r.err;
    const nlohmann::json out = r.json();
    EXPECT_EQ(out.at("method"), entry.path().stem().string());
    EXPECT_GT(out.at("parameters"), 100'000'000) << entry.path();
    EXPECT_GT(out.at("flops"), 1e12) << entry.path();
    ++recipes;
  }
  EXPECT_EQ(recipes, static_cast<int>(methods().size()));
}

// GateSkip's own figure for its gates: 2L(d² + d) parameters, 10.8 % of Llama-3.2-1B.
TEST(Recipes, GateSkipsGatesAreAsLargeAsItsPaperShouldSay) {
  const nlohmann::json out =
      run_fathom({"train", "--config", (kConfigs / "paper/gate_skip.json").string(), "--dry-run", "--json"})
          .json();
  EXPECT_EQ(out.at("method_parameters"), 2 * 16 * (2048 * 2048 + 2048));
  const double share = out.at("method_parameters").get<double>() / out.at("parameters").get<double>();
  EXPECT_NEAR(share, 0.108, 0.001);
}

// Every key of a recipe, those that it leaves out as well.
std::string all_keys(const std::string& json) {
  return Recipe::parse(json, "test").to_json();
}
std::string all_keys_of(const char* name) {
  std::ifstream file(kConfigs / name);
  return all_keys(std::string(std::istreambuf_iterator<char>(file), {}));
}

// Equations 2, 4 and 5, Algorithm 1, section 3 and Table 15. For what it does not list, the table names
// Hugging Face's defaults: a cosine from 0 to 0. All weights train.
constexpr const char* kGateSkipAsPrinted = R"({
  "batch": 1, "context": 4096, "schedule_steps": 15493, "precision": "f32", "clip": 1.0,
  "optimizer": {"kind": "adamw", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.001},
  "schedule": {"kind": "cosine", "warmup_steps": 1000, "start_factor": 0.0, "final_factor": 0.0},
  "method": {"name": "gate_skip", "gate": "vector", "sharing": "individual", "net": "linear", "placement": "after",
             "gate_input": "residual", "detached": false, "init_std": 0.01, "sparsity": "l2", "sparsity_weight": 0.1,
             "share": "falling", "share_start": 1.0, "share_end": 0.8, "copy_kv": true, "frozen_backbone": false}
})";

TEST(Recipes, GateSkipsIsAsPrinted) {
  for (const std::string& key :
       differing_keys(all_keys_of("paper/gate_skip.json"), all_keys(kGateSkipAsPrinted))) {
    const bool silent = key == "base" || key == "data" || key == "schedule.rate" || key.starts_with("model.");
    EXPECT_TRUE(silent) << key << " is not as printed";
  }
}

// Its baselines are trained with the same hyper-parameters (section 4.1, Table 15). ShortGPT trains nothing.
TEST(Recipes, GateSkipsBaselinesAreTrainedAsItIs) {
  const std::string gates = all_keys_of("paper/gate_skip.json");
  for (const char* name : {"mixture_of_depths", "calm", "free", "layer_skip", "random"}) {
    const std::vector<std::string> keys =
        differing_keys(gates, all_keys_of((std::string("paper/") + name + ".json").c_str()));
    EXPECT_NE(std::find(keys.begin(), keys.end(), "method.name"), keys.end()) << name;
    for (const std::string& key : keys)
      EXPECT_TRUE(key.starts_with("method.")) << name << " is trained otherwise: " << key;
  }
}

// What docs/methods.md names as ours.
TEST(Recipes, OurGateSkipDiffersWhereTheDocsSay) {
  const std::string paper = all_keys_of("paper/gate_skip.json"),
                    ours = all_keys_of("evidence/smollm2_gate_skip.json");
  std::set<std::string> differing;
  for (const std::string& key : differing_keys(paper, ours)) {
    if (key.starts_with("method.")) differing.insert(key);
  }
  EXPECT_EQ(differing, (std::set<std::string>{"method.copy_kv", "method.detached", "method.frozen_backbone",
                                              "method.gate_input"}));
  const nlohmann::json recipe = nlohmann::json::parse(ours);
  EXPECT_EQ(recipe["method"]["gate_input"], "normed");
  EXPECT_EQ(recipe["method"]["detached"], true);
  EXPECT_EQ(recipe["method"]["frozen_backbone"], true);
  EXPECT_EQ(recipe["method"]["copy_kv"], false);
  EXPECT_EQ(recipe["schedule"]["kind"], "cosine");
  EXPECT_EQ(recipe["schedule"]["final_factor"].get<float>(), 0.1f);
}

// Its Table 1, within 1 %. (Routers are 2 · 1536 numbers a layer.)
TEST(Recipes, SkipLayersModelsAreAsLargeAsItsTable) {
  const std::string config = (kConfigs / "paper/skip_layer.json").string();
  const std::pair<int, double> rows[] = {{6, 408e6}, {12, 766e6}, {24, 1.47e9}, {48, 2.92e9}, {96, 5.79e9}};
  for (const auto& [layers, printed] : rows) {
    const nlohmann::json out = run_fathom({"train", "--config", config, "--dry-run", "--json", "--set",
                                           "model.layers=" + std::to_string(layers)})
                                   .json();
    EXPECT_NEAR(out.at("parameters").get<double>(), printed, 0.01 * printed) << layers;
  }
}

// What training refuses (a value that another one silences, a list that is kept otherwise than it is trained)
// is in no recipe of ours, nor in what tools/results.py sets.
TEST(Recipes, AllCanBeTrained) {
  const auto text_of = [](const fs::path& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  for (const char* folder : {"small", "paper", "evidence"}) {
    for (const auto& entry : fs::directory_iterator(kConfigs / folder)) {
      if (entry.path().extension() != ".json") continue;
      EXPECT_NO_THROW(Recipe::parse(text_of(entry.path()), "test").check()) << entry.path();
    }
  }
  int trained = 0;
  for (const char* plan : {"gateskip", "mindskip", "skiplayer", "skipmiddle"}) {
    const auto models =
        nlohmann::json::parse(text_of(kConfigs / "results" / (std::string(plan) + ".json")))["models"];
    for (const auto& [name, model] : models.items()) {
      if (!model.contains("recipe")) continue;
      const std::string file = model["recipe"].get<std::string>() + ".json";
      Recipe recipe = Recipe::parse(text_of(kConfigs / "results" / file), file);
      for (const auto& [key, value] : model["set"].items()) {
        const std::string written = value.is_string() ? value.get<std::string>() : value.dump();
        if (!written.starts_with("$")) recipe.set(key + "=" + written);  // else: by the size of the run
      }
      EXPECT_NO_THROW(recipe.check()) << plan << " " << name;
      ++trained;
    }
  }
  EXPECT_GT(trained, 60);
}

class SmallRecipe : public testing::TestWithParam<std::string> {};

TEST_P(SmallRecipe, RunsAndItsResultIsUsed) {
  const fs::path out =
      fs::temp_directory_path() / ("fathom-recipe-" + GetParam() + "-" + std::to_string(getpid()));
  fs::remove_all(out);
  const fs::path config = kConfigs / "small" / (GetParam() + ".json");
  const std::string data = (kConfigs / "small/secret_garden.txt").string();
  std::vector<std::string> training{"train", "--config", config.string(), "--data",
                                    data,    "-o",       out.string(),    "--steps",
                                    "2",     "-q",       "--json"};
  const auto set = [&](const std::string& key) { training.insert(training.end(), {"--set", key}); };
  for (const char* key : {"batch=2", "context=64", "prepare_tokens=128", "validation.batches=1"}) set(key);
  set("data_cache=" + (out / "cache").string());
  if (GetParam() == "nested") set("method.lists=[0.95,0.9]");  // each unit fewer is a search less
  const ProgramResult r = run_fathom(training);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const nlohmann::json trained = r.json();
  EXPECT_GT(trained.at("validation_ce"), 1.0);

  // A checkpoint of a whole model runs by itself; one of a frozen backbone is an adapter beside its base.
  const std::string checkpoint = trained.at("checkpoint");
  const bool whole = fs::exists(fs::path(checkpoint) / "config.json");
  EXPECT_LT(trained.at("validation_ce"), whole ? 8.4 : 7.0);  // knowing nothing of 4,096 tokens: 8.32
  std::vector<std::string> words{
      "score", "-m", whole ? checkpoint : "builtin", "-p", "Mary went to the garden door.", "--json"};
  if (!whole) words.insert(words.end(), {"--adapter", checkpoint + "/skip"});
  const ProgramResult scored = run_fathom(words);
  ASSERT_EQ(scored.exit_code, 0) << scored.err;
  EXPECT_GT(scored.json().at("nll"), 0.5);
  std::vector<std::string> asked{"info", "-m", words[2], "--json"};
  if (!whole) asked.insert(asked.end(), {"--adapter", checkpoint + "/skip"});
  EXPECT_EQ(run_fathom(asked).json().at("method"), GetParam());
  fs::remove_all(out);
}

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const MethodEntry& method : methods()) names.emplace_back(method.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, SmallRecipe, testing::ValuesIn(method_names()),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace fathom
