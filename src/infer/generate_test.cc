#include "infer/generate.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/mapped_file.h"
#include "infer/story_model_test.h"
#include "support/heap_allocations.h"
#include "support/test_paths.h"
#include "tensor/arena.h"

namespace fathom {

namespace {

GenerateOptions greedy(int64_t tokens) {
  GenerateOptions options;
  options.sampler.temperature = 0;
  options.max_tokens = tokens;
  options.ignore_eos = true;
  return options;
}

TEST(Generate, StoriesReproduceTheirKnownText) {
  const std::string known =
      read_text_file(FATHOM_TEST_DATA "/stories260k/stories260K.greedy_n200.expected.txt");
  StoryModel story;
  std::string streamed;
  GenerateOptions options = greedy(200);
  options.on_text = [&](const TextPiece& piece) { streamed += piece.text; };
  const GenerateResult result = Generator(story.feeder).run(story.encode(""), options);
  EXPECT_EQ(result.stats.prompt_tokens, 1);  // BOS
  EXPECT_EQ(result.ids.size(), 200u);
  EXPECT_EQ(result.finish, FinishReason::kLength);
  EXPECT_EQ(streamed, result.text);
  EXPECT_EQ(result.text, story.model.tokenizer->decode(result.ids));
  ASSERT_GT(result.text.size(), 400u);
  EXPECT_EQ(result.text.substr(0, known.size()), known.substr(0, result.text.size()));
  EXPECT_EQ(result.depth, std::vector<double>(200, 5.0));
}

TEST(Generate, ChunksDoNotMatter) {
  StoryModel story;
  const std::vector<int32_t> prompt =
      story.encode("Once upon a time, there was a little girl named Lily. She loved to");
  std::vector<int32_t> first;
  for (int64_t chunk : {512, 2, 7}) {
    BatcherOptions batcher;
    batcher.rows = chunk;
    const GenerateResult result = Generator(story.feeder, batcher).run(prompt, greedy(40));
    if (first.empty()) first = result.ids;
    EXPECT_EQ(result.ids, first) << "chunks of " << chunk;
  }
}

TEST(Generate, WhatIsInTheCacheIsNotComputedAgain) {
  StoryModel story, fresh;
  Generator generator(story.feeder);
  std::vector<int32_t> prompt = story.encode("Once upon a time");
  const GenerateResult one = generator.run(prompt, greedy(20));
  EXPECT_EQ(one.stats.reused_tokens, 0);
  prompt.insert(prompt.end(), one.ids.begin(), one.ids.end());
  const GenerateResult two = generator.run(prompt, greedy(20));
  EXPECT_EQ(two.stats.reused_tokens, static_cast<int64_t>(prompt.size()) - 1);
  EXPECT_EQ(two.ids, Generator(fresh.feeder).run(prompt, greedy(20)).ids);
  prompt[3] = prompt[3] == 300 ? 301 : 300;  // the rest has to go
  const GenerateResult three = generator.run(prompt, greedy(20));
  EXPECT_EQ(three.stats.reused_tokens, 3);
  EXPECT_EQ(three.ids, Generator(fresh.feeder).run(prompt, greedy(20)).ids);
}

TEST(Generate, StopsAtAStopString) {
  StoryModel story;
  const std::vector<int32_t> prompt = story.encode("Once upon a time");
  const std::string all = Generator(story.feeder).run(prompt, greedy(60)).text;
  const size_t at = all.find("girl named");
  ASSERT_NE(at, std::string::npos) << all;
  GenerateOptions options = greedy(60);
  options.stops = {"never there", "girl named"};
  std::string streamed;
  options.on_text = [&](const TextPiece& piece) { streamed += piece.text; };
  const GenerateResult result = Generator(story.feeder).run(prompt, options);
  EXPECT_EQ(result.finish, FinishReason::kStop);
  EXPECT_EQ(result.text, all.substr(0, at));
  EXPECT_EQ(streamed, result.text);
  EXPECT_LT(result.ids.size(), 60u);
}

TEST(Generate, StopsAtAnEndToken) {
  StoryModel story;
  const std::vector<int32_t> prompt = story.encode("Once upon a time");
  const std::vector<int32_t> ids = Generator(story.feeder).run(prompt, greedy(30)).ids;
  GenerateOptions options = greedy(30);
  options.end_ids = {ids[10]};
  const GenerateResult result = Generator(story.feeder).run(prompt, options);
  EXPECT_EQ(result.finish, FinishReason::kStop);
  const auto first = std::find(ids.begin(), ids.end(), ids[10]);
  EXPECT_EQ(result.ids, std::vector<int32_t>(ids.begin(), first));
  const std::vector<int32_t> ends = end_token_ids(story.model);
  EXPECT_NE(std::find(ends.begin(), ends.end(), story.model.tokenizer->eos()), ends.end());
}

TEST(Generate, SeedsDecide) {
  StoryModel story;
  const std::vector<int32_t> prompt = story.encode("Once");
  const auto run = [&](uint64_t seed) {
    GenerateOptions options;
    options.max_tokens = 30;
    options.sampler.seed = seed;
    options.sampler.temperature = 1.5f;
    return Generator(story.feeder).run(prompt, options).ids;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(Generate, TheContextsEnd) {
  StoryModel story(32);
  const std::vector<int32_t> prompt = story.encode("Once upon a time");
  const auto length = static_cast<int64_t>(prompt.size());
  const GenerateResult full = Generator(story.feeder).run(prompt, greedy(-1));
  EXPECT_EQ(full.finish, FinishReason::kLength);
  EXPECT_EQ(static_cast<int64_t>(full.ids.size()), 32 - length + 1);  // the last one is never fed
  EXPECT_THROW(Generator(story.feeder).run(std::vector<int32_t>(33, 5), greedy(1)), UserError);
  EXPECT_THROW(Generator(story.feeder).run({}, greedy(1)), UserError);
  EXPECT_THROW(Generator(story.feeder).run(std::vector<int32_t>{512}, greedy(1)),
               UserError);  // vocabulary of 512
  EXPECT_EQ(Generator(story.feeder).run(std::vector<int32_t>(32, 5), greedy(9)).ids.size(), 1u);
  EXPECT_TRUE(Generator(story.feeder).run(prompt, greedy(0)).ids.empty());
}

TEST(Generate, AShiftedContextIsThatOfTheKeptTokens) {
  StoryModel story(32), fresh(32);
  const std::vector<int32_t> prompt = story.encode("Once upon a time");
  GenerateOptions options = greedy(60);
  options.context_shift = true;
  const GenerateResult result = Generator(story.feeder).run(prompt, options);
  EXPECT_EQ(result.ids.size(), 60u);
  EXPECT_EQ(result.stats.context_shifts, 3);  // at 32 tokens, and after each 15 that the shift made room for
  // Just after the first shift: BOS and the newer half of the other 31 tokens, then the token that did not
  // fit.
  std::vector<int32_t> fed = prompt;
  fed.insert(fed.end(), result.ids.begin(), result.ids.end());
  std::vector<int32_t> kept{fed[0]};
  kept.insert(kept.end(), fed.begin() + 1 + 15, fed.begin() + 32 + 1);
  const size_t at = 33 - prompt.size();
  const auto after = result.ids.begin() + static_cast<ptrdiff_t>(at);
  EXPECT_EQ(Generator(fresh.feeder).run(kept, greedy(14)).ids, std::vector<int32_t>(after, after + 14));
}

TEST(Generate, CanBeCancelled) {
  StoryModel story;
  std::atomic<bool> cancel{false};
  GenerateOptions options = greedy(100);
  options.cancel = &cancel;
  int pieces = 0;
  options.on_text = [&](const TextPiece&) { cancel = ++pieces == 5; };
  const GenerateResult result = Generator(story.feeder).run(story.encode("Once"), options);
  EXPECT_EQ(result.finish, FinishReason::kCancelled);
  EXPECT_LT(result.ids.size(), 10u);
  cancel = true;
  EXPECT_TRUE(Generator(story.feeder).run(story.encode("Once upon"), options).ids.empty());
}

TEST(Feeder, ADenseModelSavesNothing) {
  StoryModel story;
  Generator(story.feeder).run(story.encode("Once upon a time"), greedy(20));
  const Savings savings = story.feeder.savings();
  EXPECT_EQ(savings.skip_ratio, 0.0);
  EXPECT_EQ(savings.block_flops, 1.0);  // the kernels' counters against the closed form
  EXPECT_EQ(savings.net_flops, 1.0);
  EXPECT_EQ(savings.net_bytes, 1.0);
}

TEST(Feeder, ManySequencesTogetherAreEachAlone) {
  StoryModel story(64, 3), alone(64);
  const std::vector<std::vector<int32_t>> texts{story.encode("Once upon a time"), story.encode("Lily"),
                                                story.encode("The dog said")};
  std::vector<std::vector<float>> together(3, std::vector<float>(512));
  for (int32_t s = 0; s < 3; ++s) {
    const ArenaScope scope(story.ctx);
    story.feeder.feed(s, texts[static_cast<size_t>(s)], LogitsFor::kNone);
  }
  const std::vector<int32_t> sequences{2, 0, 1}, tokens{10, 11, 12};
  const ArenaScope scope(story.ctx);
  const Tensor logits = story.feeder.feed_each(sequences, tokens);
  for (size_t i = 0; i < 3; ++i) {
    copy_to_host(story.ctx, logits.rows(static_cast<int64_t>(i), 1), together[i]);
    const ArenaScope inner(alone.ctx);
    alone.cache.truncate(alone.ctx, 0, 0);
    std::vector<int32_t> ids = texts[static_cast<size_t>(sequences[i])];
    ids.push_back(tokens[i]);
    std::vector<float> one(512);
    copy_to_host(alone.ctx, alone.feeder.feed(0, ids, LogitsFor::kLast), one);
    EXPECT_EQ(together[i], one) << "sequence " << sequences[i];
  }
}

TEST(Feeder, ASteadyDecodeStepMakesNoHeapAllocation) {
  StoryModel story;
  const auto step = [&](int32_t token) {
    const ArenaScope scope(story.ctx);
    story.feeder.feed(0, {&token, 1}, LogitsFor::kLast);
  };
  for (int32_t i = 0; i < 70; ++i) step(i);  // past the first page of the cache
  const std::size_t before = heap_allocations();
  for (int32_t i = 0; i < 100; ++i) step(i);
  EXPECT_EQ(heap_allocations(), before);
}

// In layer 1 everybody skips the FFN, and rows at odd positions attention too.
class Shallower final : public SkipPolicy {
 public:
  Decision decide(Context& ctx, const UnitInput& input, PolicyState&) const override {
    const int64_t rows = input.h.dim(0);
    Decision decision;
    decision.kept = input.layer == 1 && input.unit == Unit::kFfn ? RowSet::none(rows) : RowSet::all(rows);
    if (input.layer != 1 || input.unit == Unit::kFfn) return decision;
    std::vector<int32_t> positions(static_cast<size_t>(rows)), even(positions.size());
    copy_to_host(ctx, input.batch.positions, positions);
    int32_t count = 0;
    for (size_t r = 0; r < positions.size(); ++r) {
      if (positions[r] % 2 == 0) even[static_cast<size_t>(count++)] = static_cast<int32_t>(r);
    }
    decision.kept =
        RowSet::some(Tensor::from(ctx, even, {rows}), Tensor::from(ctx, std::span(&count, 1), {1}));
    return decision;
  }
};

TEST(Generate, DepthIsWhatTheRowRan) {
  StoryModel story;
  const Shallower policy;
  Feeder feeder(story.ctx, story.model, story.cache, policy, story.state);
  Generator generator(feeder);
  GenerateOptions options;
  options.sampler.temperature = 0;
  options.max_tokens = 5;
  std::vector<double> shown;
  options.on_text = [&](const TextPiece& piece) { shown.push_back(piece.depth); };
  // The prompt's last row, at position 2, gives the first token; then positions 3, 4, 5, 6 one by one.
  const std::vector<double> depth{4.5, 4.0, 4.5, 4.0, 4.5};
  EXPECT_EQ(generator.run(std::vector<int32_t>{1, 403, 407}, options).depth, depth);
  EXPECT_EQ(shown, depth);
}

}  // namespace
}  // namespace fathom
