// The invariants, over every method in the list: masked = physical, incremental = full, batch invariance,
// causality, and work that is really not done.
#include <gtest/gtest.h>

#include "model/flops.h"
#include "skip/methods.h"
#include "skip/tiny_model_test.h"
#include "support/heap_allocations.h"

namespace fathom {
namespace {

struct MethodCase {
  std::string json;
  Shaped shaped = Shaped::kLlama;
  float budget = 0;  // > 0: thresholds at which about that share of the rows runs
  bool steered = false;
};

constexpr const char* kSteered[] = {
    R"({"name": "gate_skip"})",
    R"({"name": "gate_skip", "copy_kv": true, "skip": "mlp"})",
    R"({"name": "gate_skip", "two_stage": true, "skip": "block_by_attention_gate"})",
    R"({"name": "mixture_of_depths"})",
    R"({"name": "calm"})",
    R"({"name": "calm", "exit_every": 2})",
    R"({"name": "calm", "confidence": "similarity"})",
    R"({"name": "free", "confidence": "similarity"})"};

void PrintTo(const MethodCase& c, std::ostream* os) {
  *os << c.json;
}

// Every method as it is, at a calibrated budget, and in the variants that decide or blend otherwise.
std::vector<MethodCase> method_cases() {
  std::vector<MethodCase> cases;
  for (const MethodEntry& method : methods()) {
    std::string extra;
    if (method.name == "mind_skip") extra = R"(, "pool": "prefix:5")";
    const std::string json = R"({"name": ")" + std::string(method.name) + "\"" + extra + "}";
    cases.push_back({json});
    cases.push_back({json, Shaped::kLlama, 0.5f});
  }
  for (const char* json : {
           R"({"name": "gate_skip", "two_stage": true})",
           R"({"name": "gate_skip", "placement": "before", "gate": "scalar"})",
           R"({"name": "gate_skip", "copy_kv": true})",
           R"({"name": "gate_skip", "skip": "block_by_attention_gate", "skipped_kv": "hide"})",
           R"({"name": "mind_skip", "pool": "prefix:3", "level": "token"})",
           R"({"name": "mind_skip", "pool": "prefix:3", "units": "mlp", "router_input": "attention_norm"})",
           R"({"name": "mind_skip", "pool": "prefix:3", "units": "block", "layers": [0, 1, 2, 3]})",
           R"({"name": "skip_middle", "gate_axis": "none"})",
           R"({"name": "random", "units": "block", "skipped_kv": "copy"})",
           R"({"name": "random", "skipped_kv": "hide"})",
           R"({"name": "random", "skipped_kv": "copy"})",
           R"({"name": "random", "keyed_by": "text"})",
           R"({"name": "nested", "choice": "random"})",
           R"({"name": "nested", "centre_block": 4, "protect_rows": 2, "alpha": 0.7})",
           R"({"name": "nested", "band": 0, "lists": [0.7, 0.5], "skipped_kv": "copy"})",
           R"({"name": "skip_middle", "blend": "gate_skip"})",
           R"({"name": "highway", "score": "random", "decide": "random"})",
       }) {
    cases.push_back({json, Shaped::kLlama, 0.6f});
  }
  for (const char* json : {R"({"name": "gate_skip"})", R"({"name": "skip_middle"})",
                           R"({"name": "mixture_of_depths"})", R"({"name": "mind_skip", "pool": "prefix:5"})",
                           R"({"name": "skip_layer"})", R"({"name": "nested"})"}) {
    cases.push_back({json, Shaped::kGemma, 0.5f});
  }
  cases.push_back({R"({"name": "gate_skip", "skipped_kv": "copy"})", Shaped::kGemma, 0.5f});  // two RoPEs
  cases.push_back({R"({"name": "skip_middle"})", Shaped::kSandwich});
  for (const char* json : kSteered) cases.push_back({json, Shaped::kLlama, 0.5f, true});
  cases.push_back({R"({"name": "gate_skip"})", Shaped::kGemma, 0.5f, true});
  return cases;
}

class Methods : public testing::TestWithParam<MethodCase> {
 protected:
  Methods() : rig_(GetParam().json, GetParam().shaped) {
    if (GetParam().steered) {
      rig_.calibrate_steered(GetParam().budget);
    } else if (GetParam().budget > 0) {
      rig_.calibrate(GetParam().budget);
    }
  }
  // Steering looks back on whole blocks of rows: its sequences are longer.
  Rows rows_for(std::vector<int> lengths, uint64_t seed = 5) const {
    for (int& length : lengths) length *= GetParam().steered ? 5 : 1;
    return random_rows(lengths, seed);
  }
  Rig rig_;
};

// Rows of many sequences, shuffled between them but in order within each.
Rows interleaved(const Rows& rows, uint64_t seed) {
  std::map<int32_t, Rows> by_sequence;
  for (const BatchRow& row : rows) by_sequence[row.sequence].push_back(row);
  std::map<int32_t, size_t> next;
  Rows out;
  Rng rng(seed);
  std::vector<int32_t> left;
  for (const auto& [sequence, list] : by_sequence) left.push_back(sequence);
  while (!left.empty()) {
    const size_t pick = rng.below(static_cast<uint32_t>(left.size()));
    const int32_t s = left[pick];
    out.push_back(by_sequence[s][next[s]++]);
    if (next[s] == by_sequence[s].size()) left.erase(left.begin() + static_cast<int64_t>(pick));
  }
  return out;
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, float tolerance,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], tolerance * (1 + std::abs(b[i]))) << what << ", number " << i;
}

