// Training in bf16 on a GPU, where activations are bf16 too, against the CPU, whose activations are f32: the
// gradients of every parameter. And runs on a GPU repeat themselves, also after a checkpoint.
#include <gtest/gtest.h>

#include <cmath>

#include "train/trainer_rig_test.h"

namespace fathom {
namespace {

class CudaTraining : public Trainers, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    try {
      const Context ctx({.device = Device::kCuda, .threads = 1});
    } catch (const UserError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  // Heads of 64, with which tensor cores compute.
  std::string wide(const std::string& more) const {
    return R"({"data": [")" + data_ + R"("], "data_cache": ")" + folder_.at("cache") +
           R"(", "batch": 5, "context": 40, "schedule_steps": 20, "checkpoint": {"every": 10}, "precision": "bf16",
        "model": {"width": 192, "layers": 3, "heads": 3, "kv_heads": 1, "ffn_width": 200}, )" +
           more + "}";
  }

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
