#include "ops/rows/steer_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "base/rng.h"
#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"
#include "ops/rows/select_rows.h"

namespace fathom {
namespace {

constexpr int64_t kUnits = 3, kSequences = 3, kBlocks = 5;

struct Row {
  int32_t sequence, position;
  float score;
};

// Sequence 0 is steered at unit 1, sequence 1 differently and from an excess on, sequence 2 has thresholds
// alone.
const std::vector<float> kTable{9, 0.5f, 9, 9, 0.6f, 9, 0, 2,    0, 0, 0.5f, 0, 0, 0,  0,  //
                                9, 0.2f, 9, 9, 0.9f, 9, 0, 0.5f, 0, 0, 3,    0, 0, -4, 0,  //
                                9, 0.4f, 9, 9, NAN,  9, 0, 1,    0, 0, 1,    0, 0, 5,  0};
constexpr int kColumns = 5 * kUnits;

std::vector<Row> rows_of(const std::vector<int>& lengths, uint64_t seed) {
  std::vector<Row> rows;
  Rng rng(seed);
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int i = 0; i < lengths[s]; ++i) rows.push_back({static_cast<int32_t>(s), i, rng.uniform()});
  }
  return rows;
}

// The definition, from all rows of a sequence at once.
std::vector<double> plain(const std::vector<Row>& rows) {
  std::vector<double> out;
  std::map<int, std::vector<double>> excess_of;  // of each sequence, a row's
  for (size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    if (row.sequence < 0 || row.sequence >= kSequences) {
      out.push_back(0.3);
      continue;
    }
    const float* rule = kTable.data() + row.sequence * kColumns + 1;
    std::vector<double>& rest = excess_of[row.sequence];
    double excess = double{rule[4 * kUnits]};
    for (int64_t p = 0; p < row.position / kSteeredRows * kSteeredRows; ++p)
      excess += rest[static_cast<size_t>(p)];
    double threshold = double{rule[0]};
    if (!std::isnan(rule[kUnits]))
      threshold += excess / kSteeredRows * double{excess > 0 ? rule[2 * kUnits] : rule[3 * kUnits]};
    out.push_back(threshold);
    rest.push_back((double{row.score} > threshold ? 1 : 0) - double{rule[kUnits]});
  }
  return out;
}

class Rig {
 public:
  explicit Rig(Device device)
      : ctx({.device = device, .threads = 2}),
        table_(floats(ctx, kTable, {kSequences, kColumns})),
        history_(Tensor::owned(device, DType::kI32, {kSequences, kBlocks, kUnits, kSteeringWords})) {}

  std::vector<float> pass(const std::vector<Row>& rows, bool counts = true, const RowSet* present = nullptr) {
    std::vector<float> score;
    std::vector<int32_t> sequence, positions;
    for (const Row& row : rows) {
      score.push_back(row.score);
      sequence.push_back(row.sequence);
      positions.push_back(row.position);
    }
    const Tensor sequences = ints(ctx, sequence), places = ints(ctx, positions);
    const Steering steering{table_, 1, sequences, places, 0.3f, -INFINITY, present, counts};
    return host_values(ctx, steered_thresholds(ctx, floats(ctx, score), steering, history_));
  }
  std::vector<int32_t> history() {
    std::vector<int32_t> words(static_cast<size_t>(history_.numel()));
    copy_to_host(ctx, history_, words);
    return words;
  }
  Context ctx;

 private:
  Tensor table_, history_;
};

std::vector<std::unique_ptr<Rig>> rigs() {
  std::vector<std::unique_ptr<Rig>> all;
  for (const Device device : devices_to_check()) all.push_back(std::make_unique<Rig>(device));
  return all;
}

TEST(SteeredThresholds, FollowWhatTheBlocksBeforeRan) {
  for (const auto& rig : rigs()) {
    std::vector<Row> rows = rows_of({150, 70, 65}, 3);
    rows.push_back({kSequences, 7, 0.5f});  // of no sequence of the table
    const std::vector<float> got = rig->pass(rows);
    const std::vector<double> want = plain(rows);
    int moved = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      ASSERT_NEAR(double{got[r]}, want[r], 1e-5) << r;
      moved +=
          std::abs(want[r] -
                   double{kTable[static_cast<size_t>(std::min(rows[r].sequence, 2) * kColumns + 1)]}) > 0.01;
    }
    EXPECT_GT(moved, 100);
    EXPECT_EQ(got[32], got[63]);  // one threshold for a block
    EXPECT_NE(got[63], got[64]);
  }
}