// I2: what the method decides, all, none, one row, random rows; few and many sequences.
TEST_P(Methods, MaskedEqualsPhysical) {
  std::vector<int> ragged;
  for (int s = 0; s < 64; ++s) ragged.push_back(1 + s % 5);
  for (const Rows& rows : {rows_for({9, 1, 14}), interleaved(random_rows(ragged, 8), 4)}) {
    const auto n = rows.size();
    std::vector<std::vector<std::vector<uint8_t>>> choices;
    choices.push_back(rig_.fresh(rows).kept);
    const size_t units = choices[0].size();
    for (int choice = 0; choice < 4; ++choice) {
      Rng rng(static_cast<uint64_t>(choice));
      std::vector<std::vector<uint8_t>> kept(units, std::vector<uint8_t>(n, 0));
      for (auto& unit : kept) {
        for (size_t r = 0; r < n; ++r)
          unit[r] = choice == 0 ? 1 : choice == 1 ? 0 : choice == 2 ? r == 2 : rng.below(2);
      }
      choices.push_back(kept);
    }
    for (size_t c = 0; c < choices.size(); ++c) {
      const std::vector<RowSet> replay = owned_rows(choices[c]);
      const std::string what = "choice " + std::to_string(c) + " of " + std::to_string(n) + " rows";
      const Seen physical = rig_.fresh(rows, {.replay = &replay});
      const Seen masked = rig_.fresh(rows, {.masked = true, .replay = &replay});
      expect_near(physical.logits, masked.logits, 1e-5f, what);
      if (c == 3) {
        EXPECT_GT(masked.work.madds, physical.work.madds);  // it is the other computation
      }
      const PassOptions options{.masked = true, .replay = &replay};
      TinyRun cached(rig_, 64, DType::kF32, options);
      expect_near(cached.pass(rows).logits, physical.logits, 1e-5f, what + ", cached");
    }
  }
}

// I3 and I4 at once: sequences in one pass; each alone in another slot; in pieces, the last rows one by one.
TEST_P(Methods, PiecesAndNeighboursChangeNoBit) {
  ASSERT_FALSE(rig_.policy->needs_whole_prompt());
  const Rows rows = rows_for({13, 1, 20, 6});
  for (const DType type : {DType::kF32, DType::kF16}) {
    ByRow whole, whole_kept;
    TinyRun together(rig_, 4, type);
    collect(rows, together.pass(rows), whole, whole_kept);

    ByRow alone, alone_kept;
    for (int32_t s = 0; s < 4; ++s) {
      Rows own;
      for (BatchRow row : rows) {
        if (row.sequence != s) continue;
        row.sequence = 2;  // another slot
        own.push_back(row);
      }
      TinyRun session(rig_, 3, type);
      collect(own, session.pass(own), alone, alone_kept);
    }
    EXPECT_TRUE(alone == whole) << "logits with neighbours, " << name_of(type);
    EXPECT_TRUE(alone_kept == whole_kept) << "decisions with neighbours, " << name_of(type);

    // Pieces of 1 to 4 rows per sequence, then one by one.
    ByRow pieces, pieces_kept;
    TinyRun session(rig_, 4, type);
    std::vector<std::vector<BatchRow>> rest(4);
    for (const BatchRow& row : rows) rest[static_cast<size_t>(row.sequence)].push_back(row);
    Rng rng(3);
    for (bool more = true; more;) {
      Rows piece;
      for (auto& list : rest) {
        const size_t take = list.size() > 3 ? rng.below(5) : std::min<size_t>(1, list.size());
        piece.insert(piece.end(), list.begin(), list.begin() + static_cast<int64_t>(take));
        list.erase(list.begin(), list.begin() + static_cast<int64_t>(take));
      }
      if (!piece.empty()) collect(piece, session.pass(piece), pieces, pieces_kept);
      more = std::any_of(rest.begin(), rest.end(), [](const auto& list) { return !list.empty(); });
    }
    EXPECT_TRUE(pieces == whole) << "logits in pieces, " << name_of(type);
    EXPECT_TRUE(pieces_kept == whole_kept) << "decisions in pieces, " << name_of(type);
  }
}

