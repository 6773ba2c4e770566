// What the host learns of a GPU: faults, how many rows there are, the work that was done, memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "ops/kernels/gpu_test.h"
#include "ops/kernels/kept_rows_test.h"
#include "ops/linear/embed.h"
#include "ops/linear/linear.h"
#include "ops/loss/cross_entropy.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/select_rows.h"
#include "tensor/arena.h"
#include "tensor/cuda.h"

namespace fathom {
namespace {

using Values = std::vector<float>;
using Ints = std::vector<int32_t>;

TEST_F(Cuda, FaultsAppearAtTheNextCopyAndOnlyThere) {
  const Tensor table = Tensor::owned(Device::kCuda, DType::kF32, {10, 8});
  for (const int32_t id : {-1, 10}) {
    const Tensor out = embed(*gpu_, ints(*gpu_, {3, id}, {2}), table);
    EXPECT_THROW(host_values(*gpu_, out), UserError);
    EXPECT_NO_THROW(host_values(*gpu_, out));
  }
  for (const int32_t target : {-1, 8}) {
    const Tensor loss = cross_entropy(*gpu_, table, ints(*gpu_, {0, 1, 2, 3, target, 5, 6, 7, 0, 1}, {10}),
                                      floats(*gpu_, Values(10, 1.0f), {10}));
    EXPECT_THROW(host_values(*gpu_, loss), UserError);
  }
}

// What only a build with CUDA has.
int64_t present_on_gpu(Context& ctx, const Tensor& t) {
  if constexpr (kHasCuda) return present_rows(ctx.cuda(), t);
  return -1;
}
int64_t bound_on_gpu(Context& ctx, const Tensor& t) {
  if constexpr (kHasCuda) return bound(ctx.cuda(), t);
  return -1;
}

class CudaCounts : public Cuda {
 protected:
  // The first `count` of `rows` rows.
  RowSet first_rows(Context& ctx, int64_t rows, int64_t count) {
    Values score(static_cast<size_t>(rows));
    std::fill_n(score.begin(), count, 1.0f);
    return select_rows(ctx, floats(ctx, score, {rows}), Compare::kAbove, floats(ctx, {0.5f}, {1}));
  }
};

TEST_F(CudaCounts, TheHostLearnsHowManyRowsThereAre) {
  const Tensor x = floats(*gpu_, normals(300 * 8), {300, 8});
  EXPECT_EQ(bound_on_gpu(*gpu_, x), 300);
  for (const auto& [count, rounded] : std::vector<std::pair<int32_t, int64_t>>{
           {0, 0}, {1, 128}, {128, 128}, {129, 256}, {256, 256}, {257, 300}, {300, 300}}) {
    const RowSet kept = first_rows(*gpu_, 300, count);
    const Tensor others = gather_rows(*gpu_, x, complement(*gpu_, kept, 300));
    for (const Tensor& counted : {x.counted_by(kept.count()), x.counted_by(ints(*gpu_, {count}, {1})),
                                  x.counted_by(known_count(*gpu_, count)), gather_rows(*gpu_, x, kept)}) {
      EXPECT_EQ(present_on_gpu(*gpu_, counted), count);
      EXPECT_EQ(bound_on_gpu(*gpu_, counted), rounded);
    }
    EXPECT_EQ(present_on_gpu(*gpu_, others), 300 - count);
    EXPECT_EQ(host_values<int32_t>(*gpu_, kept.count()), Ints{count});
    EXPECT_EQ(host_values<int32_t>(*gpu_, known_count(*gpu_, count)), Ints{count});
  }
}

// Slots are handed out again while the selections that wrote them before are still queued.
TEST_F(CudaCounts, ASlotsEarlierSelectionIsNotMistakenForItsNext) {
  const ArenaScope scope(*gpu_);
  const Tensor x = floats(*gpu_, normals(64 * 8), {64, 8}), half = floats(*gpu_, {0.5f}, {1});
  std::vector<Tensor> scores;
  for (int64_t count = 0; count <= 64; ++count) {
    Values score(64);
    std::fill_n(score.begin(), count, 1.0f);
    scores.push_back(floats(*gpu_, score, {64}));
  }
  std::vector<RowSet> held;
  for (int i = 0; i < 10000; ++i) {
    const ArenaScope step(*gpu_);
    const auto count = static_cast<size_t>(i * 7 % 65);
    RowSet kept = select_rows(*gpu_, scores[count], Compare::kAbove, half);
    if (i % 50 == 0) {
      EXPECT_EQ(present_on_gpu(*gpu_, x.counted_by(kept.count())), static_cast<int64_t>(count)) << i;
    } else if (i % 2 == 0) {
      held.push_back(std::move(kept));  // more than one page of slots
    }
  }
  for (size_t i = 0, at = 0; i < 10000; i += 2) {
    if (i % 50 == 0) continue;
    EXPECT_EQ(present_on_gpu(*gpu_, x.counted_by(held[at++].count())), static_cast<int64_t>(i * 7 % 65)) << i;
  }
}

TEST_F(CudaCounts, WorkOnCompactedRowsIsCountedAsOnTheCpu) {
  const Values x = normals(50 * 64), w = normals(33 * 64);
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{20}, int64_t{50}}) {
    const auto run = [&](Context& ctx) {
      const ArenaScope scope(ctx);
      const Work before = ctx.counters().total();
      const Tensor rows = floats(ctx, x, {50, 64}), weight = floats(ctx, w, {33, 64});
      const Tensor some = gather_rows(ctx, rows, first_rows(ctx, 50, count));
      linear(ctx, some, weight);
      {
        const PolicyWork deciding(ctx.counters());
        linear(ctx, some, weight);
        linear(ctx, rows, weight);
      }
      return ctx.counters().total() - before;
    };
    const Work got = run(*gpu_), want = run(cpu_);
    EXPECT_EQ(got.madds, want.madds) << count;
    EXPECT_EQ(got.policy_madds, want.policy_madds) << count;
    EXPECT_EQ(got.weight_bytes, want.weight_bytes) << count;
  }
}

