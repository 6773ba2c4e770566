#include "tensor/tape.h"

#include <gtest/gtest.h>

#include <array>

namespace fathom {
namespace {

TEST(Tape, StepsThatDifferShareTheirMemory) {
  Tape tape(Device::kCpu);
  size_t first = 0;
  for (const size_t bytes : {size_t{1000000}, size_t{900000}, size_t{700000}, size_t{990000}}) {
    const std::array<std::shared_ptr<void>, 2> blocks{tape.allocate(bytes), tape.allocate(bytes)};
    EXPECT_NE(blocks[0], blocks[1]);
    if (first == 0) first = tape.held_bytes();
    EXPECT_EQ(tape.held_bytes(), first) << bytes;
  }
  EXPECT_GE(first, size_t{2000000});
  EXPECT_LT(first, size_t{2500000});
  EXPECT_EQ(tape.peak_bytes(), first);
  const std::shared_ptr<void> small = tape.allocate(400000);  // a block more than twice as large is not taken
  EXPECT_LT(tape.held_bytes(), first + 500000);
  EXPECT_GT(tape.held_bytes(), first);
}

}  // namespace
}  // namespace fathom