// I5: what comes later changes nothing before it.
TEST_P(Methods, LaterTokensChangeNothingBefore) {
  Rows rows = rows_for({16});
  const auto changed = static_cast<int32_t>(rows.size() * 9 / 16), end = static_cast<int32_t>(rows.size());
  ByRow first, first_kept, second, second_kept;
  collect(rows, rig_.fresh(rows), first, first_kept);
  TinyRun cached(rig_, 1);
  ByRow in_cache, in_cache_kept;
  collect(rows, cached.pass(rows), in_cache, in_cache_kept);
  for (auto r = static_cast<size_t>(changed); r < rows.size(); ++r) rows[r].token = (rows[r].token + 7) % 48;
  collect(rows, rig_.fresh(rows), second, second_kept);
  TinyRun again(rig_, 1);
  ByRow then, then_kept;
  collect(rows, again.pass(rows), then, then_kept);
  for (int32_t p = 0; p < changed; ++p) {
    const std::pair at{100, p};
    EXPECT_EQ(first[at], second[at]) << "row " << p;
    EXPECT_EQ(first_kept[at], second_kept[at]) << "row " << p;
    EXPECT_EQ(in_cache[at], then[at]) << "row " << p << ", cached";
    EXPECT_EQ(in_cache_kept[at], then_kept[at]) << "row " << p << ", cached";
  }
  const std::pair last{100, end - 1};
  EXPECT_NE(first[last], second[last]);  // the change is a change
}

// A fresh pass and a cached one are the same model.
TEST_P(Methods, FreshEqualsCached) {
  const Rows rows = rows_for({11, 4, 17});
  const Seen fresh = rig_.fresh(rows);
  TinyRun session(rig_, 3);
  const std::vector<RowSet> replay = owned_rows(fresh.kept);
  session.state().pass.replay = &replay;
  expect_near(session.pass(rows).logits, fresh.logits, 1e-5f, "fresh against cached");
}

// Half the rows of every unit: the blocks' multiply-adds are those of the rows that ran, in closed form.
TEST_P(Methods, SkippedRowsCostNothing) {
  const ModelConfig& c = rig_.model.config;
  const Rows rows = random_rows({24});
  std::vector<std::vector<uint8_t>> half(static_cast<size_t>(2 * c.layers), std::vector<uint8_t>(24, 0));
  for (auto& unit : half) {
    for (size_t r = 0; r < 24; r += 2) unit[r] = 1;
  }
  const std::vector<RowSet> replay = owned_rows(half);
  TinyRun session(rig_, 1);
  session.state().pass.replay = &replay;
  const Seen seen = session.pass(rows);
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  int64_t expected = 24 * c.vocab * c.width;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const auto at = static_cast<size_t>(2 * layer);
    int64_t entries = 0;  // keys that exist so far
    std::vector<int64_t> positions;
    for (int64_t r = 0; r < 24; ++r) {
      const bool kept = seen.kept[at][static_cast<size_t>(r)];
      const bool own = kept || seen.skipped_kv[at] == SkippedKv::kProject;
      if (own) expected += 2 * c.width * kv_width;
      if (own || seen.skipped_kv[at] == SkippedKv::kCopyFromBelow) positions.push_back(r);
      if (seen.kept[at + 1][static_cast<size_t>(r)]) expected += 3 * c.width * c.ffn_width;
      if (!kept) continue;
      const int32_t window = c.windows[static_cast<size_t>(layer)];
      entries = std::count_if(positions.begin(), positions.end(),
                              [&](int64_t p) { return window == 0 || r - p < window; });
      expected += 2 * c.width * q_width + 2 * entries * q_width;
    }
  }
  EXPECT_EQ(seen.work.madds - seen.work.policy_madds, static_cast<uint64_t>(expected));
}

