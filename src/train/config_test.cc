#include "train/config.h"

#include <gtest/gtest.h>

#include "base/format.h"
#include "support/test_paths.h"
#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

TEST(Recipe, ReadsCommentsAndWritesEveryKey) {
  const Recipe recipe = Recipe::parse(
      "{ // a recipe\n \"steps\": 5, \"schedule\": {\"rate\": 0.5}, \"data\": [\"a.txt:0.5\"],\n"
      "  \"model\": {\"width\": 64, \"rope\": {\"theta\": 5000}}, \"method\": {\"name\": \"gate_skip\"}}",
      "r.json");
  EXPECT_EQ(recipe.train.steps, 5);
  EXPECT_EQ(recipe.train.schedule.rate, 0.5f);
  EXPECT_EQ(recipe.train.model.rope.theta, 5000);
  EXPECT_EQ(recipe.method->name(), "gate_skip");
  const std::string json = recipe.to_json();
  const Recipe back = Recipe::parse(json, "back");
  EXPECT_EQ(back.to_json(), json);
  EXPECT_EQ(Recipe::parse("{}", "x").method->name(), "dense");
  EXPECT_EQ(Recipe::parse("{\"method\": \"dense\"}", "x").method->name(), "dense");
}

TEST(Recipe, WrongKeysAndValuesAreNamed) {
  const auto read = [](const std::string& text) {
    return error_of([&] { Recipe::parse(text, "r.json").check(); });
  };
  EXPECT_EQ(read("{\"bacth\": 5}"), "r.json: there is no key 'bacth' (did you mean 'batch'?)");
  EXPECT_EQ(read("{\"schedule\": {\"rat\": 5}}"),
            "r.json: there is no key 'schedule.rat' (did you mean 'schedule.rate'?)");
  EXPECT_EQ(read("{\"precision\": \"f64\"}"), "r.json: 'precision' must be one of f32, bf16, got f64");
  EXPECT_EQ(read("{\"batch\": 0}"), "batch must be at least 1, got 0");
  EXPECT_EQ(read("{\"validation\": {\"share\": 1}}"), "validation.share must be in [0, 1), got 1");
  EXPECT_EQ(read("{\"validation\": {\"patience\": 1}}"),
            "validation.patience needs validation.data or validation.share");
  EXPECT_EQ(read("{\"data\": [\"a:-1\"]}"), "data: a weight must be above 0, got 'a:-1'");
  EXPECT_EQ(read("[]"), "r.json: expected a JSON object");
  EXPECT_NE(read("{\"method\": {\"name\": \"gate_skp\"}}").find("gate_skp"), std::string::npos);
}

TEST(Recipe, SetsKeysAndNamesWhatDiffers) {
  Recipe recipe = Recipe::parse("{\"method\": {\"name\": \"gate_skip\"}}", "r");
  const std::string before = recipe.to_json();
  recipe.set("steps=7");
  recipe.set("checkpoint.every=3");
  EXPECT_TRUE(differing_keys(before, recipe.to_json()).empty());
  recipe.set("schedule.rate=0.25");
  recipe.set("method.share_end=0.5");
  EXPECT_EQ(recipe.train.schedule.rate, 0.25f);
  EXPECT_EQ(recipe.method->options().share_end, 0.5f);
  EXPECT_EQ(differing_keys(before, recipe.to_json()),
            (std::vector<std::string>{"schedule.rate", "method.share_end"}));
  EXPECT_THROW(recipe.set("steps"), UsageError);
  EXPECT_THROW(recipe.set("stps=1"), UsageError);
  EXPECT_THROW(recipe.set("method.shar_end=1"), UsageError);
}

TEST(Recipe, OldNamesOfAMethodsKeys) {
  struct Renamed {
    const char *method, *old, *now, *value;
  };
  const auto recipe = [](const Renamed& of, const char* key) {
    return fmt::format(R"({{"method": {{"name": "{}", "{}": {}}}}})", of.method, key, of.value);
  };
  for (const Renamed& of : {Renamed{"mind_skip", "unit", "units", R"("mlp")"},
                            {"skip_layer", "wrap", "units", R"("attention")"},
                            {"wide_ffn", "wrap", "units", R"("both")"},
                            {"gate_skip", "detach_input", "detached", "false"}}) {
    const std::string now = Recipe::parse(recipe(of, of.now), "r.json").to_json();
    EXPECT_NE(now, Recipe::parse(fmt::format(R"({{"method": "{}"}})", of.method), "r").to_json()) << of.old;
    testing::internal::CaptureStderr();
    Recipe set = Recipe::parse(fmt::format(R"({{"method": "{}"}})", of.method), "r.json");
    const std::string value(of.value);
    set.set(fmt::format("method.{}={}", of.old, value[0] == '"' ? value.substr(1, value.size() - 2) : value));
    EXPECT_EQ(set.to_json(), now);
    EXPECT_EQ(Recipe::parse(recipe(of, of.old), "r.json").to_json(), now);
    const std::string said = testing::internal::GetCapturedStderr();
    const std::string warning = fmt::format("'{}' is now called '{}'", of.old, of.now);
    EXPECT_NE(said.find("warning: " + warning), std::string::npos) << said;
    EXPECT_NE(said.find("r.json: method: " + warning), std::string::npos) << said;
  }
  EXPECT_EQ(error_of([] {
              Recipe::parse(R"({"method": {"name": "mind_skip", "unit": "mlp", "units": "mlp"}})", "r.json");
            }),
            "r.json: method: 'unit' is the old name of 'units': expected one of them, got both");
  EXPECT_EQ(
      error_of([] {
        Recipe::parse(
            R"({"method": {"name": "random", "blend": "gate_skip",
                                 "gate_skip": {"detached": true, "detach_input": true}}})",
            "r.json");
      }),
      "r.json: method: 'gate_skip.detach_input' is the old name of 'gate_skip.detached': expected one of "
      "them, got both");
}

TEST(Recipe, DataWithWeights) {
  EXPECT_EQ(parse_data("a.txt").path, "a.txt");
  EXPECT_EQ(parse_data("a.txt:0.25").weight, 0.25);
  EXPECT_EQ(parse_data("a.txt:0.25").path, "a.txt");
  EXPECT_EQ(parse_data("c:/a.txt").path, "c:/a.txt");
}

// docs/training.md has a row for every key, with its help and what it is unless set.
TEST(Recipe, EveryKeyIsDocumented) {
  TrainConfig config;
  const std::string docs = file_text(std::string(FATHOM_TEST_DATA) + "/../../docs/training.md");
  std::string missing;
  for (const Field& field : fields_of(config)) {
    const std::string value = field_text(field);
    std::string row = "| `" + field.name + "` | " + (value.empty() ? "" : "`" + value + "`") + " | ";
    // A model's own keys are explained here only; every other one has its help in the field list.
    if (field.name.rfind("model.", 0) != 0) {
      EXPECT_FALSE(field.help.empty()) << field.name;
      row += field.help + " |\n";
    }
    if (docs.find(row) == std::string::npos) missing += row.back() == '\n' ? row : row + "\n";
  }
  EXPECT_EQ(missing, "") << "these rows belong into docs/training.md";
}

}  // namespace
}  // namespace fathom
