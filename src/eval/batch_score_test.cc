#include "eval/batch_score.h"

#include <gtest/gtest.h>

#include "eval/scores_test.h"
#include "skip/tiny_model_test.h"

namespace fathom {
namespace {

// With skipping: each request as if it were alone, for methods with every kind of memory.
TEST(BatchScore, BatchesDoNotChangeWhoSkips) {
  for (const char* method :
       {R"({"name": "random", "rows_kept": 0.6})", R"({"name": "mind_skip", "pool": "prefix:6"})",
        R"({"name": "mind_skip", "pool": "prompt"})", R"({"name": "skip_middle"})",
        R"({"name": "gate_skip", "skipped_kv": "copy"})"}) {
    SCOPED_TRACE(method);
    Rig rig(method);
    Rng rng(8);
    std::vector<ItemRequests> items;
    for (int i = 0; i < 6; ++i) {
      std::vector<int32_t> context;
      for (uint32_t n = 3 + rng.below(12); n > 0; --n) context.push_back(static_cast<int32_t>(rng.below(3)));
      ItemRequests requests;
      for (int choice = 0; choice < 3; ++choice) {
        TokenRequest request{context, 1 + static_cast<int64_t>(rng.below(5)), 0};
        for (int64_t t = 0; t < request.scored; ++t)
          request.tokens.push_back(static_cast<int32_t>(rng.below(3)));
        requests.push_back(request);
      }
      items.push_back(requests);
    }
    std::vector<int32_t> grown;  // items that go on where the one before ended
    for (int i = 0; i < 6; ++i) {
      for (int n = 0; n < 4; ++n) grown.push_back(static_cast<int32_t>(rng.below(48)));
      items.push_back({{grown, 1, 0}});
      grown.pop_back();
    }
    std::vector<int32_t> examples;  // and items that begin alike
    for (int n = 0; n < 14; ++n) examples.push_back(static_cast<int32_t>(rng.below(48)));
    for (int i = 0; i < 6; ++i) {
      TokenRequest request{examples, 1 + i % 2, 0};
      for (int n = 0; n < 3 + i; ++n) request.tokens.push_back(static_cast<int32_t>(rng.below(48)));
      items.push_back({request});
    }
    BatchOptions options;
    options.whole = rig.policy->needs_whole_prompt();
    const auto run = [&](std::span<const ItemRequests> some, int64_t sequences, int64_t rows) {
      KvCache cache(rig.ctx, rig.model.config,
                    {.sequences = sequences,
                     .context = 32,
                     .k_type = DType::kF32,
                     .v_type = DType::kF32,
                     .key_bias = rig.policy->has_key_bias()});
      const auto state = rig.make_state(sequences);
      Feeder feeder(rig.ctx, rig.model, cache, *rig.policy, *state);
      options.rows = rows;
      return logprobs_of(score_items(feeder, some, in_order(some.size()), options));
    };
    std::vector<double> alone;
    for (const ItemRequests& item : items) {
      for (const TokenRequest& request : item) {
        const std::vector<ItemRequests> single{{request}};
        alone.push_back(run(single, 1, 512)[0]);
      }
    }
    for (const int64_t sequences : {1, 4}) {
      for (const int64_t rows : {5, 40, 512}) EXPECT_EQ(run(items, sequences, rows), alone);
    }
  }
}

}  // namespace
}  // namespace fathom
