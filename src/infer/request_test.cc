// What a request may ask for beside its text, each against the answer alone.
#include <gtest/gtest.h>

#include <atomic>

#include "infer/engine.h"
#include "infer/engine_rig_test.h"
#include "infer/model_runtime.h"
#include "infer/story_model_test.h"
#include "model/flops.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

const char* const kGates = R"({"name": "gate_skip"})";

// A reader is called when there is something to read, and learns of all of it.
TEST(Requests, AReaderIsCalled) {
  StoryModel story(128, 4);
  Engine engine = make_engine(story.feeder, BatcherOptions{});
  Request request;
  request.prompt = story.encode("Once upon a time");
  request.sampler.temperature = 0;
  request.max_tokens = 12;
  Answer answer = std::move(engine.submit(request).front());
  std::atomic<int> calls = 0;
  answer.on_ready([&] {
    ++calls;
    calls.notify_all();
  });
  int tokens = 0;
  for (int seen = 0; !answer.ended() || answer.ready_within(std::chrono::milliseconds(0));) {
    calls.wait(seen);
    seen = calls;
    while (answer.ready_within(std::chrono::milliseconds(0))) {
      if (!answer.next()) break;
      ++tokens;
    }
    if (answer.ended()) break;
  }
  while (answer.next()) ++tokens;
  EXPECT_EQ(tokens, 12);
  // One that comes late is called at once.
  int late = 0;
  answer.on_ready([&] { ++late; });
  EXPECT_EQ(late, 1);
}

// The bytes of the tokens, joined, are the text, also where a character is more than one token.
TEST(Requests, TokensBringTheirBytes) {
  StoryModel story(128, 1);
  Batcher batcher(story.feeder, roomy());
  Request request;
  request.prompt = story.encode("Once upon a time");
  request.sampler.logit_bias = {{0xe2 + 3, 40.0f}};  // a byte that begins a character of three
  request.sampler.temperature = 0;
  request.max_tokens = 5;
  std::vector<Answer> answers = submit(batcher, request);
  run_out(batcher);
  std::string bytes, text;
  while (const std::optional<Token> token = answers[0].next()) {
    bytes += token->bytes;
    text += token->text;
  }
  EXPECT_EQ(bytes, std::string(5, '\xe2'));
  EXPECT_EQ(text.find('\xe2'), std::string::npos) << "text is whole characters";
}

TEST(Requests, UnitsAndWorkAreTheRowsOwn) {
  EngineRig rig(kGates);
  BatcherOptions options = rig.with_tables(roomy());
  Batcher batcher(rig.many.feeder, options);
  Rng rng(5);
  Request request = request_of(random_prompt(rng, 6), 8);
  request.budget = 0.6f;
  request.units = true;
  Request drafting = request;
  drafting.speculate = DraftOptions{.drafts = 3, .kind = DraftKind::kExit, .budget = 0.5};
  drafting.budget = 1.0f;
  Request full = request;
  full.budget = 1.0f;
  std::vector<Answer> answers = submit(batcher, request);
  for (const Request& other : {drafting, full})
    for (Answer& answer : submit(batcher, other)) answers.push_back(std::move(answer));
  run_out(batcher);
  int64_t skipped = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    while (const std::optional<Token> token = answers[i].next()) {
      ASSERT_EQ(token->units.size(), 8u);
      const int64_t ran = std::count(token->units.begin(), token->units.end(), 1);
      EXPECT_EQ(ran, 2 * token->depth);
      skipped += i == 0 ? 8 - ran : 0;
      EXPECT_TRUE(i == 0 || ran == 8) << "at full depth";
    }
  }
  EXPECT_GT(skipped, 0);
  // Alone it runs what the kernels count: rows of the prompt and all tokens but the last.
  const AnswerStats& stats = answers[0].end().stats;
  rig.generate_alone(request);
  const WorkBooks before = rig.alone.feeder.books();
  rig.generate_alone(request);
  const Savings savings = (rig.alone.feeder.books() - before).savings();
  EXPECT_NEAR(stats.skip_ratio, savings.skip_ratio, 1e-12);
  EXPECT_GT(stats.skip_ratio, 0.1);
  EXPECT_NEAR(stats.block_madds / stats.dense_block_madds, savings.block_flops, 0.05);
  EXPECT_EQ(stats.dense_block_madds,
            static_cast<double>(dense_work(rig.rig.model.config, 6 + 7, 0, 0).block_madds));
  // Who records nothing says so.
  options.records = false;
  Batcher blind(rig.many.feeder, options);
  EXPECT_THROW(blind.prepare(request), UserError);
  request.units = false;
  EXPECT_EQ(blind.prepare(request).size(), 1u);
}

