// Training on a device whose memory the host cannot touch is training on the CPU, bit for bit: the guarded
// device has the CPU's kernels.
#include <gtest/gtest.h>

#include <cmath>

#include "infer/every_method_test.h"
#include "tensor/guarded_limit.h"
#include "train/estimate.h"
#include "train/step_timer.h"
#include "train/trainer_rig_test.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

class Devices : public Trainers {
 protected:
  struct Made {
    std::vector<StepResult> steps;
    std::vector<float> values;
    double validation_ce = 0;
    std::map<std::string, std::string> files;  // of the last checkpoint
  };

  // Ten steps, and two more with what ends a run.
  Made train(const std::string& more, Device device) {
    fs::remove_all(folder_.at("run"));
    Run run(recipe(more + R"(, "clip": 0.5, "validation": {"share": 0.1, "batches": 2})"), folder_.at("run"),
            2, false, device);
    Made made;
    made.validation_ce = run.trainer->validate();
    const StepShape shape{run.recipe.train.batch, run.recipe.train.accumulate};
    for (int64_t i = 0; i < 10 && run.trainer->parameters().size() > 0; ++i) {
      const TrainStep data = make_step(*run.data.train, i * shape.samples(), shape);
      made.steps.push_back(run.trainer->step(data, {.ce = i % 3 == 0, .work = i % 2 == 0}));
    }
    made.values = host_values(run.ctx, run.trainer->parameters().values());
    run.recipe.train.steps = 12;
    const std::string checkpoint = run.run().checkpoint;
    made.files = tensors_of(checkpoint);
    if (fs::exists(checkpoint + "/skip")) made.files.merge(tensors_of(checkpoint + "/skip"));
    return made;
  }

  void expect_same(const std::string& more) {
    const Made cpu = train(more, Device::kCpu), guarded = train(more, Device::kGuarded);
    EXPECT_EQ(guarded.validation_ce, cpu.validation_ce);
    ASSERT_EQ(guarded.steps.size(), cpu.steps.size());
    for (size_t i = 0; i < cpu.steps.size(); ++i) {
      const StepResult &got = guarded.steps[i], &want = cpu.steps[i];
      EXPECT_TRUE(want.finite);
      EXPECT_EQ(got.loss, want.loss) << i;
      EXPECT_EQ(got.ce, want.ce) << i;
      EXPECT_EQ(got.gradient_norm, want.gradient_norm) << i;
      EXPECT_EQ(got.skip_ratio, want.skip_ratio) << i;
      EXPECT_EQ(got.net_flops, want.net_flops) << i;
    }
    EXPECT_EQ(guarded.values, cpu.values);
    EXPECT_GE(cpu.files.size(), 1u);
    EXPECT_EQ(guarded.files, cpu.files);
  }
};

class MethodsOnDevices : public Devices, public testing::WithParamInterface<std::string> {};

TEST_P(MethodsOnDevices, TenStepsAreTheSame) {
  expect_same(R"("method": )" + GetParam());
}

