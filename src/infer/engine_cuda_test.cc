// The engine, calibration and scores on a GPU against the CPU's: another order of summing moves a number a
// little, and with it, rarely, a row over its threshold or a draw to the next token.
#include <cmath>

#include "infer/device_runs_test.h"
#include "infer/every_method_test.h"
#include "ops/kernels/gpu_test.h"

namespace fathom {
namespace {

class EngineOnCuda : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
};

void expect_near(const std::vector<float>& got, const std::vector<float>& want, float tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << i;
}

TEST_P(EngineOnCuda, AnswersAsOnTheCpu) {
  for (const bool drafts : {false, true}) {
    const EngineRun cpu = run_engine(GetParam(), Device::kCpu, drafts),
                    gpu = run_engine(GetParam(), Device::kCuda, drafts);
    ASSERT_EQ(gpu.heard.size(), cpu.heard.size());
    int others = 0;
    for (size_t i = 0; i < cpu.heard.size(); ++i) {
      if (gpu.heard[i].ids != cpu.heard[i].ids) {
        ++others;
        continue;
      }
      expect_near(gpu.heard[i].logprobs, cpu.heard[i].logprobs, 1e-2f);
      ASSERT_EQ(gpu.heard[i].depth.size(), cpu.heard[i].depth.size());
    }
    EXPECT_LE(others, 1);
    if (drafts) continue;  // those that the CPU leaves out by what its host knows
    for (size_t i = 0; i < cpu.savings.size(); ++i) EXPECT_NEAR(gpu.savings[i], cpu.savings[i], 0.02) << i;
  }
}

TEST_P(EngineOnCuda, CalibrationFindsTheCpusBudgets) {
  std::vector<CalibrationPoint> cpu;
  try {
    cpu = calibrated_points(GetParam(), Device::kCpu);
  } catch (const UserError& error) {
    GTEST_SKIP() << error.what();  // nothing to set
  }
  const std::vector<CalibrationPoint> gpu = calibrated_points(GetParam(), Device::kCuda);
  ASSERT_EQ(gpu.size(), cpu.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_NEAR(gpu[i].budget, cpu[i].budget, 0.02);
    EXPECT_EQ(std::isnan(gpu[i].achieved), std::isnan(cpu[i].achieved)) << i;
    if (!std::isnan(cpu[i].achieved)) {  // NaN: it only helps to interpolate
      EXPECT_NEAR(gpu[i].achieved, cpu[i].achieved, 0.02) << i;
    }
    EXPECT_EQ(gpu[i].settings().size(), cpu[i].settings().size());
  }
}

TEST_P(EngineOnCuda, ScoresAsOnTheCpu) {
  const auto scores = [&](Device device) {
    EngineRig rig(GetParam(), cache_of(1), tiny_config(), device);
    Rng rng(5);
    return score(rig.many.feeder, random_prompt(rng, 60), {.chunk = 16}).logprobs;
  };
  const std::vector<float> cpu = scores(Device::kCpu), gpu = scores(Device::kCuda);
  ASSERT_EQ(gpu.size(), cpu.size());
  int others = 0;
  for (size_t i = 1; i < cpu.size(); ++i) others += !(std::abs(gpu[i] - cpu[i]) <= 1e-2f);  // a NaN, too
  EXPECT_LE(others, 6);
}

INSTANTIATE_TEST_SUITE_P(All, EngineOnCuda, ::testing::ValuesIn(every_method()), method_test_name);

}  // namespace
}  // namespace fathom
