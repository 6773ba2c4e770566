#include "infer/feeder.h"

#include <gtest/gtest.h>

#include "model/flops.h"
#include "model/load.h"
#include "support/test_paths.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

// Runs everything but the FFN of layer 1.
class NoSecondFfn final : public SkipPolicy {
 public:
  Decision decide(Context&, const UnitInput& input, PolicyState&) const override {
    const bool skip = input.layer == 1 && input.unit == Unit::kFfn;
    const int64_t rows = input.h.dim(0);
    return {skip ? RowSet::none(rows) : RowSet::all(rows), SkippedKv::kProject};
  }
};

TEST(Feeder, SavingsAreWhatTheKernelsDidNotDo) {
  Context ctx({.threads = 2});
  const Model model = load_model(ctx, std::string(FATHOM_TEST_DATA) + "/models/llama3");
  const ModelConfig& c = model.config;
  KvCache cache(ctx, c, {.sequences = 1, .context = 64});
  PolicyState state;
  const NoSecondFfn policy;
  Feeder feeder(ctx, model, cache, policy, state);
  const std::vector<int32_t> ids{1, 2, 3, 4, 5, 6, 7};
  {
    const ArenaScope scope(ctx);
    feeder.feed(0, ids, LogitsFor::kLast);
  }
  const DenseWork dense = dense_work(c, 7, 0, 1);
  const auto ffn = static_cast<double>(7 * 3 * c.width * c.ffn_width);
  const auto blocks = static_cast<double>(dense.block_madds),
             output = static_cast<double>(dense.output_madds);
  const Savings savings = feeder.savings();
  EXPECT_DOUBLE_EQ(savings.skip_ratio, 1.0 / static_cast<double>(2 * c.layers));
  EXPECT_DOUBLE_EQ(savings.block_flops, (blocks - ffn) / blocks);
  EXPECT_DOUBLE_EQ(savings.net_flops, (blocks + output - ffn) / (blocks + output));
  const BlockWeights& second = model.weights.blocks[1];
  const auto unread = static_cast<double>(second.gate.nbytes() + second.up.nbytes() + second.down.nbytes());
  const double all = static_cast<double>(dense_weight_bytes(model, 7, true)) +
                     static_cast<double>(dense.cache_entries) * static_cast<double>(cache.bytes_per_entry());
  EXPECT_DOUBLE_EQ(savings.net_bytes, (all - unread) / all);
}

std::vector<float> values(Context& ctx, const Tensor& logits) {
  std::vector<float> out(static_cast<size_t>(logits.numel()));
  copy_to_host(ctx, logits, out);
  return out;
}

// A prompt is fed once; its forks go on as if each had been fed it. When the pool has no room for one of
// several sequences, none of them has changed.
TEST(Feeder, ForksShareAPromptInABoundedPool) {
  Context ctx({.threads = 2});
  const Model model = load_model(ctx, std::string(FATHOM_TEST_DATA) + "/models/llama3");
  KvCache cache(ctx, model.config, {.sequences = 3, .context = 128, .pages = 4 * model.config.layers});
  PolicyState state;
  const DensePolicy policy;
  Feeder feeder(ctx, model, cache, policy, state);
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 64; ++i) prompt.push_back(i % 50 + 1);
  const ArenaScope scope(ctx);
  feeder.feed(0, prompt, LogitsFor::kNone);
  const std::vector<float> expected =
      values(ctx, feeder.feed(0, std::vector<int32_t>{9, 8}, LogitsFor::kLast));
  EXPECT_EQ(feeder.fork(0, 1, 64), 64);
  EXPECT_EQ(feeder.fork(0, 2, 65), 65);
  EXPECT_EQ(values(ctx, feeder.feed(1, std::vector<int32_t>{9, 8}, LogitsFor::kLast)), expected);
  EXPECT_EQ(values(ctx, feeder.feed(2, std::vector<int32_t>{8}, LogitsFor::kLast)), expected);
  const std::vector<int32_t> rest(62, 3);
  for (const int32_t s : {0, 1, 2}) feeder.feed(s, rest, LogitsFor::kNone);
  EXPECT_EQ(cache.bytes_held(), cache.pages() * KvCache::kPage * cache.bytes_per_entry());

  cache.truncate(ctx, 0, 100);
  cache.truncate(ctx, 1, 64);  // its page is free: for sequence 1 or for 2, when 2 has left the prompt's
  feeder.truncate(2, 0);
  feeder.feed(2, std::vector<int32_t>{5}, LogitsFor::kNone);
  const std::vector<int32_t> all{0, 1, 2}, tokens{1, 2, 3};
  feeder.feed(2, std::vector<int32_t>(63, 5), LogitsFor::kNone);
  EXPECT_THROW(feeder.feed_each(all, tokens), CacheFull);
  EXPECT_EQ(cache.rows(0), 100);
  EXPECT_EQ(cache.rows(1), 64);
  EXPECT_EQ(cache.rows(2), 64);
  feeder.feed_each(std::vector<int32_t>{0, 1}, std::vector<int32_t>{1, 2});
  EXPECT_EQ(cache.rows(1), 65);
}

}  // namespace
}  // namespace fathom