// For what is read at its end, the method's figures among it.
TEST_P(MethodsOnDevices, AStepWaitsOnce) {
  Run run(recipe(R"("method": )" + GetParam()), folder_.at("run"), 2, false, Device::kGuarded);
  if (run.trainer->parameters().size() == 0) GTEST_SKIP() << "nothing trains";
  const StepShape shape{run.recipe.train.batch, run.recipe.train.accumulate};
  ASSERT_GT(shape.accumulate, 1);
  for (int64_t i = 0; i < 5; ++i) {
    const TrainStep data = make_step(*run.data.train, i * shape.samples(), shape);
    const uint64_t before = run.ctx.transfers().to_host;
    run.trainer->step(data, {.ce = i == 3, .work = i == 3});
    EXPECT_EQ(run.ctx.transfers().to_host - before, 1u) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, MethodsOnDevices, testing::ValuesIn(every_method()), method_test_name);

TEST_F(Devices, PrecisionsAndOptimisersAreTheSame) {
  for (const char* more :
       {R"("precision": "bf16", "optimizer": {"weight_decay": 0.1})",
        R"("precision": "bf16", "optimizer": {"kind": "adafactor", "weight_decay": 0.1})",
        R"("optimizer": {"kind": "adafactor", "beta1": 0, "beta2_power": 0.8})",
        R"("precision": "bf16", "recompute": true, "method": "gate_skip")",
        R"("method": {"name": "skip_layer", "objective": "distill", "frozen_backbone": true})"}) {
    SCOPED_TRACE(more);
    expect_same(more);
  }
}

// 20 steps are 10 on one device, a checkpoint, and 10 on another.
TEST_F(Devices, CheckpointsMoveBetweenThem) {
  for (const char* more : {R"("precision": "bf16")", R"("optimizer": {"kind": "adafactor"})",
                           R"("method": "gate_skip", "precision": "bf16")"}) {
    SCOPED_TRACE(more);
    fs::remove_all(folder_.at("whole"));
    Run(recipe(more), folder_.at("whole")).run();
    const std::string whole = folder_.at("whole") + "/step-20", ten = folder_.at("whole") + "/step-10";
    for (const Device first : {Device::kCpu, Device::kGuarded}) {
      const Device second = first == Device::kCpu ? Device::kGuarded : Device::kCpu;
      const std::string dir = folder_.at("moved");
      fs::remove_all(dir);
      {
        Run run(recipe(more), dir, 2, false, first);
        run.recipe.train.steps = 10;
        run.run();
      }
      EXPECT_EQ(tensors_of(dir + "/step-10"), tensors_of(ten));
      Run run(recipe(more), dir, 2, true, second);
      ASSERT_TRUE(run.trainer->resume());
      EXPECT_EQ(run.trainer->steps(), 10);
      EXPECT_EQ(run.run().steps, 20);
      EXPECT_EQ(tensors_of(dir + "/step-20"), tensors_of(whole));
      if (fs::exists(whole + "/skip")) {
        EXPECT_EQ(tensors_of(dir + "/step-20/skip"), tensors_of(whole + "/skip"));
      }
    }
  }
}

// What a run says whose device has no byte more than before its first step.
std::string without_memory(const std::function<void()>& run) {
  const GuardedLimit full(guarded_bytes());
  return error_of(run);
}

TEST_F(Devices, TheFirstStepWithoutMemorySaysWhatToLower) {
  Run run(recipe(), folder_.at("run"), 2, false, Device::kGuarded);
  const std::string error = without_memory([&] { run.run(); });
  EXPECT_EQ(error.find("step 1: out of guarded memory: "), 0u) << error;
  EXPECT_NE(error.find(" wanted, "), std::string::npos) << error;
  EXPECT_NE(error.find("lower batch or context, or set recompute; there is no checkpoint yet"),
            std::string::npos)
      << error;
  EXPECT_FALSE(fs::exists(folder_.at("run") + "/step-1"));
}

// Where nothing trains, the validation is all that a run does.
TEST_F(Devices, MemoryThatLacksBetweenStepsIsNamedSo) {
  Run run(recipe(R"("method": {"name": "attention_drop", "drop": [0], "frozen_backbone": true},
                    "validation": {"share": 0.5}, "batch": 40,
                    "model": {"width": 64, "layers": 2, "heads": 2, "kv_heads": 1, "ffn_width": 8192})"),
          folder_.at("run"), 2, false, Device::kGuarded);
  const std::string error = without_memory([&] { run.run(); });
  EXPECT_EQ(error.find("after step 0: out of guarded memory: "), 0u) << error;
  EXPECT_NE(error.find("lower batch or context; there is no checkpoint yet"), std::string::npos) << error;
}

// Files of a folder and what is in them.
std::map<std::string, std::string> contents_of(const std::string& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) all[entry.path().string()] = file_text(entry.path().string());
  }
  return all;
}

