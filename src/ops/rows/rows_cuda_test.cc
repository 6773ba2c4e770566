// Rows that are gathered and added, quantiles and top shares: on a GPU the CPU's bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/kernels/gpu_test.h"
#include "ops/kernels/kept_rows_test.h"
#include "ops/rows/add_rows.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/quantile.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

using Values = std::vector<float>;
using Ints = std::vector<int32_t>;

TEST_F(Cuda, RowsAreGatheredAndAdded) {
  const Values h = normals(7 * 300), branch = normals(4 * 300);
  const auto run = [&](Context& ctx) {
    const RowSet kept = some_rows(ctx, {1, 2, 6, 0}, 3);
    const Tensor x = floats(ctx, h, {7, 300});
    Values out = host_values(ctx, gather_rows(ctx, x, kept).rows(0, 3));
    const Values strided = host_values(ctx, gather_rows(ctx, x.columns(10, 33), kept).rows(0, 3));
    const Ints ids =
        host_values<int32_t>(ctx, gather_rows(ctx, ints(ctx, {9, 8, 7, 6, 5, 4, 3}, {7}), kept).rows(0, 3));
    const Values sum = host_values(ctx, add_rows(ctx, x, kept, floats(ctx, branch, {4, 300})));
    const Values all =
        host_values(ctx, add_rows(ctx, x.rows(0, 4), RowSet::all(4), floats(ctx, branch, {4, 300})));
    out.insert(out.end(), strided.begin(), strided.end());
    out.insert(out.end(), ids.begin(), ids.end());
    out.insert(out.end(), sum.begin(), sum.end());
    out.insert(out.end(), all.begin(), all.end());
    return out;
  };
  EXPECT_TRUE(same_bits(run(*gpu_), run(cpu_)));
}

class CudaScores : public Cuda {
 protected:
  // Normals with ties, both zeros, NaN and +∞ among them.
  Values scores(int64_t rows) {
    Values values = normals(rows);
    for (float& value : values) {
      const uint32_t kind = rng_.below(10);
      if (kind < 4) value = std::round(value);
      if (kind == 4) value = rng_.below(2) ? NAN : INFINITY;
    }
    return values;
  }
  Ints below(int64_t count, uint32_t most) {
    Ints values(static_cast<size_t>(count));
    for (int32_t& value : values) value = static_cast<int32_t>(rng_.below(most));
    return values;
  }
  // As many rows as there is room for, or fewer.
  static Tensor counted(Context& ctx, const Values& values, int32_t count) {
    const auto room = static_cast<int64_t>(values.size());
    const Tensor out = floats(ctx, values, {room});
    return count < room ? out.counted_by(ints(ctx, {count}, {1})) : out;
  }
};

TEST_F(CudaScores, QuantilesAreTheCpus) {
  for (const int32_t rows : {1, 2, 7, 300, 5000, 70000}) {
    const Values values = scores(rows), valid = normals(rows);
    for (const int32_t count : {rows, rows / 2 + 1}) {
      const auto run = [&](Context& ctx) {
        const ArenaScope scope(ctx);
        Values out;
        for (const float q : {0.0f, 0.2f, 0.5f, 0.77f, 1.0f}) {
          out.push_back(host_values(ctx, quantile(ctx, counted(ctx, values, count), q))[0]);
          if (*std::max_element(valid.begin(), valid.begin() + count) <= 0) continue;
          const Tensor mask = floats(ctx, valid, {rows});
          out.push_back(host_values(ctx, quantile(ctx, counted(ctx, values, count), q, mask))[0]);
        }
        return out;
      };
      EXPECT_EQ(run(*gpu_), run(cpu_)) << count << " of " << rows;
    }
  }
}

TEST_F(CudaScores, WeightedQuantilesAreTheCpus) {
  Values shares;
  for (int i = 0; i < 150; ++i) shares.push_back(static_cast<float>(i) / 149.0f);
  for (const int32_t rows : {1, 7, 300, 1025, 70000}) {
    const Values values = scores(rows);
    Values weights = normals(rows);
    for (float& weight : weights) weight = rng_.below(3) ? std::abs(weight) : std::round(std::abs(weight));
    for (const int32_t count : {rows, rows / 2 + 1}) {
      const auto run = [&](Context& ctx) {
        const ArenaScope scope(ctx);
        return host_values(
            ctx, weighted_quantile(ctx, counted(ctx, values, count), floats(ctx, weights, {rows}), shares));
      };
      EXPECT_EQ(run(*gpu_), run(cpu_)) << count << " of " << rows;
    }
  }
}

TEST_F(CudaScores, TopSharesAreTheCpus) {
  for (const int32_t rows : {1, 7, 300, 5000, 70000}) {
    const Values values = scores(rows);
    Ints sequence = below(rows, 9);
    for (int32_t& of : sequence) of = of == 0 ? INT32_MAX : of == 1 ? -5 : of;
    for (const int32_t count : {rows, rows / 2 + 1}) {
      for (const float share : {0.0f, 0.125f, 0.3f, 0.5f, 1.0f}) {
        const auto run = [&](Context& ctx) {
          const ArenaScope scope(ctx);
          return host_values(
              ctx, top_share_by_sequence(ctx, counted(ctx, values, count), ints(ctx, sequence, {rows}), share)
                       .rows(0, count));
        };
        EXPECT_EQ(run(*gpu_), run(cpu_)) << count << " of " << rows << ", " << share;
      }
    }
  }
}

TEST_F(CudaScores, WithoutAScoreThereIsNoQuantile) {
  const auto refused = [&](const Tensor& out) { EXPECT_THROW(host_values(*gpu_, out), UserError); };
  const float half = 0.5f;
  const std::span<const float> shares(&half, 1);
  const Tensor two = floats(*gpu_, {1, 2}, {2}), none = floats(*gpu_, {}, {0});
  refused(quantile(*gpu_, two, half, floats(*gpu_, {0, 0}, {2})));
  refused(quantile(*gpu_, counted(*gpu_, {1, 2}, 0), half));
  refused(quantile(*gpu_, none, half));
  refused(weighted_quantile(*gpu_, counted(*gpu_, {1, 2}, 0), two, shares));
  refused(weighted_quantile(*gpu_, none, none, shares));
  refused(weighted_quantile(*gpu_, two, floats(*gpu_, {1, -1}, {2}), shares));
}

}  // namespace
}  // namespace fathom
