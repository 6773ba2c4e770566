// The guarded device: host code that touches its memory dies, kernels and copies may.
#include "tensor/guarded.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tensor/arena.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

std::vector<float> counting(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

TEST(Guarded, KernelsAndCopiesReachItsMemory) {
  Context ctx({.device = Device::kGuarded, .threads = 2});
  Tensor x = Tensor::from(ctx, counting(5000), {5000});
  on_device(ctx, [&](auto) {
    ctx.pool().parallel_for(5000, 100, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) x.data<float>()[i] *= 2;
    });
  });
  std::vector<float> values(5000);
  copy_to_host(ctx, x, values);
  EXPECT_EQ(values[4999], 9998.0f);
  EXPECT_EQ(x.to(ctx, Device::kCpu).data<float>()[7], 14.0f);
}

TEST(GuardedDeathTest, TheHostDoesNot) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        Context ctx({.device = Device::kGuarded, .threads = 1});
        const Tensor x = Tensor::from(ctx, counting(16), {16});
        std::vector<float> values(16);
        copy_to_host(ctx, x, values);  // opened and closed again
        volatile float seen = x.data<float>()[0];
        static_cast<void>(seen);
      },
      "");
  EXPECT_DEATH(
      {
        Tensor x = Tensor::owned(Device::kGuarded, DType::kF32, {16});
        x.data<float>()[3] = 1;
      },
      "");
}

TEST(Guarded, BlocksComeZeroedAndAlignedAndGoBack) {
  std::vector<const void*> first;
  for (int round = 0; round < 3; ++round) {
    std::vector<Tensor> blocks;
    for (int64_t n : {1, 100, 70000, 3}) {
      blocks.push_back(Tensor::owned(Device::kGuarded, DType::kF32, {n}));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back().raw()) % 64, 0u);
      const GuardedAccess open;
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(blocks.back().data<float>()[i], 0.0f);
        blocks.back().data<float>()[i] = 1.0f;
      }
    }
    std::vector<const void*> places;
    for (const Tensor& block : blocks) places.push_back(block.raw());
    if (round == 0) first = places;
    EXPECT_EQ(places, first);          // what was given back is handed out again
    blocks.erase(blocks.begin() + 1);  // and gaps close
  }
}

TEST(Guarded, TransfersAreCounted) {
  Context ctx({.device = Device::kGuarded, .threads = 1});
  const Tensor x = Tensor::from(ctx, counting(8), {8});
  std::vector<float> values(8);
  copy_to_host(ctx, x, values);
  copy_to_host(ctx, x, values);
  EXPECT_EQ(ctx.transfers().to_device, 1u);
  EXPECT_EQ(ctx.transfers().to_host, 2u);
  Context cpu({.threads = 1});
  copy_to_host(cpu, Tensor::from(cpu, counting(8), {8}), values);
  EXPECT_EQ(cpu.transfers().to_device + cpu.transfers().to_host, 0u);
}

}  // namespace
}  // namespace fathom