TEST_F(Devices, ALaterStepWithoutMemoryLeavesTheCheckpoint) {
  Run(recipe(), folder_.at("whole"), 2, false, Device::kGuarded).run();
  const std::string dir = folder_.at("run");
  {
    Run run(recipe(), dir, 2, false, Device::kGuarded);
    run.recipe.train.steps = 10;
    run.run();
  }
  const auto before = contents_of(dir + "/step-10");
  EXPECT_GT(before.size(), 1u);
  {
    Run run(recipe(), dir, 2, true, Device::kGuarded);
    ASSERT_TRUE(run.trainer->resume());
    const std::string error = without_memory([&] { run.run(); });
    EXPECT_EQ(error.find("step 11: out of guarded memory: "), 0u) << error;
    EXPECT_NE(error.find("lower batch or context, or set recompute; "), std::string::npos) << error;
    EXPECT_NE(error.find("/step-10 is as it was"), std::string::npos) << error;
  }
  EXPECT_EQ(contents_of(dir + "/step-10"), before);
  Run run(recipe(), dir, 2, true, Device::kGuarded);
  ASSERT_TRUE(run.trainer->resume());
  EXPECT_EQ(run.run().steps, 20);
  EXPECT_EQ(tensors_of(dir + "/step-20"), tensors_of(folder_.at("whole") + "/step-20"));
}

// A step that gives no number goes back to the checkpoint.
TEST_F(Devices, RollsBack) {
  Run run(recipe(R"("on_nan": "rollback", "precision": "bf16")"), folder_.at("run"), 2, false,
          Device::kGuarded);
  run.recipe.train.steps = 5;
  run.run();
  run.recipe.train.steps = 0;
  change(run, [](std::vector<float>& values) { values[5] = std::nanf(""); });
  run.trainer->parameters().refresh(run.ctx);
  EXPECT_EQ(run.run().steps, 20);
  for (const float value : host_values(run.ctx, run.trainer->parameters().values()))
    ASSERT_TRUE(std::isfinite(value));
}

TEST_F(Devices, AModelElsewhereIsRefused) {
  Run run(recipe(), folder_.at("run"));
  Context other({.device = Device::kGuarded, .threads = 1});
  EXPECT_EQ(error_of([&] { Trainer(other, run.recipe, run.model, run.data, folder_.at("other")); }),
            "the model is on the device cpu, and training on guarded: move it there first");
}

TEST_F(Devices, StepsAreTimedAndRunsEstimated) {
  StepTimerOptions options;
  options.model = tiny_config();
  options.batch = 2;
  options.context = 16;
  options.method = R"({"name": "random", "units": "block", "share_end": 0.5, "train_skipped_kv": "hide"})";
  std::vector<double> skipped;
  for (const Device device : {Device::kCpu, Device::kGuarded}) {
    Context ctx({.device = device, .threads = 2});
    Tape tape(device);
    StepTimer timer(ctx, options, tape);
    const StepTimer::Seconds seconds = timer.step();
    EXPECT_GT(seconds.pass, 0);
    EXPECT_GT(seconds.all, seconds.pass);
    EXPECT_GT(seconds.data, 0);
    EXPECT_LT(seconds.data, seconds.all);
    const StepTimer::Waits waits = timer.waits(2);
    EXPECT_GT(waits.data, 0);
    EXPECT_LT(waits.data, 1);
    EXPECT_EQ(waits.counts, 0);
    EXPECT_GT(timer.state_bytes(), 0u);
    EXPECT_GT(tape.peak_bytes(), 0u);
    skipped.push_back(timer.skip_ratio());
    EXPECT_GT(estimate_run(ctx, Recipe::parse(recipe(), "recipe"), options.model).seconds, 0);
  }
  EXPECT_GT(skipped[0], 0);
  EXPECT_EQ(skipped[0], skipped[1]);
}

}  // namespace
}  // namespace fathom
