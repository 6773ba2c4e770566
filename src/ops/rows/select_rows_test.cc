#include "ops/rows/select_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"
#include "tensor/rows.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

using Ids = std::vector<int32_t>;

Ids ids_of(Context& ctx, const RowSet& rows) {
  if (rows.is_all() || rows.is_none()) {
    Ids all(static_cast<size_t>(rows.is_all() ? rows.capacity() : 0));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  Ids count(1), ids(static_cast<size_t>(rows.capacity()));
  copy_to_host(ctx, rows.count(), count);
  copy_to_host(ctx, rows.ids(), ids);
  ids.resize(static_cast<size_t>(count[0]));
  return ids;
}

// Every device there is.
std::vector<std::unique_ptr<Context>> contexts() {
  std::vector<std::unique_ptr<Context>> out;
  for (const Device device : devices_to_check())
    out.push_back(std::make_unique<Context>(ContextOptions{.device = device, .threads = 2}));
  return out;
}

TEST(SelectRows, AboveAndAtLeast) {
  for (const auto& ctx : contexts()) {
    const Tensor score = floats(*ctx, {0.1f, 0.5f, 0.7f, NAN, -INFINITY}), half = floats(*ctx, {0.5f});
    EXPECT_EQ(ids_of(*ctx, select_rows(*ctx, score, Compare::kAbove, half)), (Ids{2, 3}));
    EXPECT_EQ(ids_of(*ctx, select_rows(*ctx, score, Compare::kAtLeast, half)), (Ids{1, 2, 3}));
    const Tensor own = floats(*ctx, {0.0f, 0.5f, 0.8f, 0.0f, NAN});
    EXPECT_EQ(ids_of(*ctx, select_rows(*ctx, score, Compare::kAbove, own)), (Ids{0, 3, 4}));
    EXPECT_EQ(ids_of(*ctx, select_rows(*ctx, score, Compare::kAtLeast, own)), (Ids{0, 1, 3, 4}));
    const Tensor low = floats(*ctx, {-INFINITY});
    EXPECT_EQ(ids_of(*ctx, select_rows(*ctx, score, Compare::kAtLeast, low)), (Ids{0, 1, 2, 3, 4}));
    const RowSet none = select_rows(*ctx, floats(*ctx, {}), Compare::kAbove, half);
    EXPECT_EQ(none.capacity(), 0);
    EXPECT_EQ(ids_of(*ctx, none), Ids{});
  }
}

TEST(SelectRows, EachSequenceItsOwn) {
  for (const auto& ctx : contexts()) {
    const Tensor table = floats(*ctx, {9, 0.5f, 9, -INFINITY, 9, NAN}).reshape({3, 2});
    const Tensor score = floats(*ctx, {0.4f, 0.6f, 0.0f, 0.4f, 0.2f, 0.4f, NAN, 0.5f, 0.2f});
    const Tensor sequence = ints(*ctx, {0, 0, 1, 1, 2, 2, 0, 0, 3});
    const auto kept = [&](float least) {
      return ids_of(*ctx, select_rows(*ctx, score, SequenceThresholds{table, 1, sequence, 0.3f, least}));
    };
    EXPECT_EQ(kept(-INFINITY), (Ids{1, 2, 3, 5, 6}));
    EXPECT_EQ(kept(0.0f), (Ids{1, 3, 5, 6}));
  }
}

// The short ways of what follows begin here: a decode step's one row either runs a unit or leaves no trace of
// it.
TEST(SelectRows, AllAndNoneAreKnownAtInference) {
  Context ctx({.threads = 1});
  const Tensor score = floats(ctx, {0.1f, 0.5f});
  const auto above = [&](float threshold) {
    return select_rows(ctx, score, Compare::kAbove, floats(ctx, {threshold}));
  };
  EXPECT_TRUE(above(0.0f).is_all());
  EXPECT_TRUE(above(0.5f).is_none());
  EXPECT_FALSE(above(0.3f).is_all() || above(0.3f).is_none());
  Tape tape(Device::kCpu);
  const TapeScope scope(ctx, tape);  // gradients ask for the ids
  EXPECT_FALSE(above(0.0f).is_all() || above(0.5f).is_none());
}

TEST(SelectRows, ManyRows) {
  for (const auto& ctx : contexts()) {
    for (const int64_t rows : {31, 32, 1023, 1024, 1025, 5000}) {
      Rng rng(static_cast<uint64_t>(rows));
      std::vector<float> score, mask;
      Ids want, others;
      for (int32_t r = 0; r < rows; ++r) {
        score.push_back(rng.uniform());
        (score.back() > 0.4f ? want : others).push_back(r);
        mask.push_back(score.back() > 0.4f ? 1.0f : 0.0f);
      }
      const RowSet kept = select_rows(*ctx, floats(*ctx, score), Compare::kAbove, floats(*ctx, {0.4f}));
      EXPECT_EQ(ids_of(*ctx, kept), want);
      EXPECT_EQ(ids_of(*ctx, complement(*ctx, kept, rows)), others);
      std::vector<float> got(mask.size());
      copy_to_host(*ctx, row_mask(*ctx, kept, rows), got);
      EXPECT_EQ(got, mask);
    }
  }
}

TEST(SelectRows, OnlyRowsThatAreThere) {
  for (const auto& ctx : contexts()) {
    const Tensor score = floats(*ctx, {1, 2, 3, NAN});
    const Tensor there = score.counted_by(ints(*ctx, {2}));
    EXPECT_EQ(ids_of(*ctx, select_rows(*ctx, there, Compare::kAbove, floats(*ctx, {0}))), (Ids{0, 1}));
  }
}

TEST(Complement, AllAndNone) {
  Context ctx({.threads = 1});
  EXPECT_TRUE(complement(ctx, RowSet::all(3), 3).is_none());
  EXPECT_TRUE(complement(ctx, RowSet::none(3), 3).is_all());
  EXPECT_EQ(ids_of(ctx, complement(ctx, some_rows(ctx, {0, 3}, 2), 4)), (Ids{1, 2}));
  EXPECT_EQ(values_of(row_mask(ctx, RowSet::all(2), 2)), (std::vector<float>{1, 1}));
  EXPECT_EQ(values_of(row_mask(ctx, RowSet::none(2), 2)), (std::vector<float>{0, 0}));
  EXPECT_EQ(values_of(row_mask(ctx, some_rows(ctx, {0, 2}, 1), 3)), (std::vector<float>{1, 0, 0}));
}

TEST(SelectRows, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  const Tensor score = floats(ctx, {1, 2, 3});
  EXPECT_EQ(refusal([&] {
              select_rows(ctx, score, Compare::kAbove, floats(ctx, {1, 2}));
            }),
            "select_rows: threshold must be f32 (3), got f32 (2)");
  EXPECT_EQ(refusal([&] {
              select_rows(ctx, score.reshape({3, 1}), Compare::kAbove, score);
            }),
            "select_rows: score must be f32 (rows), got f32 (3, 1)");
  EXPECT_NE(refusal([&] { select_rows(ctx, score, Compare::kAbove, {}); }), "");
  const Tensor table = floats(ctx, {1, 2}).reshape({1, 2}), sequence = ints(ctx, {0, 0, 0});
  EXPECT_EQ(refusal([&] {
              select_rows(ctx, score, SequenceThresholds{table, 2, sequence, 0, 0});
            }),
            "select_rows: column must be in [0, 2), got 2");
  EXPECT_EQ(refusal([&] {
              select_rows(ctx, score, SequenceThresholds{score, 0, sequence, 0, 0});
            }),
            "select_rows: table must be f32 (sequences, columns), got f32 (3)");
  EXPECT_EQ(refusal([&] {
              select_rows(ctx, score, SequenceThresholds{table, 0, ints(ctx, {0}), 0, 0});
            }),
            "select_rows: sequence must be i32 (3), got i32 (1)");
  EXPECT_EQ(refusal([&] { row_mask(ctx, RowSet::all(3), 4); }), "row_mask: a set of 3 rows, of 4");
}

}  // namespace
}  // namespace fathom