// Nothing of it is paid in memory: after its first steps, decoding asks the heap for nothing.
TEST_P(Methods, ASteadyDecodeStepAllocatesNothing) {
  Context& ctx = rig_.ctx;
  KvCache cache(ctx, rig_.model.config,
                {.sequences = 1, .context = 128, .key_bias = rig_.policy->has_key_bias()});
  const std::unique_ptr<SkipState> state = rig_.make_state(1);
  size_t during = 0;
  for (int32_t position = 0; position < 40; ++position) {
    const size_t before = heap_allocations();
    {
      const ArenaScope scope(ctx);
      const BatchRow row{position % 48, position, 0, true, 5};
      cache.reserve(ctx, 0, 1);
      const Batch batch = make_batch(ctx, std::span(&row, 1));
      ASSERT_TRUE(forward(ctx, rig_.model, batch, cache, *rig_.policy, *state).defined());
    }
    if (position >= 20) during += heap_allocations() - before;
  }
  EXPECT_EQ(during, 0u);
}

// At a budget the cases really skip, and not everything: else the tests above would say nothing.
TEST_P(Methods, ABudgetIsKept) {
  if (GetParam().budget == 0) GTEST_SKIP() << "by its own rule";
  for (const char* never :
       {"\"dense\"", "\"attention_drop\"", "\"short_gpt\"", "\"harm_order\"", "\"layer_skip\""}) {
    if (GetParam().json.find(never) != std::string::npos) GTEST_SKIP() << "decides for all rows at once";
  }
  if (GetParam().json == R"({"name": "highway"})") GTEST_SKIP() << "nobody skips";
  const double skipped = skipped_share(rig_.fresh(random_rows({40, 30}, 99)));
  EXPECT_GT(skipped, 0.04);
  EXPECT_LT(skipped, 0.85);
}

// Steered sequences come nearer to the share than thresholds alone bring them.
TEST(Steered, EachSequenceComesNearItsShare) {
  constexpr float kShare = 0.5f;
  for (const char* json : kSteered) {
    Rig rig(json);
    const auto missed = [&] {  // the mean over sequences and units that skip
      double sum = 0;
      int count = 0;
      for (uint64_t seed = 0; seed < 4; ++seed) {
        const Seen seen = rig.fresh(random_rows({120}, 40 + seed));
        for (size_t unit = 0; unit < seen.kept.size(); ++unit) {
          const std::vector<uint8_t>& kept = seen.kept[unit];
          const auto ran = std::count(kept.begin(), kept.end(), 1);
          if (ran == 120) continue;
          sum += std::abs(static_cast<double>(ran) / 120 - kShare);
          ++count;
        }
      }
      return sum / count;
    };
    rig.calibrate(kShare);
    const double alone = missed();
    rig.calibrate_steered(kShare);
    std::fill_n(rig.thresholds.rbegin(), rig.thresholds.size() / kSteeringParts,
                0.0f);  // starts lead off the share
    EXPECT_LT(missed(), std::max(alone * 2 / 3, 0.03)) << json;
  }
}

// I1. GateSkip's gates start at σ(5): their rows differ from the backbone's by little.
TEST(Identity, GatesStartOpen) {
  Rig dense(R"({"name": "dense"})");
  const Rows rows = random_rows({9, 5});
  const std::vector<float> expected = dense.fresh(rows).logits;
  double size = 0;
  for (const float x : expected) size = std::max(size, std::abs(static_cast<double>(x)));
  for (const char* json :
       {R"({"name": "gate_skip", "init_std": 0})", R"({"name": "gate_skip", "init_std": 0, "net": "mlp"})",
        R"({"name": "gate_skip", "init_std": 0, "gate": "scalar"})"}) {
    Rig rig(json, Shaped::kLlama, 0.0f);
    const std::vector<float> got = rig.fresh(rows).logits;
    EXPECT_NE(got, expected) << json;
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 0.05 * size) << json;
    // Exactly: the matrices that end the branches, times σ(5).
    Rig scaled(R"({"name": "dense"})");
    for (BlockWeights& block : scaled.model.weights.blocks) {
      for (Tensor* w : {&block.o, &block.down}) {
        for (int64_t k = 0; k < w->numel(); ++k) w->data<float>()[k] *= 0.9933071f;
      }
    }
    const std::vector<float> exact = scaled.fresh(rows).logits;
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], exact[i], 1e-4) << json;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Methods, testing::ValuesIn(method_cases()), [](const auto& each) {
  std::string name = std::to_string(each.index) + "_";
  for (const char c : each.param.json) {
    if (std::isalnum(static_cast<unsigned char>(c))) name += c;
  }
  return name + (each.param.budget > 0 ? "Budget" : "") + (each.param.steered ? "Steered" : "") +
         (each.param.shaped == Shaped::kGemma      ? "Gemma"
          : each.param.shaped == Shaped::kSandwich ? "Sandwich"
                                                   : "");
});

}  // namespace
}  // namespace fathom
