// Training in bf16 on a GPU, where activations are bf16 too, against the CPU, whose activations are f32: the
// gradients of every parameter. And runs on a GPU repeat themselves, also after a checkpoint.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/gpu_test.h"
#include "train/trainer_rig_test.h"

namespace fathom {
namespace {

class CudaRuns : public Trainers {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }

  // Heads of 64, with which tensor cores compute.
  std::string wide(const std::string& more) const {
    return R"({"data": [")" + data_ + R"("], "data_cache": ")" + folder_.at("cache") +
           R"(", "batch": 5, "context": 40, "schedule_steps": 20, "checkpoint": {"every": 10}, "precision": "bf16",
        "model": {"width": 192, "layers": 3, "heads": 3, "kv_heads": 1, "ffn_width": 200}, )" +
           more + "}";
  }

  // The loss after each five steps of a run that goes on from its checkpoint on the next of the devices.
  std::vector<double> losses_on(const std::string& json, const std::vector<Device>& devices) {
    const std::string dir = folder_.at("moved");
    std::filesystem::remove_all(dir);
    std::vector<double> losses;
    for (const Device device : devices) {
      Run run(json, dir, 2, !losses.empty(), device);
      EXPECT_EQ(run.trainer->resume(), !losses.empty());
      EXPECT_EQ(run.trainer->steps(), 5 * std::ssize(losses));
      run.recipe.train.steps = 5 * (std::ssize(losses) + 1);
      losses.push_back(run.run().loss);
    }
    return losses;
  }

  // Of the first steps on a GPU, from a base that `change` has changed.
  std::vector<double> losses_of(const std::string& more, const std::function<void(Model&)>& change) {
    std::filesystem::remove_all(folder_.at("run"));
    Run run(wide(more), folder_.at("run"), 2, false, Device::kCuda, change);
    const StepShape shape{run.recipe.train.batch, run.recipe.train.accumulate};
    std::vector<double> losses;
    for (int64_t i = 0; i < 5; ++i)
      losses.push_back(run.trainer->step(make_step(*run.data.train, i * shape.samples(), shape), {}).loss);
    return losses;
  }
};

class CudaTraining : public CudaRuns, public testing::WithParamInterface<const char*> {
 protected:
  struct Step {
    StepResult result;
    std::vector<float> gradients;
    std::vector<ParameterSet::Parameter> list;
  };
  Step one_step(const std::string& more, Device device) {
    std::filesystem::remove_all(folder_.at("run"));
    Run run(wide(more), folder_.at("run"), 2, false, device);
    const StepShape shape{run.recipe.train.batch, run.recipe.train.accumulate};
    Step step;
    step.result = run.trainer->step(make_step(*run.data.train, 0, shape), {.ce = true, .work = true});
    step.gradients = host_values(run.ctx, run.trainer->parameters().gradients());
    step.list = run.trainer->parameters().list();
    return step;
  }
};

// ‖a − b‖ / ‖b‖ over [begin, begin + size)
double distance(const std::vector<float>& a, const std::vector<float>& b, int64_t begin, int64_t size) {
  double difference = 0, whole = 0;
  for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(begin + size); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    whole += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(whole > 0 ? difference / whole : difference);
}

TEST_P(CudaTraining, GradientsInBf16AreNearTheCpus) {
  const Step cpu = one_step(GetParam(), Device::kCpu), gpu = one_step(GetParam(), Device::kCuda);
  EXPECT_NEAR(gpu.result.loss, cpu.result.loss, 5e-3);
  EXPECT_EQ(gpu.result.skip_ratio, cpu.result.skip_ratio);
  // Factors inside the weights multiply no row; the CPU's stand beside them.
  if (std::string_view(GetParam()).find("lora") == std::string_view::npos) {
    EXPECT_NEAR(gpu.result.net_flops, cpu.result.net_flops, 1e-6);
  }
  // Of weights that are rounded to four bits, bf16 and f32 give some another level.
  const bool rounds = std::string_view(GetParam()).find("round") != std::string_view::npos;
  for (const auto& parameter : cpu.list)
    EXPECT_LT(distance(gpu.gradients, cpu.gradients, parameter.begin, parameter.size), rounds ? 0.2 : 0.04)
        << parameter.spec.name;
}