std::vector<uint8_t> bytes_of(Context& ctx, const Tensor& tensor) {
  return values_of<uint8_t>(tensor.to(ctx, Device::kCpu));
}

TEST_F(Cuda, MemoryIsZeroedAgainAndTooMuchIsAnError) {
  constexpr int64_t kBytes = int64_t{8} << 20;
  for (int i = 0; i < 3; ++i) {
    Tensor memory = Tensor::owned(Device::kCuda, DType::kU8, {kBytes});
    const std::vector<uint8_t> bytes = bytes_of(*gpu_, memory);
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0), kBytes);
    Tensor other = Tensor::owned(Device::kCpu, DType::kU8, {kBytes});
    std::memset(other.raw(), 0xff, static_cast<size_t>(kBytes));
    other.to(*gpu_, Device::kCuda);
  }
  const std::string message = refusal([] { Tensor::owned(Device::kCuda, DType::kU8, {int64_t{1} << 46}); });
  EXPECT_EQ(message.find("out of GPU memory: 64.0 TiB wanted, "), 0u) << message;
  EXPECT_NE(message.find("iB are free; a smaller batch, context or cache needs less"), std::string::npos)
      << message;
  EXPECT_EQ(bytes_of(*gpu_, Tensor::owned(Device::kCuda, DType::kU8, {1})), std::vector<uint8_t>{0});
}

TEST_F(Cuda, AGpuThatIsNotThereIsAnError) {
  for (const int index : {-1, 4711}) {
    const std::string message =
        refusal([&] { Context ctx({.device = Device::kCuda, .threads = 1, .device_index = index}); });
    EXPECT_EQ(message.find("cuda:" + std::to_string(index) + ": there "), 0u) << message;
  }
}

}  // namespace
}  // namespace fathom
