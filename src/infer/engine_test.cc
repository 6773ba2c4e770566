#include "infer/engine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <type_traits>

#include "infer/engine_rig_test.h"
#include "infer/story_model_test.h"
#include "support/heap_allocations.h"

namespace fathom {
namespace {

// Users of fathom.h get engines from runtimes and answers from engines. Private types make none.
static_assert(!std::is_constructible_v<Engine, Feeder&, BatcherOptions>);
static_assert(!std::is_constructible_v<Engine, std::unique_ptr<EngineThread>>);
static_assert(!std::is_constructible_v<Answer, std::shared_ptr<TokenQueue>>);

BatcherOptions busy_options(const EngineRig& rig) {
  BatcherOptions options;
  options.rows = 32;
  options.tokens_ahead = 3;
  options.ageing = 8;
  options.budgets = &*rig.budgets;
  return options;
}

Request endless(std::vector<int32_t> prompt) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampler.temperature = 0;
  return request;
}

TEST(Engine, AnswersAsAloneTheyAre) {
  StoryModel story(128, 4), alone(128);
  Engine engine = make_engine(story.feeder, BatcherOptions{});
  Request request;
  request.prompt = story.encode("Once upon a time");
  request.max_tokens = 40;
  request.answers = 2;
  request.sampler.seed = 4;
  std::vector<Answer> answers = engine.submit(request);
  for (int64_t i = 0; i < 2; ++i) {
    AnswerOptions options = request;
    options.sampler.seed = answer_seed(4, i);
    options.end_ids = end_token_ids(story.model);
    const PlainAnswer expected = PlainWriter(alone.feeder, options, request.prompt).run();
    const Heard heard = hear(answers[static_cast<size_t>(i)]);
    EXPECT_EQ(heard.text, expected.text);
    EXPECT_EQ(heard.end.reason, expected.finish);
  }
  engine.drain();
  EXPECT_EQ(engine.stats().running + engine.stats().waiting, 0);
  EXPECT_THROW(engine.submit(request), EngineBusy);
}

TEST(Engine, ItsEndWaitsForNoReader) {
  EngineRig rig;
  std::vector<Answer> answers;
  {
    Engine engine = make_engine(rig.many.feeder, busy_options(rig));
    for (int i = 0; i < 20; ++i) {  // some run until their queues are full, others never had a place
      for (Answer& answer : engine.submit(endless({1, 2, 3}))) answers.push_back(std::move(answer));
    }
    EXPECT_TRUE(answers[0].next());
  }
  for (Answer& answer : answers) EXPECT_EQ(hear(answer).end.reason, FinishReason::kCancelled);
  EXPECT_EQ(rig.many.cache.bytes_held(), 0);
}

TEST(Engine, DrainsWhatItHas) {
  EngineRig rig;
  Engine engine = make_engine(rig.many.feeder, busy_options(rig));
  Request request = endless({1, 2, 3});
  request.max_tokens = 12;
  std::vector<Heard> heard(10);
  std::vector<std::thread> readers;
  for (Heard& each : heard) {
    readers.emplace_back([&each, answers = engine.submit(request)]() mutable { each = hear(answers[0]); });
  }
  engine.drain();
  for (std::thread& reader : readers) reader.join();
  for (const Heard& each : heard) EXPECT_EQ(each.ids.size(), 12u);
}

TEST(Engine, AFullHouseIsSaidSo) {
  EngineRig rig(R"({"name": "dense"})", 1);
  BatcherOptions options = busy_options(rig);
  options.waiting = 3;
  Engine engine = make_engine(rig.many.feeder, options);
  std::vector<Answer> running = engine.submit(endless({1, 2, 3}));
  EXPECT_TRUE(running[0].next());  // it has the place
  std::vector<Answer> waiting;
  EXPECT_THROW(
      {
        for (int i = 0; i < 40; ++i) {
          for (Answer& answer : engine.submit(endless({4}))) waiting.push_back(std::move(answer));
        }
      },
      EngineBusy);
  Request many = endless({4});
  many.answers = 4;
  EXPECT_THROW(engine.submit(many), EngineBusy);
}

// Whoever sees the last end finds the places free, before the step that ended the answers is over.
TEST(Engine, AnEndThatIsSeenHasLeftItsPlace) {
  EngineRig rig(R"({"name": "dense"})", 2);
  BatcherOptions options = busy_options(rig);
  options.waiting = 0;
  Engine engine = make_engine(rig.many.feeder, options);
  Request request = endless({1, 2, 3});
  request.max_tokens = 2;
  request.answers = 2;
  std::vector<Answer> first = engine.submit(request), second;
  std::string refused = "the ends were not seen";
  std::mutex mutex;
  std::condition_variable changed;
  bool seen = false;
  const auto look = [&] {  // on the engine's thread, inside its step
    const std::lock_guard lock(mutex);
    if (seen || !first[0].ended() || !first[1].ended()) return;
    seen = true;
    try {
      second = engine.submit(request);
      refused.clear();
    } catch (const EngineBusy& error) {
      refused = error.what();
    }
    changed.notify_all();
  };
  for (Answer& answer : first) answer.on_ready(look);
  {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::seconds(60), [&] { return seen; });
  }
  EXPECT_EQ(refused, "");
  for (Answer& answer : second) EXPECT_EQ(hear(answer).ids.size(), 2u);
  EXPECT_EQ(engine.submit(request).size(), 2u);
}

