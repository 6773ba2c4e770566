#include "ops/rows/write_numbers.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"

namespace fathom {
namespace {

TEST(WriteNumbers, TheLastWriteOfAnIndexCountsAndNoOtherNumberChanges) {
  for (const Device device : devices_to_check()) {
    Context ctx({.device = device, .threads = 2});
    Rng rng(5);
    for (const int count : {0, 1, 2, 255, 256, 257, 5000}) {
      std::vector<int32_t> want(900, -1);
      Tensor list = ints(ctx, want);
      std::vector<NumberWrite> writes;
      for (int i = 0; i < count; ++i) {
        writes.push_back({static_cast<int32_t>(rng.below(900)), i});
        want[static_cast<size_t>(writes.back().index)] = i;
      }
      write_numbers(ctx, list, writes);
      std::vector<int32_t> got(900);
      copy_to_host(ctx, list, got);
      EXPECT_EQ(got, want) << count;
    }
  }
}

TEST(WriteNumbers, ManyWritesAreOneCopy) {
  Context ctx({.device = Device::kGuarded, .threads = 1});
  Tensor list = ints(ctx, std::vector<int32_t>(64, 0));
  std::vector<NumberWrite> writes;
  for (int32_t i = 0; i < 64; ++i) writes.push_back({i, i});
  const uint64_t before = ctx.transfers().to_device;
  write_numbers(ctx, list, writes);
  EXPECT_EQ(ctx.transfers().to_device - before, 1u);
  write_numbers(ctx, list, {});
  EXPECT_EQ(ctx.transfers().to_device - before, 1u);
}

TEST(WriteNumbers, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  Tensor list = ints(ctx, {1, 2}), floats_ = floats(ctx, {1, 2});
  const std::vector<NumberWrite> beyond{{2, 0}}, before{{-1, 0}};
  EXPECT_EQ(refusal([&] { write_numbers(ctx, list, beyond); }), "write_numbers: index 2 is not one of 2");
  EXPECT_EQ(refusal([&] { write_numbers(ctx, list, before); }), "write_numbers: index -1 is not one of 2");
  EXPECT_EQ(refusal([&] { write_numbers(ctx, floats_, beyond); }),
            "write_numbers: the list must be dense i32, got f32 (2)");
}

}  // namespace
}  // namespace fathom
