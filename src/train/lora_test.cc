// A LoRA in training: what learns, what stays, and what a run keeps on the disk.
#include "model/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "model/merge_lora.h"
#include "skip/lora_files.h"
#include "train/estimate.h"
#include "train/trainer_rig_test.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSampledList =
    R"("lora": {"rank": 4, "alpha": 8, "dropout": 0.1}, "precision": "bf16", "method": {"name": "harm_order",
       "search": "greedily", "objective": "distill", "share": "sampled", "cost_context": 8, "share_grid": [1, 0.7, 0.4]})";

// Rows of whole blocks: all but the second FFN matrix of the small model.
constexpr const char* kRounded =
    R"("lora": {"rank": 4, "round": "q4_1", "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"]},
       "validation": {"share": 0.1, "batches": 2})";

class LoraRuns : public Trainers {
 protected:
  static std::map<std::string, std::string> everything_of(const std::string& checkpoint) {
    std::map<std::string, std::string> all = tensors_of(checkpoint);
    for (const char* folder : {"skip", "skip/lora"}) {
      if (!fs::exists(checkpoint + "/" + folder)) continue;
      for (const auto& [name, sum] : tensors_of(checkpoint + "/" + folder))
        all[std::string(folder) + "/" + name] = sum;
    }
    return all;
  }
};

std::vector<float> floats_of(const Tensor& t) {
  return {t.data<float>(), t.data<float>() + t.numel()};
}

TEST_F(LoraRuns, FactorsLearnAndTheBaseStays) {
  Run run(recipe(R"("lora": {"rank": 4}, "validation": {"share": 0.1, "batches": 2})"), folder_.at("run"));
  const std::vector<float> before = floats_of(run.model.weights.blocks[1].down);
  EXPECT_EQ(run.trainer->parameters().list().size(), 2u * 7 * 2);
  const double ce = run.trainer->validate();
  EXPECT_EQ(run.run().steps, 20);
  EXPECT_LT(run.trainer->validate(), ce - 0.02);
  EXPECT_EQ(floats_of(run.model.weights.blocks[1].down), before);
  EXPECT_FALSE(fs::exists(folder_.at("run") + "/step-20/model.safetensors"));
  EXPECT_TRUE(fs::exists(folder_.at("run") + "/step-20/skip/adapter_config.json"));
  for (const LoraSpec& spec : lora_specs(run.model)) {
    double moved = 0;
    for (const float value : floats_of(spec.factors->b)) moved += std::abs(double{value});
    EXPECT_GT(moved, 0) << spec.name;
  }
}

// The teacher is the base at full depth without factors: with a full list and B = 0 there is nothing to
// learn.
TEST_F(LoraRuns, DistilsFromTheBaseWithoutFactors) {
  const char* more =
      R"("lora": {"rank": 4}, "method": {"name": "harm_order", "objective": "distill", "share": "fixed", "share_end": 1, "kept": 1})";
  Run run(recipe(more), folder_.at("run"));
  const StepShape shape{run.recipe.train.batch, run.recipe.train.accumulate};
  const TrainStep data = make_step(*run.data.train, 0, shape);
  EXPECT_EQ(run.trainer->step(data, {}).loss, 0.0);
  change(run, [](std::vector<float>& values) {
    for (float& value : values) value += 0.05f;
  });
  EXPECT_GT(run.trainer->step(data, {}).loss, 1e-5);
}

// A list learns to do without its units.
TEST_F(LoraRuns, AListAtAFixedBudgetComesNearerToTheBase) {
  const char* more =
      R"("lora": {"rank": 4}, "schedule_steps": 60, "init": {"std": 0.2}, "method": {"name": "harm_order",
         "objective": "distill", "share": "fixed", "share_end": 0.6, "kept": 0.6})";
  Run run(recipe(more), folder_.at("run"));
  const StepShape shape{run.recipe.train.batch, run.recipe.train.accumulate};
  const TrainStep data = make_step(*run.data.train, 0, shape);
  const StepResult first = run.trainer->step(data, {.work = true});
  EXPECT_GT(first.skip_ratio, 0.2);
  for (int i = 0; i < 30; ++i) run.trainer->step(data, {});
  EXPECT_LT(run.trainer->step(data, {}).loss, 0.8 * first.loss);
}

TEST_F(LoraRuns, EveryStepHasItsBudget) {
  Run run(recipe(kSampledList), folder_.at("run"));
  const StepShape shape{run.recipe.train.batch, run.recipe.train.accumulate};
  std::set<double> ratios;
  for (int64_t i = 0; i < 12; ++i)
    ratios.insert(run.trainer->step(make_step(*run.data.train, i * shape.samples(), shape), {}).skip_ratio);
  EXPECT_EQ(ratios.size(), 3u);
  EXPECT_EQ(*ratios.begin(), 0.0);
}

