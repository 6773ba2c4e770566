// What shares a pass, who goes first, and who makes room.
#include "infer/batcher.h"

#include "infer/engine_rig_test.h"

namespace fathom {
namespace {

TEST(Batcher, OnePassForAllThatRun) {
  EngineRig rig;
  Batcher batcher(rig.many.feeder, roomy());
  std::vector<Answer> answers;
  Rng rng(3);
  for (int i = 0; i < 8; ++i) {
    Request request = request_of(random_prompt(rng, 5), 10);
    for (Answer& answer : submit(batcher, request)) answers.push_back(std::move(answer));
  }
  run_out(batcher);
  // The prompts' 40 rows, then 9 rows of each, all in the same passes.
  std::vector<int64_t> rows(10, 8);
  rows[0] = 40;
  EXPECT_EQ(rig.many.policy.rows, rows);
  EXPECT_EQ(batcher.stats().passes, 10);
  EXPECT_EQ(batcher.stats().passes_by_rows[6], 1);  // 33 to 64 rows
  EXPECT_GT(batcher.stats().bytes_read, 0);
  EXPECT_EQ(batcher.stats().rows, 40 + 72);
  EXPECT_EQ(batcher.stats().generated_tokens, 80);
  for (Answer& answer : answers) EXPECT_EQ(hear(answer).ids.size(), 10u);
}

TEST(Batcher, PromptsComeInPiecesBesideTheWriting) {
  EngineRig rig(R"({"name": "dense"})", 2);
  Batcher batcher(rig.many.feeder, roomy(16));
  Rng rng(3);
  const Request shorter = request_of(random_prompt(rng, 4), 30),
                longer = request_of(random_prompt(rng, 100), 5);
  std::vector<Answer> first = submit(batcher, shorter);
  batcher.step();
  std::vector<Answer> second = submit(batcher, longer);
  for (int i = 0; i < 7; ++i) {  // 15 rows of the prompt each, and a token of the other
    EXPECT_FALSE(ready(second[0]));
    EXPECT_TRUE(batcher.step());
    EXPECT_TRUE(first[0].next());
  }
  EXPECT_TRUE(ready(second[0]));
  EXPECT_EQ(rig.many.policy.rows, (std::vector<int64_t>{4, 16, 16, 16, 16, 16, 16, 11}));
  run_out(batcher);
  EXPECT_EQ(hear(second[0]).ids, rig.ids_alone(longer));
}

TEST(Batcher, ASlowReaderPausesOnlyItself) {
  EngineRig rig;
  BatcherOptions options = roomy();
  options.tokens_ahead = 4;
  Batcher batcher(rig.many.feeder, options);
  Rng rng(5);
  const Request request = request_of(random_prompt(rng, 6), 20);
  std::vector<Answer> slow = submit(batcher, request), quick = submit(batcher, request);
  std::vector<int32_t> read;
  while (batcher.step()) {
    if (!ready(quick[0])) continue;
    if (const auto token = quick[0].next()) read.push_back(token->id);
  }
  EXPECT_EQ(read.size(), 20u);
  EXPECT_EQ(batcher.stats().paused, 1);
  EXPECT_EQ(batcher.stats().generated_tokens, 24);  // counted as they are written: the slow one's four, too
  std::vector<int32_t> late;
  for (int i = 0; i < 4; ++i) late.push_back(slow[0].next()->id);
  EXPECT_FALSE(ready(slow[0]));  // there were four
  while (batcher.step()) late.push_back(slow[0].next()->id);
  EXPECT_EQ(late, read);
}

TEST(Batcher, AReaderThatIsBehindGivesUpItsPlace) {
  EngineRig rig(R"({"name": "dense"})", 1);
  BatcherOptions options = roomy();
  options.tokens_ahead = 4;
  Batcher batcher(rig.many.feeder, options);
  Rng rng(5);
  const Request request = request_of(random_prompt(rng, 6), 20), other = request_of(random_prompt(rng, 3), 4);
  std::vector<Answer> slow = submit(batcher, request), quick = submit(batcher, other);
  while (batcher.step()) {
  }
  EXPECT_EQ(hear(quick[0]).ids, rig.ids_alone(other));
  EXPECT_EQ(batcher.stats().running, 0);  // nor does it take a place again before somebody reads
  std::vector<int32_t> late;
  while (!batcher.idle()) {
    while (batcher.step()) {
    }
    while (ready(slow[0])) {
      const auto token = slow[0].next();
      if (!token) break;
      late.push_back(token->id);
    }
  }
  EXPECT_EQ(late, rig.ids_alone(request));
  EXPECT_EQ(slow[0].end().stats.preemptions, 1);
}

TEST(Batcher, CancelsInTheMiddleOfAPrompt) {
  EngineRig rig(R"({"name": "dense"})", 1);
  Batcher batcher(rig.many.feeder, roomy(8));
  Rng rng(5);
  std::vector<Answer> answers = submit(batcher, request_of(random_prompt(rng, 100), 20));
  batcher.step();
  batcher.step();
  answers[0].cancel();
  batcher.step();
  EXPECT_TRUE(batcher.idle());
  EXPECT_EQ(rig.many.policy.passes, 2);
  const Heard heard = hear(answers[0]);
  EXPECT_EQ(heard.end.reason, FinishReason::kCancelled);
  EXPECT_TRUE(heard.ids.empty());
  EXPECT_EQ(heard.end.stats.prefill_tokens, 16);  // two passes of 8 rows, of 100
  // Who goes away without a word cancels, too.
  submit(batcher, request_of(random_prompt(rng, 100), 20)).clear();
  batcher.step();
  EXPECT_TRUE(batcher.idle());
  EXPECT_EQ(batcher.stats().finished[static_cast<size_t>(FinishReason::kCancelled)], 2);
}

TEST(Batcher, ADeadlineEndsAnAnswer) {
  EngineRig rig(R"({"name": "dense"})", 1);
  Moment now{};
  BatcherOptions options = roomy();
  options.now = [&] { return now; };
  Batcher batcher(rig.many.feeder, options);
  Rng rng(5);
  Request request = request_of(random_prompt(rng, 5), 20);
  request.deadline = now + std::chrono::seconds(10);
  std::vector<Answer> running = submit(batcher, request), waiting = submit(batcher, request);
  EXPECT_EQ(batcher.next_deadline(), request.deadline);
  batcher.step();
  now += std::chrono::seconds(9);
  batcher.step();
  now += std::chrono::seconds(1);
  batcher.step();
  EXPECT_TRUE(batcher.idle());
  const Heard heard = hear(running[0]);
  EXPECT_EQ(heard.end.reason, FinishReason::kDeadline);
  EXPECT_EQ(heard.ids.size(), 2u);
  EXPECT_EQ(heard.end.stats.decode_seconds, 10);
  const Heard never = hear(waiting[0]);
  EXPECT_EQ(never.end.reason, FinishReason::kDeadline);
  EXPECT_EQ(never.end.stats.wait_seconds, 10);
  EXPECT_TRUE(never.ids.empty());
}

TEST(Batcher, PriorityGoesFirst) {
  EngineRig rig(R"({"name": "dense"})", 1);
  Batcher batcher(rig.many.feeder, roomy());
  Rng rng(5);
  Request low = request_of(random_prompt(rng, 5), 2), high = low;
  high.priority = 1;
  std::vector<Answer> first = submit(batcher, low), second = submit(batcher, low),
                      third = submit(batcher, high);
  batcher.step();
  EXPECT_FALSE(ready(first[0]));
  EXPECT_TRUE(ready(third[0]));
  batcher.step();
  batcher.step();
  EXPECT_TRUE(ready(first[0]));
  EXPECT_FALSE(ready(second[0]));
  run_out(batcher);
}

TEST(Batcher, NobodyWaitsForEver) {
  EngineRig rig(R"({"name": "dense"})", 1);
  BatcherOptions options = roomy();
  options.ageing = 4;
  Batcher batcher(rig.many.feeder, options);
  Rng rng(5);
  const Request low = request_of(random_prompt(rng, 5), 1);
  Request high = low;
  high.priority = 3;
  std::vector<Answer> patient = submit(batcher, low), others;
  int passes = 0;
  for (; passes < 40 && !ready(patient[0]); ++passes) {  // there is always somebody more important
    for (Answer& answer : submit(batcher, high)) others.push_back(std::move(answer));
    batcher.step();
  }
  EXPECT_EQ(passes, 3 * 4 + 1);  // by then it is as important as they are, and came first
  run_out(batcher);
}

// A large request that waits for room gets it before small ones that came later.
TEST(Batcher, NobodyOvertakesALargeRequest) {
  KvCacheOptions cache = cache_of(3);
  cache.pages = 3 * 4;
  EngineRig rig(R"({"name": "dense"})", cache);
  BatcherOptions options = roomy();
  options.keep_prefixes = false;
  Batcher batcher(rig.many.feeder, options);
  Rng rng(5);
  std::vector<Answer> running = submit(batcher, request_of(random_prompt(rng, 100), 10));
  std::vector<Answer> large = submit(batcher, request_of(random_prompt(rng, 120), 2));
  std::vector<Answer> small = submit(batcher, request_of(random_prompt(rng, 5), 2));
  for (int i = 0; i < 5; ++i) batcher.step();
  EXPECT_TRUE(ready(running[0]));
  EXPECT_FALSE(ready(small[0]));
  EXPECT_EQ(batcher.stats().waiting, 2);
  run_out(batcher);
  EXPECT_EQ(batcher.stats().preemptions, 0);
  EXPECT_EQ(hear(small[0]).ids.size(), 2u);
}

// One pool of 6 pages a layer for 8 answers of up to 128 tokens: they wait for each other, make room, and are
// what they are alone.
TEST(Batcher, AFullCacheChangesNoAnswer) {
  for (const char* json : {R"({"name": "dense"})", R"({"name": "mind_skip", "pool": "prompt"})",
                           R"({"name": "random", "skipped_kv": "copy"})"}) {
    KvCacheOptions cache = cache_of(8);
    cache.pages = 6 * 4;
    EngineRig rig(json, cache);
    Batcher batcher(rig.many.feeder, roomy(32));
    Rng rng(21);
    std::vector<Request> requests;
    std::vector<Answer> answers;
    for (int i = 0; i < 16; ++i) {
      Request request = request_of(random_prompt(rng, 20 + rng.below(30)), 70);
      request.sampler.temperature = 1.3f;
      request.sampler.seed = rng.next_u32();
      requests.push_back(request);
      for (Answer& answer : submit(batcher, request)) answers.push_back(std::move(answer));
    }
    run_out(batcher);
    for (size_t i = 0; i < requests.size(); ++i)
      ASSERT_EQ(hear(answers[i]).ids, rig.ids_alone(requests[i])) << json << ", request " << i;
    EXPECT_GT(batcher.stats().preemptions, 0) << json;
    // One that the whole pool is not enough for is told so.
    EXPECT_NO_THROW(batcher.prepare(request_of(random_prompt(rng, 128), 1)));
  }
  KvCacheOptions cache = cache_of(2);
  cache.pages = 4;
  EngineRig rig(R"({"name": "dense"})", cache);
  Batcher batcher(rig.many.feeder, roomy());
  Rng rng(3);
  EXPECT_THROW(batcher.prepare(request_of(random_prompt(rng, 65), 1)), UserError);
  std::vector<Answer> answers = submit(batcher, request_of(random_prompt(rng, 64), 9));
  run_out(batcher);
  EXPECT_EQ(hear(answers[0]).ids.size(), 1u);
}

}  // namespace
}  // namespace fathom
