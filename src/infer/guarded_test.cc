// The engine and calibration on the guarded device: the CPU's numbers bit for bit, and host code that touches
// the device's memory ends the test.
#include "infer/device_runs_test.h"
#include "infer/every_method_test.h"

namespace fathom {
namespace {

class OnGuarded : public ::testing::TestWithParam<std::string> {};

TEST_P(OnGuarded, TheEngineAnswersAsOnTheCpu) {
  for (const bool drafts : {false, true}) {
    const EngineRun cpu = run_engine(GetParam(), Device::kCpu, drafts),
                    guarded = run_engine(GetParam(), Device::kGuarded, drafts);
    ASSERT_EQ(cpu.heard.size(), guarded.heard.size());
    for (size_t i = 0; i < cpu.heard.size(); ++i) {
      EXPECT_EQ(cpu.heard[i].ids, guarded.heard[i].ids);
      EXPECT_EQ(cpu.heard[i].logprobs, guarded.heard[i].logprobs);
      EXPECT_EQ(cpu.heard[i].depth, guarded.heard[i].depth);
    }
    // With drafts the CPU, whose host knows when all rows are kept, also leaves out keys and values that no
    // draft looks for.
    if (!drafts) {
      EXPECT_EQ(cpu.savings, guarded.savings);
    }
  }
}

// Copies to the device and back while `answers` answers of ten tokens are written, sampled.
std::pair<uint64_t, uint64_t> copies_of(int answers) {
  EngineRig rig(R"({"name": "dense"})", cache_of(9), tiny_config(), Device::kGuarded);
  Batcher batcher(rig.many.feeder, roomy());
  std::vector<Answer> all;
  for (int i = 0; i < answers; ++i) {
    Request request;
    request.prompt = {1 + i, 2, 3};
    request.max_tokens = 10;
    request.sampler.temperature = 1;
    for (Answer& answer : submit(batcher, request)) all.push_back(std::move(answer));
  }
  const Transfers before = rig.many.feeder.context().transfers();
  while (batcher.step()) {
  }
  const Transfers after = rig.many.feeder.context().transfers();
  return {after.to_device - before.to_device, after.to_host - before.to_host};
}

TEST(GuardedEngine, MoreAnswersAreNoMoreCopies) {
  EXPECT_EQ(copies_of(8), copies_of(1));
}

std::vector<float> calibrated_numbers(const std::string& json, Device device) {
  std::vector<float> all;
  for (const CalibrationPoint& point : calibrated_points(json, device)) {
    all.insert(all.end(), {point.budget, point.achieved, point.held});
    const std::vector<float> settings = point.settings();
    all.insert(all.end(), settings.begin(), settings.end());
  }
  return all;
}

TEST_P(OnGuarded, CalibrationFindsTheCpusThresholds) {
  std::vector<float> cpu;
  try {
    cpu = calibrated_numbers(GetParam(), Device::kCpu);
  } catch (const UserError& error) {
    GTEST_SKIP() << error.what();  // nothing to set
  }
  const std::vector<float> guarded = calibrated_numbers(GetParam(), Device::kGuarded);
  ASSERT_EQ(cpu.size(), guarded.size());
  for (size_t i = 0; i < cpu.size(); ++i)
    EXPECT_EQ(std::bit_cast<uint32_t>(cpu[i]), std::bit_cast<uint32_t>(guarded[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(All, OnGuarded, ::testing::ValuesIn(every_method()), method_test_name);

}  // namespace
}  // namespace fathom
