#include "infer/feeder.h"

#include <gtest/gtest.h>

#include "model/flops.h"
#include "model/load.h"
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

}  // namespace
}  // namespace fathom
