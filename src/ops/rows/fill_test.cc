#include "ops/rows/fill.h"

#include <gtest/gtest.h>

#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"

namespace fathom {
namespace {

TEST(Fill, WritesEveryElementAndNoOther) {
  for (const Device device : devices_to_check()) {
    Context ctx({.device = device, .threads = 2});
    for (const int64_t n : {0, 1, 255, 256, 257, 40000}) {
      const Tensor all = floats(ctx, std::vector<float>(static_cast<size_t>(n + 2), 1.0f));
      Tensor middle = all.rows(1, n).counted_by(ints(ctx, {0}));
      fill(ctx, middle, -2.5f);
      std::vector<float> want(static_cast<size_t>(n + 2), -2.5f);
      want.front() = want.back() = 1.0f;
      EXPECT_EQ(host_values(ctx, all), want);
    }
  }
}

TEST(Fill, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  Tensor ids = ints(ctx, {1, 2}), nothing;
  EXPECT_EQ(refusal([&] { fill(ctx, ids, 0.0f); }), "fill: out must be dense f32, got i32 (2)");
  EXPECT_EQ(refusal([&] { fill(ctx, nothing, 0.0f); }), "fill: out must be dense f32, got nothing");
  Tensor strided = floats(ctx, {1, 2, 3, 4}, {2, 2}).columns(0, 1);
  EXPECT_EQ(refusal([&] { fill(ctx, strided, 0.0f); }),
            "fill: out must be dense f32, got strided f32 (2, 1)");
}

}  // namespace
}  // namespace fathom
