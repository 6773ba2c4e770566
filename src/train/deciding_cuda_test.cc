// Methods whose routers read the residual stream beside the norms, trained in bf16 on a GPU: their gradients
// are the CPU's, and a run is itself again.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/gpu_test.h"
#include "train/trainer_rig_test.h"

namespace fathom {
namespace {

class CudaDeciding : public Trainers, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }

  std::string own_recipe() const {
    return R"({"data": [")" + data_ + R"("], "data_cache": ")" + folder_.at("cache") +
           R"(", "batch": 5, "context": 40, "schedule_steps": 4, "checkpoint": {"every": 4}, "precision": "bf16",
        "model": {"width": 192, "layers": 3, "heads": 3, "kv_heads": 1, "ffn_width": 200}, )" +
           GetParam() + "}";
  }

  struct FirstStep {
    StepResult result;
    std::vector<float> gradients;
    std::vector<ParameterSet::Parameter> list;
  };
  FirstStep first_step(Device device) {
    std::filesystem::remove_all(folder_.at("run"));
    Run run(own_recipe(), folder_.at("run"), 2, false, device);
    const StepShape shape{run.recipe.train.batch, run.recipe.train.accumulate};
    FirstStep step;
    step.result = run.trainer->step(make_step(*run.data.train, 0, shape), {.ce = true, .work = true});
    step.gradients = host_values(run.ctx, run.trainer->parameters().gradients());
    step.list = run.trainer->parameters().list();
    return step;
  }
};

// A router may send a row elsewhere where its state is rounded: some rows of each layer at most, which weigh
// little beside a gradient that is wrong.
TEST_P(CudaDeciding, LearnsAsOnTheCpu) {
  const FirstStep cpu = first_step(Device::kCpu), gpu = first_step(Device::kCuda);
  EXPECT_NEAR(gpu.result.loss, cpu.result.loss, 1e-2);
  EXPECT_NEAR(gpu.result.skip_ratio, cpu.result.skip_ratio, 0.02);
  EXPECT_NEAR(gpu.result.net_flops, cpu.result.net_flops, 0.02);
  for (const auto& parameter : cpu.list) {
    double apart = 0, size = 0;
    for (auto i = static_cast<size_t>(parameter.begin);
         i < static_cast<size_t>(parameter.begin + parameter.size); ++i) {
      apart += std::pow(static_cast<double>(gpu.gradients[i]) - static_cast<double>(cpu.gradients[i]), 2);
      size += std::pow(static_cast<double>(cpu.gradients[i]), 2);
    }
    EXPECT_LE(std::sqrt(apart), 0.3 * std::sqrt(size) + 1e-7) << parameter.spec.name;
  }
}

TEST_P(CudaDeciding, ARunIsItselfAgainAndGoesOnFromACheckpoint) {
  for (const char* dir : {"whole", "again", "half"}) std::filesystem::remove_all(folder_.at(dir));
  for (const char* dir : {"whole", "again"})
    Run(own_recipe(), folder_.at(dir), 2, false, Device::kCuda).run();
  {
    Run run(own_recipe(), folder_.at("half"), 2, false, Device::kCuda);
    run.recipe.train.steps = 2;
    run.run();
  }
  Run rest(own_recipe(), folder_.at("half"), 2, true, Device::kCuda);
  ASSERT_TRUE(rest.trainer->resume());
  EXPECT_EQ(rest.trainer->steps(), 2);
  rest.run();
  const auto whole = tensors_of(folder_.at("whole") + "/step-4");
  EXPECT_FALSE(whole.empty());
  EXPECT_EQ(tensors_of(folder_.at("again") + "/step-4"), whole);
  EXPECT_EQ(tensors_of(folder_.at("half") + "/step-4"), whole);
}

INSTANTIATE_TEST_SUITE_P(
    Bf16, CudaDeciding,
    testing::Values(
        R"("method": {"name": "skip_layer", "share_end": 0.5, "train_skipped_kv": "project"})",
        R"("method": {"name": "skip_layer", "share_end": 0.5, "train_skipped_kv": "hide"})",
        R"("method": {"name": "skip_layer", "share_end": 0.5, "train_skipped_kv": "copy"})",
        R"("method": {"name": "skip_layer", "share_end": 0.5, "router": "top1"})",
        R"("method": {"name": "skip_layer", "share_end": 0.5}, "recompute": true)",
        R"("method": {"name": "skip_layer", "share_end": 0.5}, "accumulate": 2)",
        R"("method": {"name": "skip_layer", "units": "both"})",
        R"("method": {"name": "skip_layer", "share_end": 0.5, "protect": [1]})",
        R"("method": {"name": "priced", "st_skipped": "drop", "share_end": 0.6, "init": "harm_order", "frozen_backbone": false})",
        R"("method": {"name": "priced", "share_end": 0.6, "init": "harm_order", "frozen_backbone": false})",
        R"("method": {"name": "priced", "st_skipped": "drop", "detached": false, "share_end": 0.6, "init": "harm_order", "frozen_backbone": false})"));

}  // namespace
}  // namespace fathom
