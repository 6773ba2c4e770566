#include <gtest/gtest.h>

#include "infer/speculating_test.h"

namespace fathom {
namespace {

AnswerOptions greedy_answer(int64_t tokens) {
  AnswerOptions options;
  options.sampler.temperature = 0;
  options.max_tokens = tokens;
  return options;
}

TEST(Speculation, GreedyTokensAreThoseOfPlainDecoding) {
  for (const Verifier& verifier : kVerifiers) {
    Rig rig(verifier.method);
    calibrate(rig, verifier);
    const std::vector<DraftRule> rules = drafts_for(rig, verifier);
    int64_t accepted = 0, rejected = 0;
    for (size_t i = 0; i < rules.size(); ++i) {
      Speculating speculating(rig, rules[i], i % 2 ? DType::kF16 : DType::kF32);
      const std::vector<int32_t> prompt = random_tokens(40 + i, static_cast<int>(prompt_of(verifier)));
      const PlainAnswer plain = speculating.generate(prompt, greedy_answer(24));
      const auto drafts = static_cast<int64_t>(1 + i % 5);
      const PlainAnswer result = speculating.generate(prompt, greedy_answer(24), drafts);
      EXPECT_EQ(result.ids, plain.ids) << verifier.name << ", rule " << i;
      EXPECT_EQ(plain.speculation.drafted, 0);
      EXPECT_LE(result.speculation.draft_passes, drafts * result.speculation.verify_passes);
      accepted += result.speculation.accepted;
      rejected += result.speculation.drafted - result.speculation.accepted;
    }
    EXPECT_GT(accepted, 0) << verifier.name;
    EXPECT_GT(rejected, 0) << verifier.name;
  }
}

// Bit for bit, in the logits and in what the cache holds, whatever the drafts left where they differed.
TEST(Speculation, AVerifiedRowIsThatOfPlainDecoding) {
  for (const Shaped shaped : {Shaped::kLlama, Shaped::kGemma}) {
    for (const Verifier& verifier : kVerifiers) {
      Rig rig(verifier.method, shaped);
      calibrate(rig, verifier);
      for (const DraftRule& rule : drafts_for(rig, verifier)) {
        Speculating one(rig, rule), other(rig, rule);
        const size_t begin = prompt_of(verifier);
        const std::vector<int32_t> tokens = random_tokens(3, static_cast<int>(begin) + 15);
        const std::span<const int32_t> all = tokens, prompt = all.first(begin);
        one.plain(prompt);
        other.plain(prompt);
        size_t at = begin;
        for (const size_t count : {4, 2, 6, 3}) {  // rounds of 3, 1, 5 and 2 drafts
          const std::span<const int32_t> next = all.subspan(at, count);
          const auto first = static_cast<int64_t>(at);
          EXPECT_EQ(one.round(next, [&] { one.poison(first); }), other.plain(next)) << verifier.name;
          EXPECT_EQ(one.entries(), other.entries()) << verifier.name;
          at += count;
        }
        EXPECT_EQ(one.cache.bytes_held(), other.cache.bytes_held()) << verifier.name;
      }
    }
  }
}

// What was drafted is not run again where it was right.
TEST(Speculation, VerifyingBeginsWhereDraftsDiffer) {
  Rig rig(R"({"name": "dense"})");
  const std::vector<int32_t> tokens = random_tokens(3, 13);
  const std::span<const int32_t> all = tokens;
  const struct {
    DraftRule rule;
    int32_t start;
  } cases[] = {{leaving_after(3), 3}, {leaving_after(1), 1}, {dropping({5}), 2}, {dropping({0, 6}), 0}};
  for (const auto& [rule, start] : cases) {
    Speculating speculating(rig, rule);
    speculating.plain(all.first(9));
    Work before;
    speculating.round(all.subspan(9), [&] { before = speculating.feeder.work(); });
    const std::span<const int32_t> starts = speculating.state.starts(0);
    EXPECT_EQ(std::vector<int32_t>(starts.begin(), starts.end()), std::vector<int32_t>(3, start));
    const uint64_t units = speculating.feeder.work().unit_rows - before.unit_rows;
    EXPECT_EQ(units, 3 * static_cast<uint64_t>(kTinyUnits - 2 * start) + kTinyUnits);
  }
}

// c_i of drafts by a method: the block of the first unit that only one of the two would run.
TEST(Speculation, DraftsOfAMethodDifferWhereTheirThresholdsDo) {
  Rig rig(R"({"name": "random", "units": "both"})");
  rig.thresholds.assign(kTinyUnits, 0.2f);
  DraftRule rule;
  rule.thresholds.assign(kTinyUnits, 0.5f);
  const std::vector<int32_t> tokens = random_tokens(3, 20);
  const std::span<const int32_t> all = tokens;
  Speculating speculating(rig, rule);
  speculating.plain(all.first(5));
  speculating.round(all.subspan(5), [] {});
  std::vector<int32_t> expected;  // from the noise itself
  Seen seen;
  {
    TinyRun session(rig, 1);
    Rows rows;
    for (size_t i = 0; i < tokens.size(); ++i) rows.push_back({tokens[i], static_cast<int32_t>(i), 0, true});
    seen = session.pass(rows);
  }
  int32_t start = kTinyUnits / 2;
  for (size_t row = 5; row + 1 < tokens.size(); ++row) {
    for (size_t unit = 0; unit < kTinyUnits; ++unit) {
      const float score = seen.scores[unit][row];
      if ((score > 0.2f) != (score > 0.5f)) start = std::min(start, static_cast<int32_t>(unit / 2));
    }
    expected.push_back(start);
  }
  const std::span<const int32_t> starts = speculating.state.starts(0);
  EXPECT_EQ(std::vector<int32_t>(starts.begin(), starts.end()), expected);
  EXPECT_GT(expected.front(), 0);
  EXPECT_LT(expected.back(), kTinyUnits / 2);
}

// One pass with sequences that draft, each by its own rule, one that decodes plainly and one that verifies.
TEST(Speculation, PhasesShareAPass) {
  for (const Verifier& verifier : kVerifiers) {
    Rig rig(verifier.method);
    calibrate(rig, verifier);
    const std::vector<DraftRule> rules = drafts_for(rig, verifier);
    for (size_t i = 0; i < rules.size(); ++i) {
      const std::vector<int32_t> tokens = random_tokens(3, 13);
      const std::span<const int32_t> all = tokens;
      const auto run = [&](bool together) {
        Speculating speculating(rig, {}, DType::kF32, 4);
        Context& ctx = rig.ctx;
        Feeder& feeder = speculating.feeder;
        for (const int32_t s : {0, 1, 2, 3}) {
          const ArenaScope scope(ctx);
          feeder.feed(s, all.first(9), LogitsFor::kNone);
        }
        for (const int32_t s : {0, 2, 3}) {
          const ArenaScope scope(ctx);
          const DraftRule& rule = rules[(i + static_cast<size_t>(s)) % rules.size()];
          speculating.state.draft(ctx, speculating.cache, s, rule);
          feeder.feed({s, all.subspan(9, 1), LogitsFor::kLast, true});
        }
        speculating.state.verify(ctx, speculating.cache, 2);
        const Rows rows{{tokens[10], 10, 0, true, 0},
                        {tokens[9], 9, 1, true, 0},
                        {tokens[9], 9, 2, true, 0},
                        {tokens[10], 10, 2, true, 0},
                        {tokens[10], 10, 3, true, 0}};
        for (const int32_t s : {0, 1, 2, 3}) speculating.cache.reserve(ctx, s, 1);
        const auto pass = [&](const Rows& some) {
          const ArenaScope scope(ctx);
          return speculating.logits_of(forward(ctx, rig.model, make_batch(ctx, some), speculating.cache,
                                               speculating.policy, speculating.state));
        };
        if (together) return pass(rows);
        std::vector<float> logits;
        for (const Rows& some : {Rows{rows[0]}, Rows{rows[1]}, Rows{rows[2], rows[3]}, Rows{rows[4]}}) {
          const std::vector<float> own = pass(some);
          logits.insert(logits.end(), own.begin(), own.end());
        }
        return logits;
      };
      EXPECT_EQ(run(true), run(false)) << verifier.name;
    }
  }
}

TEST(Speculation, EndsWhereThePlainTextEnds) {
  Rig rig(R"({"name": "dense"})");
  Speculating speculating(rig, leaving_after(3));
  const std::vector<int32_t> prompt = random_tokens(8, 100);
  const std::vector<int32_t> ids = speculating.generate(prompt, greedy_answer(20)).ids;
  for (const int64_t drafts : {1, 3, 8}) {
    AnswerOptions options = greedy_answer(20);
    options.end_ids = {ids[7]};
    const auto end = std::find(ids.begin(), ids.end(), ids[7]);
    const PlainAnswer stopped = speculating.generate(prompt, options, drafts);
    EXPECT_EQ(stopped.ids, std::vector<int32_t>(ids.begin(), end));
    EXPECT_EQ(stopped.finish, FinishReason::kStop);
    const PlainAnswer full = speculating.generate(prompt, greedy_answer(-1), drafts);  // a context of 128
    EXPECT_EQ(full.finish, FinishReason::kLength);
    EXPECT_EQ(full.ids, speculating.generate(prompt, greedy_answer(-1)).ids);
    EXPECT_EQ(full.ids.size(), 29u);  // the last token is not fed
  }
}

// Each token's own row, its draft's part included, also where the verifying policy skips.
TEST(Speculation, DepthIsThatOfPlainDecoding) {
  for (const Verifier& verifier : kVerifiers) {
    Rig rig(verifier.method);
    calibrate(rig, verifier);
    for (const DraftRule& rule : drafts_for(rig, verifier)) {
      Speculating speculating(rig, rule);
      const std::vector<int32_t> prompt = random_tokens(40, 1);  // so that no pass's mean speaks for its rows
      const PlainAnswer plain = speculating.generate(prompt, greedy_answer(24)),
                        result = speculating.generate(prompt, greedy_answer(24), 3);
      EXPECT_EQ(result.ids, plain.ids) << verifier.name;
      EXPECT_EQ(result.depth, plain.depth) << verifier.name;
    }
  }
}

TEST(Speculation, TheBooksHoldWhatRanAgainstTheTokensKept) {
  Rig rig(R"({"name": "dense"})");
  Speculating speculating(rig, leaving_after(2)), plain(rig, leaving_after(2));
  const std::vector<int32_t> prompt = random_tokens(8, 9);
  const PlainAnswer result = speculating.generate(prompt, greedy_answer(30), 4);
  plain.generate(prompt, greedy_answer(30));
  EXPECT_EQ(plain.feeder.savings().net_flops, 1.0);
  const double ran = static_cast<double>(speculating.feeder.work().madds),
               would = static_cast<double>(plain.feeder.work().madds);
  EXPECT_NEAR(speculating.feeder.savings().net_flops, ran / would, 1e-9);
  for (const double depth : result.depth) EXPECT_EQ(depth, 4.0);
}

}  // namespace
}  // namespace fathom