TEST(Engine, ADeadlineWakesIt) {
  EngineRig rig;
  Engine engine = make_engine(rig.many.feeder, busy_options(rig));
  Request request = endless({1, 2, 3});
  request.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  std::vector<Answer> answers = engine.submit(request);
  while (!answers[0].ready_within(std::chrono::milliseconds(0))) {
  }
  // Three tokens fill the queue, and nobody reads: only the deadline can end it.
  while (engine.stats().finished[static_cast<size_t>(FinishReason::kDeadline)] == 0)
    std::this_thread::yield();
  const Heard heard = hear(answers[0]);
  EXPECT_EQ(heard.end.reason, FinishReason::kDeadline);
  EXPECT_LE(heard.ids.size(), 3u);
}

struct Outcome {
  Request request;
  Heard heard;
};

// Requests of every kind from several threads into one engine, a part of them cancelled by a reader that says
// so, goes away, or has read enough. Returns those that were read to their end.
std::vector<Outcome> storm(Engine& engine, int threads, int each, uint64_t seed) {
  std::vector<std::vector<Outcome>> outcomes(static_cast<size_t>(threads));
  std::vector<std::thread> users;
  for (int user = 0; user < threads; ++user) {
    users.emplace_back([&engine, &mine = outcomes[static_cast<size_t>(user)], each, seed, user] {
      Rng rng(seed, {static_cast<uint32_t>(user), 0, 0});
      std::vector<std::pair<Request, std::vector<Answer>>> open;
      for (int i = 0; i < each || !open.empty(); ++i) {
        if (i < each) {
          Request request = random_request(rng);
          request.answers = rng.below(6) == 0 ? 3 : 1;
          std::vector<Answer> answers = engine.submit(request);
          open.emplace_back(std::move(request), std::move(answers));
        }
        if (i < each && open.size() < 4) continue;
        auto [request, answers] = std::move(open.front());
        open.erase(open.begin());
        const uint32_t fate = rng.below(8);
        if (fate == 0) continue;  // gone without a word
        if (fate == 1) answers[0].next();
        if (fate <= 2) answers[0].cancel();
        if (fate == 1) continue;
        Heard heard = hear(answers[0]);
        if (fate > 2) mine.push_back({std::move(request), std::move(heard)});
      }
    });
  }
  for (std::thread& user : users) user.join();
  std::vector<Outcome> all;
  for (auto& mine : outcomes) std::move(mine.begin(), mine.end(), std::back_inserter(all));
  return all;
}

void expect_as_alone(EngineRig& rig, const std::vector<Outcome>& outcomes, size_t every) {
  for (size_t i = 0; i < outcomes.size(); i += every)
    ASSERT_EQ(outcomes[i].heard.ids, rig.ids_alone(outcomes[i].request)) << "answer " << i;
}

TEST(Engine, ManyThreadsAtOnce) {
  KvCacheOptions cache = cache_of(6);
  cache.pages = 7 * 4;
  EngineRig rig(R"({"name": "gate_skip", "skipped_kv": "hide"})", cache);
  std::vector<Outcome> outcomes;
  EngineStats stats;
  {
    Engine engine = make_engine(rig.many.feeder, busy_options(rig));
    outcomes = storm(engine, 4, 15, 1);
    engine.drain();
    stats = engine.stats();
  }
  EXPECT_GT(outcomes.size(), 20u);
  expect_as_alone(rig, outcomes, 1);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.passes, rig.many.policy.passes);
  EXPECT_EQ(rig.many.cache.bytes_held(), 0);
}

// Of this process now; 0 where the system does not say.
int64_t resident_bytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

void wait_until_idle(const Engine& engine) {
  while (engine.stats().running + engine.stats().waiting > 0) std::this_thread::yield();
}

// Nothing is left behind: not a page, not a place, not an answer, not a byte. A first thousand fills what
// fills up (queues, scratch, kept beginnings); a second one adds nothing to it.
TEST(Engine, ASoakOfTwoThousandRequests) {
  constexpr const char* kMethod = R"({"name": "mind_skip", "pool": "prefix:5"})";
  KvCacheOptions cache = cache_of(8);
  cache.pages = 9 * 4;
  EngineRig rig(kMethod, cache), alone(kMethod, 1);  // two contexts: the engine has one to itself
  Engine engine = make_engine(rig.many.feeder, busy_options(rig));
  size_t blocks[2], checked = 0;
  int64_t resident[2];
  for (const int half : {0, 1}) {
    const std::vector<Outcome> outcomes = storm(engine, 4, 250, static_cast<uint64_t>(2 + half));
    expect_as_alone(alone, outcomes, 1);
    checked += outcomes.size();
    storm(engine, 4, 250, static_cast<uint64_t>(12 + half));
    wait_until_idle(engine);
    blocks[half] = heap_blocks();
    resident[half] = resident_bytes();
  }
  EXPECT_GT(checked, 1000u);
  engine.drain();
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.finished[static_cast<size_t>(FinishReason::kError)], 0);
  EXPECT_GE(stats.finished[0] + stats.finished[1] + stats.finished[2], 2000);
  RecordProperty("blocks_more", std::to_string(static_cast<int64_t>(blocks[1] - blocks[0])));
  RecordProperty("resident_more", std::to_string(resident[1] - resident[0]));
  EXPECT_LT(blocks[1], blocks[0] + 500);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose own books grow
  EXPECT_LT(resident[1], resident[0] + (4 << 20));
#endif
}

}  // namespace
}  // namespace fathom