TEST_P(CudaTraining, ARunIsItselfAgainAndGoesOnFromACheckpoint) {
  for (const char* dir : {"whole", "again", "half"}) std::filesystem::remove_all(folder_.at(dir));
  const std::string recipe = wide(GetParam());
  Run(recipe, folder_.at("whole"), 2, false, Device::kCuda).run();
  Run(recipe, folder_.at("again"), 2, false, Device::kCuda).run();
  {
    Run run(recipe, folder_.at("half"), 2, false, Device::kCuda);
    run.recipe.train.steps = 10;
    run.run();
  }
  Run rest(recipe, folder_.at("half"), 2, true, Device::kCuda);
  ASSERT_TRUE(rest.trainer->resume());
  rest.run();
  const auto whole = tensors_of(folder_.at("whole") + "/step-20");
  EXPECT_FALSE(whole.empty());
  EXPECT_EQ(tensors_of(folder_.at("again") + "/step-20"), whole);
  EXPECT_EQ(tensors_of(folder_.at("half") + "/step-20"), whole);
}

TEST_F(CudaRuns, CheckpointsMoveToAGpuAndBack) {
  for (const char* more :
       {R"("method": "dense")", R"("optimizer": {"kind": "adafactor"})",
        R"("method": {"name": "random", "units": "block", "share_end": 0.5, "train_skipped_kv": "hide"})"}) {
    SCOPED_TRACE(more);
    const std::vector<double> stayed = losses_on(recipe(more), {Device::kCpu, Device::kCpu, Device::kCpu}),
                              moved = losses_on(recipe(more), {Device::kCpu, Device::kCuda, Device::kCpu});
    EXPECT_EQ(moved[0], stayed[0]);
    EXPECT_NEAR(moved[1], stayed[1], 1e-3);
    EXPECT_NEAR(moved[2], stayed[2], 1e-3);
    EXPECT_LT(stayed[2], stayed[0] - 0.01);  // there was something to lose
  }
}

// A frozen base of blocks is held in bf16: what learns on it learns as on those numbers.
TEST_F(CudaRuns, AQuantisedBaseTrainsAsItsBf16Numbers) {
  const auto held_in = [](std::vector<DType> types) {
    return [types](Model& model) {
      Context ctx({.threads = 1});
      for (const DType type : types) convert_weights(ctx, model, type, true);
    };
  };
  for (const char* more :
       {R"("lora": {"rank": 4})", R"("method": {"name": "gate_skip", "frozen_backbone": true})"}) {
    SCOPED_TRACE(more);
    const std::vector<double> blocks = losses_of(more, held_in({DType::kQ8_0})),
                              decoded = losses_of(more, held_in({DType::kQ8_0, DType::kBF16})),
                              whole = losses_of(more, {});
    for (size_t i = 0; i < blocks.size(); ++i) EXPECT_NEAR(blocks[i], decoded[i], 1e-6) << i;
    EXPECT_NE(blocks, whole);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Bf16, CudaTraining,
    testing::Values(
        R"("method": "dense")", R"("method": "dense", "recompute": true)",
        R"("method": {"name": "random", "units": "block", "share_end": 0.5, "train_skipped_kv": "hide"})",
        R"("method": {"name": "random", "units": "block", "share_end": 0.5, "train_skipped_kv": "project"})",
        R"("method": {"name": "random", "units": "block", "share_end": 0.5, "train_skipped_kv": "copy"})",
        R"("method": {"name": "random", "share_end": 0.7, "train_skipped_kv": "project"}, "accumulate": 2)",
        R"("method": "dense", "lora": {"rank": 4})",
        R"("method": "dense", "lora": {"rank": 4, "dropout": 0.1})",
        R"("method": "dense", "lora": {"rank": 4, "round": "q4_1", "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"]})",
        R"("method": {"name": "random", "share_end": 0.7, "objective": "distill"}, "lora": {"rank": 8, "targets": ["q_proj", "v_proj", "up_proj"]})"));

}  // namespace
}  // namespace fathom
