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
  EXPECT_EQ(read("{\"text_share\": 1.5}"), "text_share must be between 0 and 1, got 1.5");
  EXPECT_EQ(read("{\"text_share\": 0.5}"),
            "text_share is of runs that distil: every step of this one learns the text (method.objective)");
  EXPECT_EQ(read("{\"data\": [\"a:-1\"]}"), "data: a weight must be above 0, got 'a:-1'");
  EXPECT_EQ(read("[]"), "r.json: expected a JSON object");
  EXPECT_NE(read("{\"method\": {\"name\": \"gate_skp\"}}").find("gate_skp"), std::string::npos);
}

// A value that another one silences is refused; the same values where they are read are not.
TEST(Recipe, SilencedValuesAreRefused) {
  const auto read = [](const std::string& method) {
    return error_of([&] { Recipe::parse(fmt::format(R"({{"method": {{{}}}}})", method), "r.json").check(); });
  };
  EXPECT_EQ(read(R"("name": "gate_skip", "share_start": 0.9)"),
            "method.share_start is for share: falling, and does nothing with share: fixed: leave it out, or "
            "set method.share");
  EXPECT_EQ(read(R"("name": "gate_skip", "share": "falling", "share_start": 0.9)"), "");
  EXPECT_NE(
      read(R"("name": "gate_skip", "share": "falling", "share_grid": [0.5])").find("is for share: sampled"),
      std::string::npos);
  EXPECT_EQ(read(R"("name": "gate_skip", "share": "sampled", "share_grid": [0.5])"), "");

  EXPECT_EQ(read(R"("name": "gate_skip", "share": "sampled", "share_grid": [0.5], "share_end": 0.6)"),
            "method.share_end (0.6) does nothing with share: sampled, which draws from share_grid: leave it "
            "out, or set method.share");
  EXPECT_EQ(read(R"("name": "gate_skip", "share": "sampled", "share_grid": [0.5], "share_end": 0.8)"), "");
  EXPECT_EQ(read(R"("name": "gate_skip", "share": "sampled", "share_grid": [], "share_end": 0.6)"), "");

  EXPECT_EQ(
      read(R"("name": "mind_skip", "level": "token", "pool": "full")"),
      "mind_skip: pool (full) is for level: sequence, and does nothing with level: token: leave it out");
  EXPECT_EQ(read(R"("name": "mind_skip", "pool": "full")"), "");
  EXPECT_EQ(read(R"("name": "mind_skip", "level": "token")"), "");

  EXPECT_EQ(read(R"("name": "skip_middle", "mean_weight": 0.5)"),
            "skip_middle: mean_weight (0.5) does nothing with controller: proportional: leave it out");
  struct Read {
    const char *key, *by, *not_by;
  };
  for (const Read& each :
       {Read{"mean_weight", "sparsity", "adaptive"}, Read{"variance_weight", "sparsity_variance", "sparsity"},
        Read{"l2_weight", "sparsity_variance_l2", "proportional"}, Read{"rate", "adaptive", "sparsity"},
        Read{"tolerance", "proportional", "none"},
        Read{"short_steps", "proportional_derivative", "proportional"},
        Read{"long_steps", "proportional_derivative", "adaptive"},
        Read{"first_target", "sparsity_variance_l2", "sparsity"},
        Read{"final_target", "proportional", "sparsity_variance"}}) {
    const auto with = [&](const char* controller) {
      return fmt::format(R"("name": "skip_middle", "controller": "{}", "{}": 0.25)", controller, each.key);
    };
    EXPECT_EQ(read(with(each.by)), "") << each.key;
    EXPECT_NE(read(with(each.not_by)).find("does nothing with controller"), std::string::npos) << each.key;
  }
}

