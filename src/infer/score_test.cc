#include "infer/score.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "infer/story_model_test.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

const char* const kText =
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.";

TEST(Score, MatchesTheSoftmaxOfTheLogits) {
  StoryModel story;
  const std::vector<int32_t> ids = story.encode(kText);
  const ScoreResult result = score(story.feeder, ids);
  ASSERT_EQ(result.logprobs.size(), ids.size());
  story.cache.truncate(story.ctx, 0, 0);
  double sum = 0;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {  // token by token, in double
    const ArenaScope scope(story.ctx);
    std::vector<float> logits(512);
    copy_to_host(story.ctx, story.feeder.feed(0, {&ids[i], 1}, LogitsFor::kLast), logits);
    double total = 0;
    for (float x : logits) total += std::exp(static_cast<double>(x));
    const double want = logits[static_cast<size_t>(ids[i + 1])] - std::log(total);
    EXPECT_NEAR(result.logprobs[i + 1], want, 1e-5) << "token " << i + 1;
    sum -= want;
  }
  EXPECT_NEAR(result.mean_nll(), sum / static_cast<double>(ids.size() - 1), 1e-5);
  EXPECT_LT(result.mean_nll(), 1.5);  // a text it has seen the like of
}

TEST(Score, ChunksDoNotMatterBitForBit) {
  StoryModel story;
  const std::vector<int32_t> ids = story.encode(kText);
  const std::vector<float> all = score(story.feeder, ids).logprobs;
  for (int64_t chunk : {1, 2, 5, 1000}) {
    ScoreOptions options;
    options.chunk = chunk;
    EXPECT_EQ(score(story.feeder, ids, options).logprobs, all) << "chunks of " << chunk;
  }
}

TEST(Score, TheTopHoldsTheBest) {
  StoryModel story;
  const std::vector<int32_t> ids = story.encode(kText);
  ScoreOptions options;
  options.top = 512;
  options.chunk = 7;
  const ScoreResult result = score(story.feeder, ids, options);
  ASSERT_EQ(result.top.size(), ids.size());
  EXPECT_TRUE(result.top[0].empty());
  for (size_t i = 1; i < ids.size(); ++i) {
    ASSERT_EQ(result.top[i].size(), 512u);
    double sum = 0;
    for (size_t k = 0; k < 512; ++k) {
      const TokenLogProb& token = result.top[i][k];
      sum += std::exp(token.logprob);
      if (k > 0) {
        EXPECT_LE(token.logprob, result.top[i][k - 1].logprob);
      }
      if (token.id == ids[i]) {
        EXPECT_EQ(token.logprob, result.logprobs[i]);  // bit for bit: lm-evaluation-harness compares them so
      }
    }
    EXPECT_NEAR(sum, 1.0, 1e-4);
  }
}

TEST(Score, ContextTokensDoNotCount) {
  StoryModel story;
  const ScoreResult result = score(story.feeder, story.encode(kText));
  double sum = 0;
  for (size_t i = 10; i < result.logprobs.size(); ++i) sum -= result.logprobs[i];
  EXPECT_NEAR(result.mean_nll(10), sum / static_cast<double>(result.logprobs.size() - 10), 1e-9);
  EXPECT_EQ(result.mean_nll(0), result.mean_nll(1));
}

TEST(Score, RefusesWhatItCannotScore) {
  StoryModel story(16);
  EXPECT_THROW(score(story.feeder, {}), UserError);
  EXPECT_THROW(score(story.feeder, std::vector<int32_t>(17, 3)), UserError);
  EXPECT_THROW(score(story.feeder, std::vector<int32_t>{1, 600}), UserError);
  EXPECT_THROW(score(story.feeder, std::vector<int32_t>{1, -1}), UserError);
  std::atomic<bool> cancel{true};
  ScoreOptions options;
  options.cancel = &cancel;
  EXPECT_TRUE(score(story.feeder, std::vector<int32_t>{1, 2}, options).cancelled);
}

}  // namespace
}  // namespace fathom
