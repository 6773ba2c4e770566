#include <gtest/gtest.h>

#include "skip/tiny_model_test.h"

namespace fathom {
namespace {

// Of each row, what it ran.
std::vector<std::string> ran(const Seen& seen) {
  std::vector<std::string> rows(seen.kept.front().size());
  for (const auto& unit : seen.kept) {
    for (size_t r = 0; r < unit.size(); ++r) rows[r] += unit[r] ? '1' : '0';
  }
  return rows;
}

// Keyed by its text, a sequence draws the same whatever its slot and key; another text, or another seed,
// draws anew from where it differs.
TEST(Random, KeyedByTextDrawsPerText) {
  Rig rig(R"({"name": "random", "keyed_by": "text", "rows_kept": 0.5})");
  Rows rows = random_rows({40, 40, 40});
  constexpr size_t kDiffers = 10;  // the third text: another token here
  for (size_t i = 0; i < 40; ++i) rows[40 + i].token = rows[80 + i].token = rows[i].token;
  rows[80 + kDiffers].token = (rows[kDiffers].token + 1) % 48;
  const std::vector<std::string> all = ran(rig.fresh(rows));
  size_t different = 0;
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(all[i], all[40 + i]) << i;
    different += all[i] != all[80 + i];
    EXPECT_TRUE(i >= kDiffers || different == 0) << i;
  }
  EXPECT_GE(different, 40 - kDiffers - 2) << "eight units of two rows agree once in 256";

  Rig other(R"({"name": "random", "keyed_by": "text", "rows_kept": 0.5, "seed": 1})");
  EXPECT_NE(ran(other.fresh(rows)), all);
  const Rows many = random_rows({100, 100, 100, 100});
  EXPECT_NEAR(skipped_share(rig.fresh(many)), 0.5, 0.04);
}

}  // namespace
}  // namespace fathom