// Options of all methods that the one in the recipe does not read.
TEST(Recipe, ValuesThatAMethodDoesNotReadAreRefused) {
  const auto read = [](const std::string& name, const char* more) {
    return error_of([&] {
      Recipe::parse(fmt::format(R"({{"method": {{"name": "{}", {}}}}})", name, more), "r.json").check();
    });
  };
  const auto refusal = [](const char* key, const std::string& name) {
    return fmt::format("method.{} does nothing with {}, as it is configured: leave it out", key, name);
  };
  for (const char* name :
       {"skip_layer", "mixture_of_depths", "skip_middle", "wide_ffn", "calm", "random", "highway"})
    EXPECT_EQ(read(name, R"("init": "harm_order")"), refusal("init", name));
  EXPECT_EQ(read("gate_skip", R"("init": "harm_order", "sharing": "shared")"), refusal("init", "gate_skip"));
  for (const char* name : {"gate_skip", "mind_skip", "priced"})
    EXPECT_EQ(read(name, R"("init": "harm_order")"), "") << name;
  for (const char* name :
       {"calm", "free", "layer_skip", "highway", "attention_drop", "short_gpt", "mind_skip"}) {
    EXPECT_EQ(read(name, R"("share_end": 0.6, "frozen_backbone": true)"), refusal("share_end", name));
    EXPECT_EQ(read(name, R"("share": "falling", "frozen_backbone": true)"), refusal("share", name));
  }
  EXPECT_EQ(read("mind_skip", R"("share_end": 0.6, "loss": "target")"), "");
  for (const char* name : {"gate_skip", "skip_layer", "wide_ffn", "mixture_of_depths", "random", "priced"})
    EXPECT_EQ(read(name, R"("share_end": 0.6)"), "") << name;
  EXPECT_EQ(read("gate_skip", R"("st_skipped": "drop")"), refusal("st_skipped", "gate_skip"));
  EXPECT_EQ(read("priced", R"("st_skipped": "drop")"), "");
  EXPECT_EQ(read("mind_skip", R"("router_input": "attention_norm")"),
            "mind_skip: router_input is for units: mlp, whose own input is another: leave it out");
  EXPECT_EQ(read("mind_skip", R"("router_input": "attention_norm", "units": "mlp")"), "");
}

TEST(Recipe, SilencedValuesOfListsAreRefused) {
  const auto read = [](const std::string& method) {
    return error_of([&] {
      Recipe::parse(fmt::format(R"({{"method": {{{}, "frozen_backbone": true}}}})", method), "r.json")
          .check();
    });
  };
  EXPECT_EQ(read(R"("name": "attention_drop", "count": 2, "drop_share": 0.5)"),
            "attention_drop: drop_share does nothing beside count: leave it out");
  EXPECT_EQ(read(R"("name": "short_gpt", "drop": [0, 1], "drop_share": 0.5)"),
            "short_gpt: drop_share does nothing beside drop: leave it out");
  EXPECT_EQ(read(R"("name": "short_gpt", "drop": [0, 1], "count": 1)"),
            "short_gpt: count does nothing beside drop: leave it out");
  for (const char* method :
       {R"("name": "attention_drop", "count": 2, "drop_share": 0.25)",
        R"("name": "attention_drop", "count": 2)", R"("name": "attention_drop", "drop_share": 0.5)",
        R"("name": "short_gpt", "drop": [0, 1])",
        R"("name": "harm_order", "search": "greedily", "greedy_until": 0.6)",
        R"("name": "harm_order", "search": "once", "greedy_until": 0.5)",
        R"("name": "nested", "choice": "random", "seed": 3)", R"("name": "nested", "seed": 0)"})
    EXPECT_EQ(read(method), "") << method;
  EXPECT_EQ(
      read(R"("name": "harm_order", "greedy_until": 0.6)"),
      "harm_order: greedy_until (0.6) is for search: greedily, and does nothing with search: once: leave it "
      "out");
  EXPECT_EQ(read(R"("name": "nested", "seed": 3)"),
            "nested: seed (3) is for choice: random, and does nothing with choice: head: leave it out");
  EXPECT_EQ(read(R"("name": "nested", "choice": "fixed", "alpha": 0.5)"),
            "nested: alpha (0.5) is 0 with choice: fixed, whatever it says: leave it out");
  EXPECT_EQ(read(R"("name": "nested", "choice": "fixed")"), "");
  EXPECT_EQ(read(R"("name": "gate_skip", "copy_kv": true, "skipped_kv": "hide")"),
            "method.copy_kv does nothing beside method.skipped_kv: leave one of them out");
  EXPECT_EQ(read(R"("name": "gate_skip", "copy_kv": true, "train_skipped_kv": "project")"), "");
  EXPECT_EQ(read(R"("name": "gate_skip", "skipped_kv": "hide")"), "");
}

