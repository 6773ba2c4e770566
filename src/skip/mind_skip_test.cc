#include <limits>

#include "skip/training_test.h"

namespace fathom {
namespace {

std::string config(const std::string& extra) {
  return R"({"name": "mind_skip")" + (extra.empty() ? "" : ", " + extra) + "}";
}

std::string refusal(const std::string& extra) {
  try {
    Rig rig(config(extra));
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

void set_biases(Rig& rig, const std::vector<float>& biases) {
  size_t next = 0;
  for (const MethodParameter& parameter : rig.policy->parameters(rig.model.config)) {
    const bool bias = parameter.name.ends_with("bias");
    std::fill_n(parameter.tensor->data<float>(), parameter.tensor->numel(), bias ? biases[next++] : 0.0f);
  }
}

// I1, exactly: routers of zeros say R = 0.5 ≥ τ.
TEST(MindSkip, StartsAsTheBackbone) {
  const Rows rows = random_rows({9, 5});
  Rig dense(R"({"name": "dense"})");
  TinyRun expected(dense, 2);
  const std::vector<float> logits = expected.pass(rows).logits;
  for (const char* extra :
       {R"("pool": "prefix:3")", R"("pool": "full", "units": "mlp")", R"("level": "token")",
        R"("pool": "prompt", "units": "block", "layers": [0, 3])"}) {
    Rig rig(config(extra), Shaped::kLlama, 0.0f);
    TinyRun session(rig, 2);
    const Seen seen = session.pass(rows);
    EXPECT_EQ(skipped_share(seen), 0) << extra;
    EXPECT_EQ(seen.logits, logits) << extra;
  }
}

TEST(MindSkip, RoutesTheMiddleLayersByDefaultAndAnyList) {
  const Rows rows = random_rows({9});
  const auto skipping = [&](const std::string& extra) {  // units at which the last row skips
    Rig rig(config(R"("pool": "prefix:3", "bias": true)" + extra));
    set_biases(rig, std::vector<float>(4, -1.0f));
    const Seen seen = rig.fresh(rows);
    std::vector<int> units;
    for (size_t unit = 0; unit < 8; ++unit) {
      for (size_t r = 0; r < 3; ++r) EXPECT_EQ(seen.kept[unit][r], 1) << "the prefix runs everything";
      if (!seen.kept[unit][8]) units.push_back(static_cast<int>(unit));
    }
    return units;
  };
  EXPECT_EQ(skipping(""), (std::vector<int>{2, 4}));  // L/2 − 1 … L − 2
  EXPECT_EQ(skipping(R"(, "units": "mlp")"), (std::vector<int>{3, 5}));
  EXPECT_EQ(skipping(R"(, "units": "block")"), (std::vector<int>{2, 3, 4, 5}));
  EXPECT_EQ(skipping(R"(, "layers": [3, 0])"), (std::vector<int>{0, 6}));
}

// A budget's threshold can lie above every score, above the prefix's 1 as well.
TEST(MindSkip, ThePrefixRunsAtAnyThreshold) {
  const Rows rows = random_rows({9, 2, 7});
  for (const char* units : {"attention", "mlp", "block"}) {
    const std::string extra =
        std::string(R"("pool": "prefix:3", "layers": [0, 1, 2, 3], "units": ")") + units + "\"";
    Rig rig(config(extra)), own(config(extra + R"(, "threshold": 2)"));
    rig.thresholds.assign(8, std::numeric_limits<float>::max());
    TinyRun cached(rig, 3);
    const Seen physical = rig.fresh(rows);
    for (size_t unit = 0; unit < 8; ++unit) {
      const bool asked = std::string(units) != (unit % 2 ? "attention" : "mlp");
      for (size_t r = 0; r < rows.size(); ++r)
        EXPECT_EQ(physical.kept[unit][r], rows[r].position < 3 || !asked) << units << " " << unit << " " << r;
    }
    EXPECT_EQ(rig.fresh(rows, {.masked = true}).kept, physical.kept) << units;
    EXPECT_EQ(cached.pass(rows).kept, physical.kept) << units;
    EXPECT_EQ(own.fresh(rows).kept, physical.kept) << units << ": τ = 2";
    EXPECT_EQ(own.fresh(rows, {.training = true}).kept, physical.kept) << units << ": τ = 2, in training";
    // What objectives and pictures see stays finite.
    EXPECT_EQ(physical.scores[std::string(units) == "mlp"][0], 1.0f) << units;
  }
}

// Where another method scores, no row must run.
TEST(MindSkip, AnotherMethodsScoresHaveNoPrefix) {
  Rig rig(R"({"name": "skip_layer", "decide": "mind_skip"})");
  rig.thresholds.assign(8, std::numeric_limits<float>::max());
  EXPECT_GT(skipped_share(rig.fresh(random_rows({9}))), 0.1);
}

TEST(MindSkip, Refusals) {
  EXPECT_EQ(refusal(R"("layers": [1, 4])"), "mind_skip: layers must be from 0 to 3, got 4");
  EXPECT_EQ(refusal(R"("layers": [-1])"), "mind_skip: layers must be from 0 to 3, got -1");
  EXPECT_EQ(refusal(R"("layers": [1, 1])"), "mind_skip: layer 1 is named twice");
  for (const char* pool : {"prefix:0", "prefix:", "prefix:x", "prefix:9x", "mean", ""}) {
    EXPECT_EQ(refusal(R"("pool": ")" + std::string(pool) + "\""),
              "mind_skip: pool must be prefix:N with N from 1 to 1048576, prompt or full, got '" +
                  std::string(pool) + "'");
  }
  EXPECT_EQ(refusal(R"("init": "harm_order")"),
            "mind_skip: init harm_order sets the routers' biases: say bias true as well");
}

// The decision of a sequence is that of its first N rows alone: the mean of a sequence that ends there.
TEST(MindSkip, ThePrefixDecides) {
  Rig prefix(config(R"("pool": "prefix:6")")), full(config(R"("pool": "full")"));
  const Rows rows = random_rows({14, 11});
  Rows starts;
  for (const BatchRow& row : rows) {
    if (row.position < 6) starts.push_back(row);
  }
  const Seen whole = prefix.fresh(rows), start = full.fresh(starts);
  for (size_t s = 0; s < 2; ++s) {  // of the first routed layer: below it nobody skips
    const float r = start.scores[2][6 * s];
    EXPECT_NE(r, 0.5f);
    for (size_t row = s == 0 ? 0 : 14; row < (s == 0 ? 14u : 25u); ++row) {
      EXPECT_NEAR(whole.scores[2][row], rows[row].position < 6 ? 1.0f : r, 1e-6);
    }
  }
  // Training takes the same mean.
  TinyTrainer trainer(prefix);
  const Seen trained = trainer.run(rows, {}, false).seen;
  for (size_t row = 0; row < rows.size(); ++row)
    EXPECT_NEAR(trained.scores[2][row], whole.scores[2][row], 1e-6);
}

std::vector<int32_t> entries(TinyRun& session, int64_t sequence) {
  std::vector<int32_t> lengths;
  for (int64_t layer = 0; layer < 4; ++layer)
    lengths.push_back(session.cache().layer(layer).lengths.data<int32_t>()[sequence]);
  return lengths;
}

// A sequence that skips a layer holds nothing there when the decision has fallen: not the pool's rows either.
TEST(MindSkip, ASkippedLayerHoldsNothing) {
  Rig rig(config(R"("pool": "prefix:3", "bias": true)"));
  set_biases(rig, {-1.0f, 1.0f});
  const Rows rows = random_rows({9, 3});
  TinyRun session(rig, 3);
  session.pass(rows);
  EXPECT_EQ(entries(session, 0), (std::vector<int32_t>{9, 0, 9, 9}));
  EXPECT_EQ(entries(session, 1), (std::vector<int32_t>{3, 3, 3, 3}));  // not yet
  EXPECT_EQ(session.cache().bytes_held(), 7 * KvCache::kPage * session.cache().bytes_per_entry());

  // A fork of rows that are gone begins anew; one behind them, and going back so far, keeps what it has.
  EXPECT_EQ(session.fork(0, 2, 2), 0);
  EXPECT_EQ(session.fork(0, 2, 5), 5);
  EXPECT_EQ(session.truncate(0, 4), 4);
  EXPECT_EQ(entries(session, 0), (std::vector<int32_t>{4, 0, 4, 4}));
  EXPECT_EQ(session.truncate(0, 2), 0);
  EXPECT_EQ(entries(session, 0), (std::vector<int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(session.truncate(1, 2), 2);
  EXPECT_EQ(session.truncate(2, 3), 3);
  EXPECT_EQ(session.truncate(2, 2), 0);  // the fork's pool is gone as well

  // Neither a method that scores for another nor one with other rules says that a row spoke.
  for (const char* other : {R"({"name": "mind_skip", "pool": "prefix:3", "level": "token"})",
                            R"({"name": "mind_skip", "pool": "full"})",
                            R"({"name": "mind_skip", "pool": "prefix:3", "units": "mlp"})",
                            R"({"name": "skip_layer", "decide": "mind_skip"})"}) {
    Rig quiet(other);
    EXPECT_EQ(quiet.make_state(1)->settle(quiet.ctx, 0, 9), -1) << other;
  }
}

// A fork in the middle of the pool, or behind it, decides from the rows it shares and its own.
TEST(MindSkip, AForkDecidesFromWhatItShares) {
  Rig rig(config(R"("pool": "prefix:6", "layers": [0, 1, 2, 3])"));
  double skipped = 0;
  for (const uint64_t seed : {1u, 2u, 3u, 4u, 5u, 6u}) {
    for (const int64_t shared : {4, 9}) {
      const Rows rows = random_rows({14}, seed), others = random_rows({14}, seed + 50);
      TinyRun once(rig, 1), session(rig, 2);
      const Seen expected = once.pass(rows);
      skipped += skipped_share(expected);
      session.pass({rows.begin(), rows.begin() + shared});
      ASSERT_EQ(session.fork(0, 1, shared), shared);
      session.pass({others.begin() + shared, others.end()});
      Rows rest(rows.begin() + shared, rows.end());
      for (BatchRow& row : rest) row.sequence = 1;
      const Seen seen = session.pass(rest);
      EXPECT_TRUE(std::equal(seen.logits.begin(), seen.logits.end(),
                             expected.logits.begin() + shared * rig.model.config.vocab))
          << seed << " " << shared;
    }
  }
  EXPECT_GT(skipped, 0.5);
  EXPECT_LT(skipped, 4);
}

// Rows taken back and fed again, and a slot used again by another sequence, leave no trace.
TEST(MindSkip, GoingBackLeavesNoTrace) {
  Rig rig(config(R"("pool": "prefix:6", "layers": [0, 1, 2, 3])"));
  const Rows rows = random_rows({14}), others = random_rows({14}, 123);
  TinyRun once(rig, 1), again(rig, 1);
  again.settles = false;
  const Seen expected = once.pass(rows);
  again.pass(others);
  for (const int64_t back : {0, 4}) {
    again.cache().truncate(rig.ctx, 0, back);
    EXPECT_EQ(again.state().truncate(rig.ctx, 0, back), back);
    if (back == 4)
      again.pass({others.begin() + 4, others.begin() + 9});  // another continuation, also taken back
    if (back == 4) again.cache().truncate(rig.ctx, 0, back);
    const Seen seen = again.pass({rows.begin() + back, rows.end()});
    EXPECT_TRUE(std::equal(seen.logits.begin(), seen.logits.end(),
                           expected.logits.begin() + back * rig.model.config.vocab));
  }
}

// The paper's own pools: the prompt's decision is held in decoding, the full one's is made anew by each pass.
TEST(MindSkip, PromptHoldsAndFullDecidesAgain) {
  const Rows rows = random_rows({10, 8});
  Rows prompt, next;
  for (const BatchRow& row : rows) (row.position < 7 ? prompt : next).push_back(row);
  for (const bool holds : {true, false}) {
    Rig rig(config(holds ? R"("pool": "prompt")" : R"("pool": "full")"));
    EXPECT_TRUE(rig.policy->needs_whole_prompt());
    TinyRun session(rig, 2);
    EXPECT_EQ(session.state().truncate(rig.ctx, 0, 5), 0);  // it cannot go back
    EXPECT_EQ(session.state().fork(rig.ctx, 0, 1, 5), 0);
    const Seen first = session.pass(prompt), later = session.pass({next.begin(), next.begin() + 1});
    EXPECT_EQ(first.scores[2][0], first.scores[2][6]);
    EXPECT_NE(first.scores[2][0], first.scores[2][7]);  // each sequence its own
    EXPECT_EQ(first.scores[2][0] == later.scores[2][0], holds);
    const Seen mixed = session.pass({next[1], next[3]});  // rows of both sequences
    EXPECT_EQ(first.scores[2][7] == mixed.scores[2][1], holds);
  }
  EXPECT_FALSE(Rig(config("")).policy->needs_whole_prompt());
  EXPECT_FALSE(Rig(config(R"("pool": "full", "level": "token")")).policy->needs_whole_prompt());
}

// λ Σ over routed layers of the mean mask, over sequences or rows; or of what it exceeds the kept share by.
TEST(MindSkip, Penalties) {
  const Rows rows = random_rows({9, 3, 7, 6, 5, 8});
  struct Expected {
    std::string extra;
    int64_t row;  // counted: the row at that position of each sequence; -1: all rows
    Through through = Through::kMask;
  };
  for (const Expected& each : {Expected{R"("pool": "prefix:4")", 4}, Expected{R"("pool": "full")", 0},
                               Expected{R"("level": "token", "units": "block")", -1, Through::kBlockMask}}) {
    const std::string& extra = each.extra;
    const int64_t row = each.row;
    for (const char* loss : {"l0", "target"}) {
      const std::string named = extra + R"(, "layers": [0, 1, 3], "loss": ")" + loss + "\"";
      Rig rig(config(named + R"(, "loss_weight": 2)")), free(config(named + R"(, "loss_weight": 0)"));
      TinyTrainer trainer(rig), without(free);
      const PassOptions options{.share = 0.3f};
      const Trained got = trainer.run(rows, options);
      double expected = 0;
      for (const size_t layer : {0, 1, 3}) {
        double kept = 0, all = 0;
        for (size_t r = 0; r < rows.size(); ++r) {
          if (row >= 0 && rows[r].position != row) continue;
          kept += got.seen.kept[2 * layer][r];
          ++all;
        }
        expected += 2 * (std::string(loss) == "l0" ? kept / all : std::max(0.0, kept / all - 0.3));
      }
      const double bare = without.run(rows, options, false).loss;
      EXPECT_NEAR(got.loss - bare, expected, 1e-5) << named;
      EXPECT_GT(expected, 0.01) << named;

      // Its gradient: that of the mean score, where the mask is m₀ + (s − s₀).
      const std::vector<RowSet> replay = owned_rows(got.seen.kept);
      const PassOptions replayed{.replay = &replay, .share = 0.3f};
      const Surrogate surrogate(*rig.policy, got.seen, each.through);
      const auto value = [&] {
        const Trained moved = trainer.run(rows, replayed, false, &surrogate);
        double sum = moved.loss;
        for (const size_t layer : {0, 1, 3}) {
          double share = 0, kept = 0, all = 0;
          for (size_t r = 0; r < rows.size(); ++r) {
            if (row >= 0 && rows[r].position != row) continue;
            share += static_cast<double>(moved.seen.scores[2 * layer][r]);
            kept += got.seen.kept[2 * layer][r];
            ++all;
          }
          if (std::string(loss) == "l0" || kept / all > 0.3) sum += 2 * share / all;
        }
        return sum;
      };
      expect_differences(trainer, got.gradients, value, trainer.backbone());
    }
  }
}

// Straight-through needs the branch of skipped rows; `drop` leaves their score without task gradient.
TEST(MindSkip, SkippedBranchesCanBeDropped) {
  const Rows rows = random_rows({9, 7});
  const std::string extra = R"("level": "token", "loss_weight": 0, "layers": [3])";
  Rig compute(config(extra)), drop(config(extra + R"(, "st_skipped": "drop")"));
  TinyTrainer trainer(compute), other(drop);
  const Trained all = trainer.run(rows, {}), less = other.run(rows, {});
  EXPECT_NEAR(all.loss, less.loss, 1e-5);
  EXPECT_GT(skipped_share(all.seen), 0.02);
  EXPECT_NE(all.gradients.back(), less.gradients.back());
}

// What the mask learns from is the branch as it would have run: over the keys of the skipped rows too.
TEST(MindSkip, TrainingComputesTheSkippedBranchOverAllItsKeys) {
  const Rows rows = random_rows({12, 9, 10});
  const auto gradient = [&](const std::string& rule) {  // of the last router
    Rig rig(
        config(R"("pool": "prefix:3", "bias": true, "loss_weight": 0, "train_skipped_kv": ")" + rule + "\""));
    set_biases(rig, {-1.0f, -1.0f});
    const Trained trained = TinyTrainer(rig).run(rows, {});
    EXPECT_GT(skipped_share(trained.seen), 0.1);
    return trained.gradients.back();
  };
  EXPECT_EQ(gradient("method"), gradient("project"));
  EXPECT_NE(gradient("method"), gradient("hide"));
}

TEST(MindSkip, TheHarmOrderSetsTheBiases) {
  Rig rig(config(R"("bias": true, "init": "harm_order", "layers": [0, 1, 2, 3])"), Shaped::kLlama, 0.0f);
  std::vector<float> biases;
  for (const MethodParameter& parameter : rig.policy->parameters(rig.model.config)) {
    if (parameter.name.ends_with("bias")) biases.push_back(parameter.tensor->data<float>()[0]);
  }
  std::sort(biases.begin(), biases.end());
  ASSERT_EQ(biases.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(biases[i], static_cast<float>(i) / 3, 1e-6);
  EXPECT_EQ(skipped_share(rig.fresh(random_rows({70}))), 0);  // everybody runs at first
}

}  // namespace
}  // namespace fathom