TEST(Requests, ASaltKeepsPromptsApart) {
  EngineRig rig;
  Batcher batcher(rig.many.feeder, roomy());
  Rng rng(6);
  Request request = request_of(random_prompt(rng, 40), 2);
  const auto reused = [&] {
    std::vector<Answer> answers = submit(batcher, request);
    run_out(batcher);
    return hear(answers[0]).end.stats.reused_tokens;
  };
  EXPECT_EQ(reused(), 0);
  EXPECT_EQ(reused(), 39);
  request.salt = "another tenant";
  EXPECT_EQ(reused(), 0);
  EXPECT_EQ(reused(), 39);
}

// Requests that come together and begin alike compute that beginning once, whatever room there is.
TEST(Requests, ACommonBeginningIsComputedOnce) {
  EngineRig rig;
  Rng rng(9);
  const std::vector<int32_t> beginning = random_prompt(rng, 60);
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) {
    Request request = request_of(beginning, 3);
    request.prompt.push_back(i);
    requests.push_back(request);
  }
  requests.push_back(request_of(random_prompt(rng, 20), 3));  // overtakes those that wait
  Batcher batcher(rig.many.feeder, roomy(32));
  std::vector<Answer> answers;
  for (const Request& request : requests) {
    for (Answer& answer : submit(batcher, request)) answers.push_back(std::move(answer));
  }
  run_out(batcher);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Heard heard = hear(answers[i]);
    EXPECT_EQ(heard.ids, rig.ids_alone(requests[i])) << "request " << i;
    EXPECT_EQ(heard.end.stats.reused_tokens, i > 0 && i < 6 ? 60 : 0) << "request " << i;
  }
  EXPECT_EQ(batcher.stats().rows, 60 + 6 + 20 + 7 * 2);
}

// Allows a token only where it is of the other parity than the one before it.
class Alternating final : public TokenMask {
 public:
  explicit Alternating(int32_t last) : tokens_{last} {}
  void forbid(std::span<float> logits) override {
    for (size_t id = 0; id < logits.size(); ++id) {
      if ((static_cast<int32_t>(id) + tokens_.back()) % 2 == 0) logits[id] = -INFINITY;
    }
  }
  void accept(int32_t token) override { tokens_.push_back(token); }
  void rollback(int64_t tokens) override {
    ASSERT_LT(static_cast<size_t>(tokens), tokens_.size());
    tokens_.resize(tokens_.size() - static_cast<size_t>(tokens));
  }

 private:
  std::vector<int32_t> tokens_;
};

// Drafts included: the same text with and without them, also in a cache that is too small for all.
TEST(Requests, AMaskHoldsInEveryToken) {
  EngineRig rig(kGates);
  BatcherOptions options = rig.with_tables(roomy());
  Rng rng(7);
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    Request request = request_of(random_prompt(rng, 4 + i), 12);
    request.mask = [last = request.prompt.back()] { return std::make_unique<Alternating>(last); };
    requests.push_back(request);
  }
  std::vector<std::vector<int32_t>> plain;
  for (const bool drafts : {false, true}) {
    Batcher batcher(rig.many.feeder, options);
    std::vector<Answer> answers;
    for (Request& request : requests) {
      if (drafts) request.speculate = DraftOptions{.drafts = 3, .kind = DraftKind::kExit, .budget = 0.75};
      for (Answer& answer : submit(batcher, request)) answers.push_back(std::move(answer));
    }
    run_out(batcher);
    int64_t rejected = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      const Heard heard = hear(answers[i]);
      ASSERT_EQ(heard.end.error, "");
      int32_t before = requests[i].prompt.back();
      for (const int32_t id : heard.ids) {
        EXPECT_NE((before + id) % 2, 0);
        before = id;
      }
      const SpeculationCounts& counts = heard.end.stats.speculation;
      rejected += counts.drafted - counts.accepted;
      if (!drafts) plain.push_back(heard.ids);
      EXPECT_EQ(heard.ids, plain[i]);
    }
    EXPECT_EQ(rejected > 0, drafts) << "nothing was rolled back";
  }
}

TEST(Requests, AMaskThatForbidsEverythingEndsTheAnswer) {
  class Nothing final : public TokenMask {
    void forbid(std::span<float> logits) override { std::fill(logits.begin(), logits.end(), -INFINITY); }
    void accept(int32_t) override {}
    void rollback(int64_t) override {}
  };
  EngineRig rig;
  Batcher batcher(rig.many.feeder, roomy());
  Request request = request_of({1, 2, 3}, 4);
  request.mask = [] { return std::make_unique<Nothing>(); };
  std::vector<Answer> answers = submit(batcher, request);
  for (Answer& answer : submit(batcher, request_of({4, 5}, 4))) answers.push_back(std::move(answer));
  run_out(batcher);
  EXPECT_EQ(hear(answers[0]).end.reason, FinishReason::kError);
  EXPECT_EQ(hear(answers[1]).ids, rig.ids_alone(request_of({4, 5}, 4)));
}