TEST(Recipe, SilencedFactorsOfSchedulesAreRefused) {
  const auto read = [](const std::string& schedule) {
    return error_of(
        [&] { Recipe::parse(fmt::format(R"({{"schedule": {{{}}}}})", schedule), "r.json").check(); });
  };
  for (const char* kind : {"constant", "inverse_square_root"}) {
    EXPECT_EQ(read(fmt::format(R"("kind": "{}", "final_factor": 0)", kind)),
              fmt::format("schedule.final_factor is for kind: cosine or linear, and does nothing with kind: "
                          "{}: leave it out",
                          kind));
    EXPECT_EQ(read(fmt::format(R"("kind": "{}", "final_factor": 0.1)", kind)), "");
  }
  EXPECT_EQ(read(R"("kind": "linear", "final_factor": 0)"), "");
  EXPECT_EQ(read(R"("final_factor": 0)"), "");
  EXPECT_EQ(read(R"("start_factor": 0)"),
            "schedule.start_factor is the warm-up's, and there is none: leave it out, or set "
            "schedule.warmup_steps or schedule.warmup_share");
  EXPECT_EQ(read(R"("start_factor": 0.1)"), "");
  EXPECT_EQ(read(R"("start_factor": 0, "warmup_steps": 5)"), "");
  EXPECT_EQ(read(R"("start_factor": 0, "warmup_share": 0.1)"), "");
}

// Training at one share and keeping another would train a list that nobody runs.
TEST(Recipe, AListIsTrainedAsItIsKept) {
  const auto read = [](const std::string& method, const char* more = "") {
    return error_of([&] {
      Recipe::parse(fmt::format(R"({{"method": {{"name": "harm_order", {}}}{}}})", method, more), "r.json")
          .check();
    });
  };
  constexpr const char* kLora = R"(, "lora": {"rank": 4})";
  EXPECT_EQ(read(R"("kept": 0.9)"),
            "harm_order: every step would train with a share of 0.8 (share_end), and the finished list keeps "
            "0.9 (kept): set method.share_end and method.kept to the same, or method.share to falling or "
            "sampled");
  EXPECT_NE(read(R"("share_end": 0.6, "frozen_backbone": true)", kLora), "");
  EXPECT_EQ(read(R"("kept": 0.9, "share_end": 0.9)"), "");
  EXPECT_EQ(read(R"("kept": 0.9, "frozen_backbone": true)"), "");  // nothing learns
  EXPECT_EQ(read(R"("kept": 0.9, "share": "sampled")", kLora), "");
  EXPECT_EQ(read(R"("kept": 0.9, "drop": [1])"), "harm_order: kept does nothing beside drop: leave it out");
  EXPECT_EQ(read(R"("search": "greedily", "drop": [1])"),
            "harm_order: search does nothing beside drop: leave it out");
  EXPECT_EQ(read(R"("order": [2, 3], "drop": [1])"),
            "harm_order: order does nothing beside drop: leave it out");
  EXPECT_EQ(read(R"("drop": [1])"), "");
}

TEST(Recipe, StepsThatLearnTheTextAreDrawn) {
  Recipe recipe =
      Recipe::parse(R"({"text_share": 0.3, "method": {"name": "dense", "objective": "distill"}})", "r");
  recipe.check();
  int64_t count = 0, after_another = 0;
  constexpr int64_t kSteps = 4000;
  for (int64_t step = 0; step < kSteps; ++step) {
    count += recipe.train.learns_text(step);
    after_another += recipe.train.learns_text(step) && recipe.train.learns_text(step + 1);
  }
  EXPECT_NEAR(static_cast<double>(count) / kSteps, 0.3, 0.03);
  EXPECT_NEAR(static_cast<double>(after_another) / kSteps, 0.09, 0.02);
  const auto steps = [&](uint64_t seed) {
    recipe.train.seed = seed;
    std::vector<bool> learns;
    for (int64_t step = 0; step < 100; ++step) learns.push_back(recipe.train.learns_text(step));
    return learns;
  };
  EXPECT_EQ(steps(3), steps(3));
  EXPECT_NE(steps(3), steps(4));
}

TEST(Recipe, EveryRunIsDeterministic) {
  const std::string plain = Recipe::parse("{}", "r").to_json();
  EXPECT_EQ(Recipe::parse(R"({"deterministic": true})", "r").to_json(), plain);
  Recipe recipe = Recipe::parse("{}", "r");
  recipe.set("deterministic=true");
  EXPECT_EQ(recipe.to_json(), plain);
  for (const char* other : {"false", "1", "\"true\"", "null"}) {
    EXPECT_EQ(error_of([&] { Recipe::parse(std::string(R"({"deterministic": )") + other + "}", "r"); }),
              "r: deterministic can only be true: every run gives the same bits again")
        << other;
  }
  EXPECT_EQ(error_of([&] { recipe.set("deterministic=false"); }),
            "deterministic can only be true: every run gives the same bits again");
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
