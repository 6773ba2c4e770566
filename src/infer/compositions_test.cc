// Methods with what stands beside them: quantised weights and caches, and sequences that begin alike.
#include <set>

#include "infer/engine_rig_test.h"
#include "infer/every_method_test.h"
#include "model/load.h"

namespace fathom {
namespace {

class EveryMethod : public testing::TestWithParam<std::string> {};

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - double{b[i]}, 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

KvCacheOptions cache_of_type(DType type, int64_t sequences) {
  KvCacheOptions cache = cache_of(sequences);
  cache.k_type = cache.v_type = type;
  return cache;
}

// In the engine, at several budgets: each answer is the one given alone, with weights of eight, five and four
// bits.
TEST_P(EveryMethod, AnswersFromQuantisedWeights) {
  for (const DType weights : {DType::kQ8_0, DType::kQ5_1, DType::kQ4_0, DType::kQ4_1}) {
    const DType cached = weights == DType::kQ8_0 ? DType::kQ8_0 : DType::kF16;
    EngineRig rig(GetParam(), cache_of_type(cached, 4), blocks_config());
    convert_weights(rig.rig.ctx, rig.rig.model, weights, true);
    rig.calibrate();
    BatcherOptions options = roomy(24);
    options.budgets = &*rig.budgets;
    Batcher batcher(rig.many.feeder, options);
    Rng rng(31);
    std::vector<Request> requests;
    std::vector<Answer> answers;
    for (int i = 0; i < 8; ++i) {
      requests.push_back(random_request(rng));
      for (Answer& answer : submit(batcher, requests.back())) answers.push_back(std::move(answer));
      batcher.step();
    }
    run_out(batcher);
    for (size_t i = 0; i < requests.size(); ++i)
      ASSERT_EQ(hear(answers[i]).ids, rig.ids_alone(requests[i])) << name_of(weights) << ", request " << i;
  }
}

// What runs on quantised weights is the method on those weights: the decoded ones give the same logits, but
// for the rounding of activations, when everything is computed, masked, and decided as recorded.
TEST_P(EveryMethod, QuantisedIsTheDecodedModelMasked) {
  const Rows rows = random_rows({25, 14}, 8);
  for (const DType weights : {DType::kQ8_0, DType::kQ4_0}) {
    Rig rig(GetParam(), blocks_config());
    convert_weights(rig.ctx, rig.model, weights, true);
    rig.calibrate(0.7f);
    const Seen quantised = rig.fresh(rows);
    convert_weights(rig.ctx, rig.model, DType::kF32, false);
    const std::vector<RowSet> replay = owned_rows(quantised.kept);
    PassOptions options;
    options.masked = true;
    options.replay = &replay;
    const Seen decoded = rig.fresh(rows, options);
    EXPECT_EQ(decoded.kept, quantised.kept);
    // Gates and ln g multiply the rounding; other rows' results would be as far off as the logits are large.
    EXPECT_LT(relative_distance(quantised.logits, decoded.logits), 0.2) << name_of(weights);
  }
}

// Prompts that begin alike at three budgets and by the method's own rule: beginnings are taken over under an
// equal key and under no other, and no answer shows it.
TEST_P(EveryMethod, SharesBeginningsUnderAnEqualKey) {
  EngineRig rig(GetParam(), 6);
  BatcherOptions options = roomy(32);
  options.budgets = &*rig.budgets;
  Batcher batcher(rig.many.feeder, options);
  Rng rng(12);
  const std::vector<int32_t> beginning = random_prompt(rng, 30);
  std::set<std::vector<float>> known;  // thresholds under which the beginning was computed
  const bool whole = rig.rig.policy->needs_whole_prompt();
  int32_t next = 20;  // no two go on alike
  for (const std::optional<float> budget : {std::optional<float>(), {1.0f}, {0.8f}, {0.6f}}) {
    for (int i = 0; i < 3; ++i) {
      Request request = request_of(beginning, 6);
      request.prompt.push_back(next++);
      for (const int32_t id : random_prompt(rng, 1 + rng.below(20))) request.prompt.push_back(id);
      request.budget = budget;
      std::vector<Answer> answers = submit(batcher, request);
      run_out(batcher);
      const Heard heard = hear(answers[0]);
      const bool shares =
          !known.insert(budget ? rig.table.thresholds(*budget) : std::vector<float>{}).second && !whole;
      EXPECT_EQ(heard.end.stats.reused_tokens, shares ? 30 : 0) << budget.value_or(-1) << ", " << i;
      EXPECT_EQ(heard.ids, rig.ids_alone(request)) << budget.value_or(-1) << ", " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryMethod, testing::ValuesIn(every_method()), method_test_name);

// The same cache under other routers, as another adapter brings them, and under another method: nothing of
// what it held is taken over.
TEST(Compositions, AnotherAdapterOrMethodSharesNothing) {
  EngineRig rig(R"({"name": "gate_skip", "skipped_kv": "hide"})", 3);
  BatcherOptions options = roomy();
  options.budgets = &*rig.budgets;
  Rng rng(5);
  Request request = request_of(random_prompt(rng, 40), 8);
  request.budget = 0.6f;
  const auto answer = [&](Feeder& feeder) {
    Batcher batcher(feeder, options);
    std::vector<Answer> answers = submit(batcher, request);
    run_out(batcher);
    return hear(answers[0]);
  };
  const Heard first = answer(rig.many.feeder);
  EXPECT_EQ(first.ids, rig.ids_alone(request));
  uint32_t stream = 50;
  for (const MethodParameter& parameter : rig.rig.policy->parameters(rig.rig.model.config))
    add_noise(*parameter.tensor, 0.5f, 3, stream++);
  const Heard other = answer(rig.many.feeder);
  EXPECT_EQ(other.end.stats.reused_tokens, 0);
  EXPECT_EQ(other.ids, rig.ids_alone(request));

  const DensePolicy dense;
  PolicyState state;
  Feeder feeder(rig.rig.ctx, rig.rig.model, rig.many.cache, dense, state);
  request.budget = std::nullopt;
  EngineRig plain;
  const Heard full = answer(feeder);
  EXPECT_EQ(full.end.stats.reused_tokens, 0);
  EXPECT_EQ(full.ids, plain.ids_alone(request));
}

}  // namespace
}  // namespace fathom