// Throws in the middle of a pass that holds a certain token, or too many rows.
class Brittle final : public ForwardingPolicy {
 public:
  using ForwardingPolicy::ForwardingPolicy;
  Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const override {
    std::vector<int32_t> tokens(static_cast<size_t>(input.batch.rows()));
    copy_to_host(ctx, input.batch.tokens, tokens);
    if (input.layer == 2) {
      if (std::find(tokens.begin(), tokens.end(), 47) != tokens.end()) throw UserError("token 47 came");
      if (input.batch.rows() > most) throw std::bad_alloc();
    }
    return ForwardingPolicy::decide(ctx, input, state);
  }
  int64_t most = 1 << 20;
};

// A pass that fails is tried in halves: one bad request ends alone, and too much at once is done in pieces.
TEST(Requests, OneBadRequestEndsAlone) {
  EngineRig rig(kGates);
  Brittle policy(rig.many.policy);
  Feeder feeder(rig.rig.ctx, rig.rig.model, rig.many.cache, policy, *rig.many.base);
  Rng rng(8);
  for (const int64_t most : {1 << 20, 9}) {
    policy.most = most;
    Batcher batcher(feeder, rig.with_tables(roomy()));
    std::vector<Request> requests;
    std::vector<Answer> answers;
    for (int i = 0; i < 6; ++i) {
      Request request = request_of(random_prompt(rng, 5 + i % 3), 6);
      for (int32_t& id : request.prompt) id %= 47;
      request.sampler.logit_bias = {{47, -INFINITY}};
      if (i == 3) request.prompt[2] = 47;
      if (i % 2 == 1) request.speculate = DraftOptions{.drafts = 2, .kind = DraftKind::kExit, .budget = 0.75};
      requests.push_back(request);
      for (Answer& answer : submit(batcher, request)) answers.push_back(std::move(answer));
    }
    run_out(batcher);
    for (size_t i = 0; i < answers.size(); ++i) {
      const Heard heard = hear(answers[i]);
      if (i == 3) {
        EXPECT_EQ(heard.end.error, "token 47 came");
        continue;
      }
      EXPECT_EQ(heard.end.error, "") << "request " << i;
      EXPECT_EQ(heard.ids, rig.ids_alone(requests[i])) << "request " << i;
    }
  }
}

// The cache takes as many pages as its bytes hold, and no more than full contexts need.
TEST(Runtime, TheCacheMayBeBounded) {
  ModelRuntime::Options options;
  options.source.model = FATHOM_TEST_DATA "/stories260k/stories260K.bin";
  options.source.where.threads = 2;
  ModelRuntime runtime(options);
  runtime.make_cache(-1, 4, 64);
  const int64_t whole = runtime.feeder().cache().pages();
  const int64_t page = KvCache::kPage * runtime.feeder().cache().bytes_per_entry();
  runtime.make_cache(-1, 4, 64, page * whole / 2 + 1);
  EXPECT_EQ(runtime.feeder().cache().pages(), whole / 2);
  runtime.make_cache(-1, 4, 64, page * whole * 100);
  EXPECT_EQ(runtime.feeder().cache().pages(), whole);
  EXPECT_THROW(runtime.make_cache(-1, 4, 64, page), UserError);
}

// The installed header's own way in.
TEST(Runtime, OpensAsksAndAnswers) {
  const std::string model = FATHOM_TEST_DATA "/stories260k/stories260K.bin";
  const Runtime runtime = Runtime::open({.model = model, .threads = 2, .weights = "f32", .sequences = 2});
  EXPECT_EQ(runtime.layers(), 5);
  Request request = runtime.request("Once upon a time");
  request.sampler.temperature = 0;
  request.max_tokens = 20;
  StoryModel story;
  const PlainAnswer alone = PlainWriter(story.feeder, request, request.prompt).run();
  {
    Engine engine(runtime);
    EXPECT_THROW(Engine{runtime}, std::runtime_error) << "one engine at a time";
    Answer answer = std::move(engine.submit(request).front());
    std::string text;
    while (const std::optional<Token> token = answer.next()) text += token->text;
    EXPECT_EQ(text + answer.end().text, alone.text);
    EXPECT_EQ(runtime.decode(runtime.encode("Lily")), "Lily");
  }
  EXPECT_EQ(Engine(runtime).submit(request).size(), 1u);
  EXPECT_THROW(Runtime::open({.model = "no such model"}), std::runtime_error);
  EXPECT_THROW(Runtime::open({.model = model, .weights = "q9"}), std::runtime_error);
  EXPECT_THROW(Runtime::open({.model = model, .device = "abacus"}), std::runtime_error);
  request.budget = 0.5f;
  EXPECT_THROW(Engine(runtime).submit(request), std::runtime_error) << "a dense model has no budgets";
  EXPECT_THROW(runtime.request({{"user", "Hello"}}), std::runtime_error) << "it has no chat template";
}

}  // namespace
}  // namespace fathom