// Where a step learns the text, its loss is the cross-entropy.
TEST_F(LoraRuns, AShareOfTheStepsLearnsTheText) {
  const auto text_steps = [&](const char* share) {
    Run run(recipe(std::string(kSampledList) + R"(, "text_share": )" + share), folder_.at("run"));
    const StepShape shape{run.recipe.train.batch, run.recipe.train.accumulate};
    int count = 0;
    for (int64_t i = 0; i < 12; ++i) {
      const bool learns_text = run.recipe.train.learns_text(i);
      const StepResult made =
          run.trainer->step(make_step(*run.data.train, i * shape.samples(), shape), {.ce = true});
      EXPECT_EQ(made.loss == made.ce, learns_text) << "step " << i << " of a share of " << share;
      count += learns_text;
    }
    return count;
  };
  EXPECT_EQ(text_steps("0"), 0);
  EXPECT_EQ(text_steps("1"), 12);
  const int some = text_steps("0.5");
  EXPECT_GT(some, 1);
  EXPECT_LT(some, 11);
}

TEST_F(LoraRuns, ResumeIsExact) {
  const std::string routers = R"("lora": {"rank": 3, "targets": ["q_proj", "k_proj"]}, "recompute": true,
      "method": {"name": "priced", "share": "sampled"})";
  for (const std::string& extra : {std::string(kSampledList), routers, std::string(kRounded)}) {
    const std::string dir = folder_.at("whole"), part = folder_.at("part");
    fs::remove_all(dir);
    fs::remove_all(part);
    Run whole(recipe(extra), dir, 1);
    whole.run();
    {
      Run first(recipe(extra), part, 2);
      first.recipe.train.steps = 12;
      first.run();
    }
    fs::remove(part + "/step-12/DONE");
    Run second(recipe(extra), part, 2, true);
    ASSERT_TRUE(second.trainer->resume());
    EXPECT_EQ(second.trainer->steps(), 10);
    second.run();
    const auto sums = everything_of(dir + "/step-20");
    EXPECT_TRUE(sums.contains("skip/lora/adapter_model.safetensors"));
    EXPECT_EQ(everything_of(part + "/step-20"), sums) << extra;
  }
}

