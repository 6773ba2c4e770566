#include "ops/rows/by_position.h"

#include <gtest/gtest.h>

#include "ops/kernels/kept_rows_test.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

TEST(BeforePosition, ComparesEachRow) {
  Context ctx({.threads = 1});
  EXPECT_EQ(values_of(before_position(ctx, ints(ctx, {0, 3, 4, 5, 2}), 4)),
            (std::vector<float>{1, 1, 0, 0, 1}));
  EXPECT_EQ(before_position(ctx, ints(ctx, {}), 4).numel(), 0);
  EXPECT_EQ(refusal([&] { before_position(ctx, floats(ctx, {1}), 4); }),
            "before_position: positions must be i32 (rows), got f32 (1)");
}

TEST(StoreByPosition, KeptRowsLeaveTheirValue) {
  Context ctx({.threads = 1});
  Tensor table = Tensor::owned(Device::kCpu, DType::kF32, {2, 3});
  const Tensor sequence = ints(ctx, {1, 0, 1, 0}), positions = ints(ctx, {0, 2, 1, 5});
  store_by_position(ctx, table, floats(ctx, {7, 8, 9, -1}), some_rows(ctx, {0, 1, 2, -1}, 3), sequence,
                    positions);
  EXPECT_EQ(values_of(table), (std::vector<float>{0, 0, 8, 7, 9, 0}));
  store_by_position(ctx, table, floats(ctx, {4, -1, -1, -1}), some_rows(ctx, {2, -1, -1, -1}, 1), sequence,
                    positions);
  EXPECT_EQ(values_of(table), (std::vector<float>{0, 0, 8, 7, 4, 0}));
  store_by_position(ctx, table, {}, RowSet::none(4), sequence, positions);
  EXPECT_EQ(refusal([&] {
              store_by_position(ctx, table, floats(ctx, {1, 2, 3, 4}), RowSet::all(4), sequence, positions);
            }),
            "store_by_position: the table has 2 sequences of 3 positions, got sequence 0, position 5");
}

}  // namespace
}  // namespace fathom
