#include "infer/trace.h"

#include <gtest/gtest.h>

#include "infer/feeder.h"
#include "skip/methods.h"
#include "skip/tiny_model_test.h"
#include "support/heap_allocations.h"

namespace fathom {
namespace {

// Two sequences fed in pieces, then a token to each in one pass: what came out, and the books.
struct Fed {
  std::vector<float> logits;
  Work work;
  Savings savings;
};

struct TracedSequences {
  Rig& rig;
  KvCache cache;
  std::unique_ptr<SkipState> state;
  Feeder feeder;

  explicit TracedSequences(Rig& r, const PassOptions& options = {})
      : rig(r),
        cache(r.ctx, r.model.config,
              {.sequences = 2,
               .context = 64,
               .k_type = DType::kF32,
               .v_type = DType::kF32,
               .key_bias = r.policy->has_key_bias()}),
        state(r.make_state(2, options)),
        feeder(r.ctx, r.model, cache, *r.policy, *state) {}

  Fed feed() {
    Fed fed;
    const auto keep = [&](const Tensor& logits) {
      const size_t before = fed.logits.size();
      fed.logits.resize(before + static_cast<size_t>(logits.numel()));
      copy_to_host(rig.ctx, logits, std::span(fed.logits).subspan(before));
    };
    const std::vector<int32_t> first{3, 14, 15, 9, 26, 5, 35, 8, 9, 7}, second{2, 7, 18};
    const std::span<const int32_t> all(first);
    for (const auto& [sequence, tokens] :
         {std::pair{0, all.first(6)}, std::pair{1, std::span<const int32_t>(second)},
          std::pair{0, all.last(4)}}) {
      const ArenaScope scope(rig.ctx);
      keep(feeder.feed(sequence, tokens, LogitsFor::kAll));
    }
    const ArenaScope scope(rig.ctx);
    keep(feeder.feed_each(std::vector<int32_t>{1, 0}, std::vector<int32_t>{11, 12}));
    fed.work = feeder.work();
    fed.savings = feeder.savings();
    return fed;
  }
};

bool operator==(const Work& a, const Work& b) {
  return a.madds == b.madds && a.weight_bytes == b.weight_bytes && a.cache_bytes == b.cache_bytes &&
         a.unit_rows == b.unit_rows && a.policy_madds == b.policy_madds;
}

class Traced : public testing::TestWithParam<std::string> {
 protected:
  Traced() : rig_(GetParam()) { rig_.calibrate(0.5f); }
  Rig rig_;
};

TEST_P(Traced, RowsAreThoseThatWereFed) {
  TracedSequences traced(rig_);
  Trace trace;
  traced.feeder.record(&trace);
  traced.feed();
  ASSERT_EQ(trace.rows(), 15u);
  EXPECT_EQ(trace.units(), 8);
  const auto expect = [&](size_t row, int32_t token, int32_t position, int32_t sequence) {
    EXPECT_EQ(trace.row(row).token, token);
    EXPECT_EQ(trace.row(row).position, position);
    EXPECT_EQ(trace.row(row).sequence, sequence);
  };
  expect(0, 3, 0, 0);
  expect(7, 7, 1, 1);
  expect(9, 35, 6, 0);
  expect(13, 11, 3, 1);
  expect(14, 12, 10, 0);
  trace.clear();
  EXPECT_EQ(trace.rows(), 0u);
}

// What the trace says ran is what the kernels added, row by row over the whole of it.
TEST_P(Traced, CountsAreTheKernels) {
  TracedSequences traced(rig_);
  Trace trace;
  traced.feeder.record(&trace);
  const Fed fed = traced.feed();
  double layers = 0, ran = 0;
  for (size_t r = 0; r < trace.rows(); ++r) {
    layers += trace.depth(r);
    for (int64_t u = 0; u < trace.units(); ++u) ran += trace.ran(r, u) ? 1 : 0;
  }
  EXPECT_EQ(ran, static_cast<double>(fed.work.unit_rows));
  EXPECT_EQ(2 * layers, ran);
  EXPECT_DOUBLE_EQ(fed.savings.skip_ratio, 1 - ran / static_cast<double>(8 * trace.rows()));
}

TEST_P(Traced, LookingChangesNothing) {
  TracedSequences plain(rig_), traced(rig_);
  Trace trace;
  traced.feeder.record(&trace);
  const Fed a = plain.feed(), b = traced.feed();
  EXPECT_EQ(a.logits, b.logits);
  EXPECT_TRUE(a.work == b.work);
}

// The trace holds the decisions: a masked pass that replays them gives the same logits, and every score is
// what its decision was made on.
TEST_P(Traced, ReplayedItIsTheSameComputation) {
  const Rows rows = random_rows({9, 1, 14});
  const Seen seen = rig_.fresh(rows);
  Trace trace;
  {
    const ArenaScope scope(rig_.ctx);
    const Batch batch = make_batch(rig_.ctx, rows);
    const std::unique_ptr<SkipState> state = rig_.make_state(batch.sequences);
    forward(rig_.ctx, rig_.model, batch, FreshPass{}, TracingPolicy(*rig_.policy, trace), *state);
  }
  std::vector<std::vector<uint8_t>> kept(static_cast<size_t>(trace.units()));
  for (size_t u = 0; u < kept.size(); ++u) {
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto unit = static_cast<int64_t>(u);
      kept[u].push_back(trace.ran(r, unit));
      if (seen.scores[u].empty()) {
        EXPECT_TRUE(std::isnan(trace.score(r, unit)));
      } else {
        EXPECT_EQ(trace.score(r, unit), seen.scores[u][r]);
      }
    }
  }
  const std::vector<RowSet> replay = owned_rows(kept);
  const Seen masked = rig_.fresh(rows, {.masked = true, .replay = &replay});
  ASSERT_EQ(masked.logits.size(), seen.logits.size());
  for (size_t i = 0; i < seen.logits.size(); ++i)
    ASSERT_NEAR(masked.logits[i], seen.logits[i], 1e-5f * (1 + std::abs(seen.logits[i])));
}

std::vector<std::string> every_method() {
  std::vector<std::string> all;
  for (const MethodEntry& method : methods()) {
    const std::string extra = method.name == "mind_skip" ? R"(, "pool": "prefix:5")" : "";
    all.push_back(R"({"name": ")" + std::string(method.name) + "\"" + extra + "}");
  }
  all.push_back(R"({"name": "skip_middle", "blend": "gate_skip"})");
  all.push_back(R"({"name": "gate_skip", "skip": "block_by_attention_gate", "copy_kv": true})");
  return all;
}
INSTANTIATE_TEST_SUITE_P(Every, Traced, testing::ValuesIn(every_method()));

TEST(Trace, OffItCostsNothing) {
  Rig rig(R"({"name": "priced"})");
  rig.calibrate(0.5f);
  TracedSequences sequences(rig);
  Trace trace;
  const auto step = [&](int32_t token) {
    const ArenaScope scope(rig.ctx);
    sequences.feeder.feed(0, {&token, 1}, LogitsFor::kLast);
  };
  sequences.feeder.record(&trace);
  step(1);
  sequences.feeder.record(nullptr);
  for (int32_t i = 0; i < 20; ++i) step(i);
  const std::size_t before = heap_allocations();
  for (int32_t i = 0; i < 20; ++i) step(i);
  EXPECT_EQ(heap_allocations(), before);
  EXPECT_EQ(trace.rows(), 1u) << "what was recorded stays";
}

}  // namespace
}  // namespace fathom