TEST_F(LoraRuns, StartsFromAnotherLora) {
  const std::string before = folder_.at("before");
  Run first(recipe(R"("lora": {"rank": 4})"), before);
  const std::string factors = first.run().checkpoint + "/skip/lora";
  const auto start = [&](const std::string& lora) {
    return recipe(fmt::format(R"("validation": {{"share": 0.1, "batches": 2}}, "lora": {})", lora));
  };
  const std::string going_on = fmt::format(R"({{"rank": 4, "start": "{}"}})", factors);
  Run second(start(going_on), folder_.at("after"));
  for (size_t i = 0; i < lora_specs(first.model).size(); ++i) {
    EXPECT_EQ(floats_of(lora_specs(second.model)[i].factors->a),
              floats_of(lora_specs(first.model)[i].factors->a));
    EXPECT_EQ(floats_of(lora_specs(second.model)[i].factors->b),
              floats_of(lora_specs(first.model)[i].factors->b));
  }
  Run fresh(start(R"({"rank": 4})"), folder_.at("fresh"));
  EXPECT_LT(second.trainer->validate(), fresh.trainer->validate() - 0.02);

  const auto refusal_of = [&](const std::string& lora) -> std::string {
    try {
      Run(start(lora), folder_.at("bad"));
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal_of(fmt::format(R"({{"rank": 3, "start": "{}"}})", factors)),
            fmt::format("lora.start: {} has rank 4 and a scale of 1, the recipe has rank 3 and a scale of 1",
                        factors));
  EXPECT_EQ(refusal_of(fmt::format(R"({{"rank": 4, "alpha": 8, "start": "{}"}})", factors)),
            fmt::format("lora.start: {} has rank 4 and a scale of 1, the recipe has rank 4 and a scale of 2",
                        factors));
  EXPECT_EQ(
      refusal_of(fmt::format(R"({{"rank": 4, "targets": ["q_proj"], "start": "{}"}})", factors)),
      fmt::format(
          "lora.start: {} has factors for model.layers.0.self_attn.k_proj, the recipe's targets have none",
          factors));
  EXPECT_NE(
      refusal_of(fmt::format(R"({{"rank": 4, "start": "{}"}})", folder_.at("nowhere"))).find("is no LoRA"),
      std::string::npos);
}

TEST_F(LoraRuns, GuardedMemoryGivesTheSame) {
  for (const char* extra : {kSampledList, kRounded}) {
    std::vector<std::map<std::string, std::string>> files;
    for (const Device device : {Device::kCpu, Device::kGuarded}) {
      fs::remove_all(folder_.at("run"));
      Run run(recipe(extra), folder_.at("run"), 2, false, device);
      run.recipe.train.steps = 6;
      files.push_back(everything_of(run.run().checkpoint));
    }
    EXPECT_EQ(files[0], files[1]);
  }
}

// The weights of a step are those that the saved factors give when they are merged into q4_1, but for sums in
// another order, and learn in spite of it.
TEST_F(LoraRuns, RoundedWeightsTrainAsTheyServe) {
  Run run(recipe(kRounded), folder_.at("run"));
  Model served = initial_model(run.ctx, run.model.config, run.recipe.train.init, run.recipe.train.seed);
  const double ce = run.trainer->validate();
  const std::string checkpoint = run.run().checkpoint;
  EXPECT_LT(run.trainer->validate(), ce - 0.02);
  const Lora lora = read_lora(run.ctx, checkpoint + "/skip/lora", run.model.config);
  merge_lora(run.ctx, served, lora, "run", DType::kQ4_1);
  int64_t same = 0, all = 0;
  for (const auto& [trained, merged] :
       {std::pair{&run.model.weights.blocks[1].q, &served.weights.blocks[1].q},
        {&run.model.weights.blocks[0].up, &served.weights.blocks[0].up}}) {
    const std::vector<float> want = floats_of(convert_tensor(run.ctx, *merged, DType::kF32)),
                             got = floats_of(*trained);
    for (size_t i = 0; i < got.size(); ++i) same += got[i] == want[i];
    all += static_cast<int64_t>(got.size());
  }
  EXPECT_GT(static_cast<double>(same), 0.98 * static_cast<double>(all));

  // Without the rounding the same run gives other weights.
  std::string plain = kRounded;
  plain.replace(plain.find("q4_1"), 4, "none");
  Run unrounded(recipe(plain), folder_.at("plain"));
  unrounded.run();
  EXPECT_NE(everything_of(folder_.at("plain") + "/step-20"), everything_of(checkpoint));
}

TEST_F(LoraRuns, RowsThatAreNoWholeBlocksAreRefused) {
  EXPECT_THROW(Run(recipe(R"("lora": {"rank": 4, "round": "q4_1"})"), folder_.at("run")), UserError);
}

TEST_F(LoraRuns, TheEstimateCountsItsFactors) {
  Run run(recipe(R"("lora": {"rank": 4, "targets": ["q_proj", "down_proj"]})"), folder_.at("run"));
  int64_t size = 0;
  for (const auto& parameter : run.trainer->parameters().list()) size += parameter.size;
  EXPECT_EQ(estimate_run(run.ctx, run.recipe, run.model.config).trained, size);
}

std::string refused(const std::string& lora) {
  try {
    Recipe::parse(R"({"lora": )" + lora + "}", "recipe").check();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(LoraRecipes, SayWhatIsWrong) {
  EXPECT_EQ(refused(R"({"rank": -1})"), "lora.rank must be from 0 to 4096, got -1");
  EXPECT_EQ(refused(R"({"alpha": 16})"), "lora.rank must be at least 1 where lora has other keys, got 0");
  EXPECT_EQ(refused(R"({"rank": 4, "dropout": 1})"), "lora.dropout must be in [0, 1), got 1");
  EXPECT_NE(refused(R"({"rank": 4, "targets": ["lm_head"]})").find("got 'lm_head'"), std::string::npos);
  EXPECT_NE(refused(R"({"ranks": 4})"), "");
  EXPECT_EQ(refused(R"({"rank": 4, "round": "q4_1", "dropout": 0.5})"),
            "lora.round trains the factors inside the weights, where lora.dropout must be 0, got 0.5");
  EXPECT_NE(refused(R"({"round": "q4_1"})"), "");
  EXPECT_NE(refused(R"({"start": "somewhere"})"), "");
  EXPECT_NE(refused(R"({"rank": 4, "round": "q3"})"), "");
  EXPECT_EQ(refused(R"({"rank": 4, "round": "q4_1"})"), "");
  EXPECT_EQ(refused(R"({"rank": 4})"), "");
}

}  // namespace
}  // namespace fathom