// Chunks of any size, neighbours in any order, and rows that are taken back: the same bits.
TEST(SteeredThresholds, PiecesAndRowsTakenBackChangeNothing) {
  for (const auto& rig : rigs()) {
    const std::vector<Row> rows = rows_of({150, 70, 65}, 4);
    const std::vector<float> whole = rig->pass(rows);
    const std::vector<int32_t> history = rig->history();
    Rig other(rig->ctx.device());
    Rng rng(8);
    std::map<int32_t, size_t> next;
    std::map<int32_t, size_t> first{{0, 0}, {1, 150}, {2, 220}}, end{{0, 150}, {1, 220}, {2, 285}};
    for (bool more = true; more;) {
      std::vector<Row> piece;
      std::vector<size_t> places;
      for (int round = 0; round < 40; ++round) {
        const auto s = static_cast<int32_t>(rng.below(3));
        const size_t at = first[s] + next[s];
        if (at >= end[s]) continue;
        piece.push_back(rows[at]);
        places.push_back(at);
        ++next[s];
      }
      const std::vector<float> got = other.pass(piece);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], whole[places[i]]) << places[i];
      more = false;
      for (auto& [s, count] : next) {
        more = more || count < end[s] - first[s];
        if (rng.below(2) == 0 && more) {  // rows of another text, taken back
          std::vector<Row> wrong;
          for (int i = 0; i < 40 && static_cast<int>(count) + i < 155; ++i)
            wrong.push_back({s, static_cast<int32_t>(count) + i, rng.uniform()});
          other.pass(wrong);
        }
      }
    }
    EXPECT_EQ(other.pass({{0, 150, 0.5f}}), rig->pass({{0, 150, 0.5f}}));
  }
}

TEST(SteeredThresholds, LooksAndAbsentRowsLeaveNoTrace) {
  for (const auto& rig : rigs()) {
    const std::vector<Row> rows = rows_of({100}, 5);
    const std::vector<Row> head(rows.begin(), rows.begin() + 70), tail(rows.begin() + 70, rows.end());
    rig->pass(head);
    const std::vector<int32_t> before = rig->history();
    std::vector<Row> others = tail;
    for (Row& row : others) row.score = 0.99f;
    const std::vector<float> looked = rig->pass(others, false);
    EXPECT_EQ(rig->history(), before);
    EXPECT_EQ(looked[0], rig->pass(tail)[0]);
    // Rows 70 to 79 do not take part: what is remembered of them stays.
    const std::vector<int32_t> all = rig->history();
    std::vector<int32_t> ids(30, -1);
    for (int32_t i = 0; i < 20; ++i) ids[static_cast<size_t>(i)] = 10 + i;
    const RowSet present = some_rows(rig->ctx, ids, 20);
    std::vector<Row> again = tail;
    for (size_t i = 0; i < 10; ++i) again[i].score = 1 - again[i].score;
    rig->pass(again, true, &present);
    EXPECT_EQ(rig->history(), all);
  }
}

TEST(SteeredThresholds, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  const Tensor score = floats(ctx, {1, 2}), at = ints(ctx, {0, 0}),
               table = floats(ctx, kTable, {3, kColumns});
  Tensor history = Tensor::owned(Device::kCpu, DType::kI32, {3, 1, kUnits, kSteeringWords});
  const auto asked = [&](const Tensor& values, const Tensor& rules, int64_t unit, const Tensor& positions,
                         Tensor& past) {
    return refusal([&] {
      steered_thresholds(ctx, values, {rules, unit, at, positions, 0, 0, nullptr, true}, past);
    });
  };
  EXPECT_EQ(asked(score, table, 3, at, history), "steered_thresholds: unit must be in [0, 3), got 3");
  EXPECT_EQ(asked(score, score, 1, at, history),
            "steered_thresholds: table must be f32 (sequences, 15), got f32 (2)");
  EXPECT_EQ(asked(at, table, 1, at, history), "steered_thresholds: score must be f32 (rows), got i32 (2)");
  EXPECT_EQ(asked(score, table, 1, ints(ctx, {0}), history),
            "steered_thresholds: positions must be i32 (2), got i32 (1)");
  Tensor none = at;
  EXPECT_EQ(asked(score, table, 1, at, none),
            "steered_thresholds: history must be i32 (sequences, blocks, units, 3), dense, got i32 (2)");
  EXPECT_EQ(asked(score, table, 1, ints(ctx, {31, 32}), history),
            "steered_thresholds: the history has 1 blocks, got block 1");
}

}  // namespace
}  // namespace fathom
