// Every method on a GPU against the CPU: ten training steps with the CPU's decisions replayed, and what the
// methods decide, remember and infer by themselves.
#include <numeric>

#include "ops/kernels/gpu_test.h"
#include "skip/methods.h"
#include "skip/training_test.h"

namespace fathom {
namespace {

std::vector<std::string> recipes() {
  std::vector<std::string> all;
  for (const MethodEntry& method : methods()) {
    const char* extra = method.name == "mind_skip" ? R"(, "pool": "prefix:4")" : "";
    all.push_back(R"({"name": ")" + std::string(method.name) + R"(", "share": "falling", "share_end": 0.6)" +
                  extra + "}");
  }
  all.emplace_back(R"({"name": "priced", "st_skipped": "drop", "objective": "distill", "share_end": 0.6})");
  all.emplace_back(R"({"name": "skip_middle", "controller": "adaptive"})");
  all.emplace_back(R"({"name": "gate_skip", "gate": "scalar", "sparsity": "kl"})");
  return all;
}

// ‖a − b‖ / ‖b‖
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return size > 0 ? std::sqrt(difference / size) : std::sqrt(difference);
}

// The decisions on another device.
std::vector<RowSet> on_device_of(Context& ctx, const std::vector<std::vector<uint8_t>>& kept) {
  std::vector<RowSet> sets;
  for (const RowSet& host : owned_rows(kept))
    sets.push_back(RowSet::some(host.ids().to(ctx, ctx.device()), host.count().to(ctx, ctx.device())));
  return sets;
}

void add_scaled(Context& ctx, Tensor& value, const std::vector<float>& gradient, float rate) {
  std::vector<float> now(gradient.size());
  copy_to_host(ctx, value, now);
  for (size_t i = 0; i < now.size(); ++i) now[i] -= rate * gradient[i];
  copy_from_host(ctx, now, value);
}

class EveryMethodOnCuda : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
};

// What a step leaves behind in the method.
void finish_step(Rig& rig, SkipState& state) {
  rig.policy->observe(rig.ctx, state, 0);
  after_step(rig);
  state.pass.units.clear();
}

// The devices' weights differ by one more rounding at each step. A gate near its kink magnifies the
// difference.
void expect_controllers(Rig& gpu, Rig& cpu, int64_t step) {
  const std::vector<float*> got = gpu.policy->controllers(), want = cpu.policy->controllers();
  const double near = step < 5 ? 3e-4 : 3e-3;
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(*got[i], *want[i], near * (1 + std::abs(*want[i])))
        << "controller " << i << ", step " << step;
}

// Each device moves its own weights by its own gradients; decisions are the CPU's.
TEST_P(EveryMethodOnCuda, TrainsAsOnTheCpu) {
  Rig cpu(GetParam()), gpu(GetParam(), tiny_config(), 0.3f, 1, Device::kCuda);
  TinyTrainer cpu_trainer(cpu), gpu_trainer(gpu);
  std::vector<float> losses, gpu_losses;
  for (int64_t step = 0; step < 10; ++step) {
    const Rows rows = random_rows({11, 8, 1, 30}, static_cast<uint64_t>(step));
    PassOptions options{.share = cpu.policy->share_at(step, 10, 9), .step = step};
    const auto kept = cpu_trainer.run(rows, options, false).seen.kept;
    const std::vector<RowSet> replay = owned_rows(kept), gpu_replay = on_device_of(gpu.ctx, kept);
    const auto state = cpu.make_state(4), gpu_state = gpu.make_state(4);
    options.replay = &replay;
    const Trained want = cpu_trainer.run(rows, options, true, nullptr, state.get());
    options.replay = &gpu_replay;
    const Trained got = gpu_trainer.run(rows, options, true, nullptr, gpu_state.get());
    losses.push_back(static_cast<float>(want.loss));
    gpu_losses.push_back(static_cast<float>(got.loss));
    for (size_t i = 0; step == 0 && i < want.gradients.size(); ++i)
      EXPECT_LT(distance(got.gradients[i], want.gradients[i]), 1e-4) << cpu_trainer.name(i);
    finish_step(cpu, *state);
    finish_step(gpu, *gpu_state);
    expect_controllers(gpu, cpu, step);
    for (size_t i = 0; i < want.gradients.size(); ++i) {
      add_scaled(cpu.ctx, cpu_trainer.value(i), want.gradients[i], 0.05f);
      add_scaled(gpu.ctx, gpu_trainer.value(i), got.gradients[i], 0.05f);
    }
  }
  EXPECT_LT(distance(gpu_losses, losses), 1e-4);
}

TEST_P(EveryMethodOnCuda, DecidesInTrainingAsOnTheCpu) {
  Rig cpu(GetParam()), gpu(GetParam(), tiny_config(), 0.3f, 1, Device::kCuda);
  TinyTrainer cpu_trainer(cpu), gpu_trainer(gpu);
  const Rows rows = random_rows({11, 8, 1, 30}, 4);
  for (int64_t step = 0; step < 2; ++step) {  // the second with what the first left behind
    const PassOptions options{.share = 0.7f, .step = step};
    const auto state = cpu.make_state(4), gpu_state = gpu.make_state(4);
    const Trained want = cpu_trainer.run(rows, options, true, nullptr, state.get());
    const Trained got = gpu_trainer.run(rows, options, true, nullptr, gpu_state.get());
    EXPECT_EQ(got.seen.kept, want.seen.kept) << step;
    EXPECT_EQ(got.seen.work.madds, want.seen.work.madds) << step;
    finish_step(cpu, *state);
    finish_step(gpu, *gpu_state);
    expect_controllers(gpu, cpu, step);
  }
}

// By itself: no decision is replayed, so that selections and thresholds are the device's.
TEST_P(EveryMethodOnCuda, InfersAsOnTheCpu) {
  Rig cpu(GetParam()), gpu(GetParam(), tiny_config(), 0.3f, 1, Device::kCuda);
  const Rows rows = random_rows({21, 8, 1, 30}, 3);
  const auto compare = [&](const Seen& want, const Seen& got, const char* what) {
    EXPECT_EQ(got.kept, want.kept) << what;
    EXPECT_LT(distance(got.logits, want.logits), 1e-4) << what;
    EXPECT_EQ(got.work.madds, want.work.madds) << what;
    EXPECT_EQ(got.work.policy_madds, want.work.policy_madds) << what;
    EXPECT_EQ(got.work.unit_rows, want.work.unit_rows) << what;
  };
  compare(cpu.fresh(rows), gpu.fresh(rows), "its own rule");
  cpu.calibrate(0.5f);
  gpu.thresholds = cpu.thresholds;
  compare(cpu.fresh(rows), gpu.fresh(rows), "at a budget");
  TinyRun cached(cpu, 4), gpu_cached(gpu, 4);
  compare(cached.pass(rows), gpu_cached.pass(rows), "cached");
  const Rows next{{3, 21, 0, true, 100}, {4, 8, 1, true, 101}, {7, 30, 3, true, 103}};
  compare(cached.pass(next), gpu_cached.pass(next), "decoding");
  cpu.calibrate_steered(0.5f);
  gpu.thresholds = cpu.thresholds;
  compare(cpu.fresh(random_rows({70, 8, 40}, 3)), gpu.fresh(random_rows({70, 8, 40}, 3)), "steered");
}

INSTANTIATE_TEST_SUITE_P(Cuda, EveryMethodOnCuda, ::testing::ValuesIn(recipes()));

}  // namespace
}  // namespace fathom
