#include "eval/sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "eval/sweep_identity.h"
#include "infer/draft.h"
#include "infer/story_model_test.h"
#include "model/load.h"
#include "skip/fingerprint.h"
#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

// Choices about small stories.
SweepTask story_task(const Model& model, size_t items) {
  SweepTask out;
  out.task.spec.name = "stories";
  const std::vector<std::string> starts{"Once upon a time, there was a", "Tom had a big", "The cat sat on",
                                        "Lily went to the park. She saw a big", "One day, a dog"};
  for (size_t i = 0; i < items; ++i) {
    EvalItem item;
    item.id = std::to_string(i);
    std::string start = starts[i % starts.size()];
    for (size_t n = 0; n < i / starts.size(); ++n) start = "They were happy. " + start;
    for (const char* end : {" little girl.", " dog", " x", " red ball"}) item.options.push_back({start, end});
    item.characters = {12, 3, 1, 8};
    item.gold = static_cast<int64_t>(i % 3);
    out.task.items.push_back(item);
  }
  out.encoded = encode_task(out.task, RequestEncoder(*model.tokenizer, 128));
  return out;
}

// A sweep begun on one kind of machine goes on on another.
TEST(SweepIdentity, OfAModelIsTheSameHoweverItsWeightsLie) {
  StoryModel story;
  const std::string full = identity_of(story.ctx, story.model);
  convert_weights(story.ctx, story.model, DType::kQ8_0, true);
  const std::string identity = identity_of(story.ctx, story.model);
  EXPECT_NE(identity, full);
  arrange_weights(story.ctx, story.model);
  EXPECT_EQ(identity_of(story.ctx, story.model), identity);
}

struct SweepRig {
  StoryModel story;
  SweepModel model{story.ctx, story.model};
  std::unique_ptr<MethodPolicy> policy = MethodPolicy::from_json(
      R"({"name": "random", "keyed_by": "text", "seed": 77, "rows_kept": 0.7})", "test");
  SweepPlan plan;
  int64_t run = 0, kept = 0, fewer = 0;

  explicit SweepRig(size_t items = 20) {
    const std::vector<float> thresholds(10, 0.2f);
    plan.methods.push_back({.label = "dense", .model = model, .budgets = {{std::nullopt, {}}}});
    plan.methods.push_back({.label = "mine",
                            .model = model,
                            .policy = policy.get(),
                            .identity = "mine",
                            .adapter = true,
                            .budgets = {{0.8, thresholds}, {std::nullopt, {}}}});
    plan.tasks.push_back(story_task(story.model, items));
    plan.runner = {.k_type = DType::kF32, .v_type = DType::kF32, .decode_tokens = 4, .rounds = 1};
    plan.runner.on_progress = [this](int64_t n) { run += n; };
    plan.runner.on_kept = [this](int64_t n) { kept += n; };
    plan.on_fewer = [this](int64_t n) { fewer += n; };
    plan.seeds = 2;
    plan.drop_order = measure_harm_order(story.ctx, story.model);
  }
  std::vector<SweepPoint> sweep(const std::string& folder) {
    SweepCache cache(folder);
    return *fathom::sweep(plan, cache);
  }
};

// All but the clock's.
std::vector<double> numbers(const SweepScore& score) {
  std::vector<double> out{score.savings.skip_ratio, score.savings.block_flops, score.savings.net_flops,
                          score.savings.net_bytes};
  for (const Metric& metric : score.metrics) out.insert(out.end(), {metric.value, metric.error});
  return out;
}
std::vector<double> numbers(const std::vector<SweepPoint>& points) {
  std::vector<double> out;
  const auto add = [&](const SweepScore& score) {
    for (const double number : numbers(score)) out.push_back(number);
  };
  for (const SweepPoint& point : points) {
    add(point.score);
    if (point.random) add(*point.random);
    if (point.shallow) add(*point.shallow);
    for (const SweepScore& draw : point.random_seeds) add(draw);
  }
  return out;
}

TEST(Sweep, EveryPointStandsBesideItsBaselines) {
  const TemporaryFolder folder;
  SweepRig rig;
  const std::vector<SweepPoint> points = rig.sweep(folder.path());
  ASSERT_GE(points.size(), 5u);
  EXPECT_EQ(points[0].kind, PointKind::kDense);
  EXPECT_EQ(points[0].score.savings.skip_ratio, 0);
  EXPECT_EQ(points[0].score.savings.net_bytes, 1);
  EXPECT_FALSE(points[0].random || points[0].shallow);

  // What evaluate() says of the whole task at once.
  const SweepTask& task = rig.plan.tasks[0];
  StoryModel whole(128, 8);
  const TaskResult result = evaluate(whole.feeder, task.task, task.encoded, {});
  for (size_t m = 0; m < result.metrics.size(); ++m) {
    EXPECT_EQ(points[0].score.metrics[m].value, result.metrics[m].value) << result.metrics[m].name;
    EXPECT_EQ(points[0].score.metrics[m].error, result.metrics[m].error);
  }
  for (size_t i = 1; i < 3; ++i) {
    const SweepPoint& point = points[i];
    SCOPED_TRACE(i);
    EXPECT_EQ(point.label, "mine");
    EXPECT_NEAR(point.score.savings.skip_ratio, i == 1 ? 0.2 : 0.3, 0.02);
    ASSERT_TRUE(point.random && point.shallow);
    EXPECT_NEAR(point.random->savings.skip_ratio, point.score.savings.skip_ratio, 0.02);
    ASSERT_EQ(point.random_seeds.size(), 2u);
    EXPECT_NE(numbers(point.random_seeds[0]), numbers(point.random_seeds[1])) << "each seed draws anew";
    EXPECT_NE(numbers(point.random_seeds[0]), numbers(point.score));
    EXPECT_NEAR(point.shallow->savings.net_flops, point.score.savings.net_flops, 1e-12);
  }
  double before = 1;
  for (size_t i = 3; i < points.size(); ++i) {
    EXPECT_EQ(points[i].kind, PointKind::kShallow);
    EXPECT_LT(points[i].score.savings.net_flops, before);
    EXPECT_NEAR(points[i].score.savings.skip_ratio, static_cast<double>(points[i].dropped_units) / 10, 1e-12);
    before = points[i].score.savings.net_flops;
  }
  EXPECT_EQ(rig.run, expected_items(rig.plan) - rig.fewer) << "the bar ends at its end";
}

// Cut anywhere, by any crash, a sweep that goes on ends where it would have ended.
TEST(Sweep, GoesOnFromWhateverIsKept) {
  const TemporaryFolder folder;
  SweepRig rig;
  const std::vector<double> expected = numbers(rig.sweep(folder.path()));  // two chunks in each run
  const std::string whole = file_text(folder.at("items.jsonl"));
  SweepRig other;
  EXPECT_EQ(numbers(other.sweep(folder.path())), expected);
  EXPECT_EQ(other.run, 0) << "all of it was kept";
  EXPECT_EQ(file_text(folder.at("items.jsonl")), whole);
  for (const size_t part : {3, 6}) {
    folder.write("items.jsonl", whole.substr(0, whole.size() * (part - 1) / part));
    SweepRig third;
    EXPECT_EQ(numbers(third.sweep(folder.path())), expected) << part;
    EXPECT_GT(third.run, 0);
    EXPECT_GT(third.kept, 0);
    EXPECT_EQ(third.run + third.kept, rig.run);
  }
}

TEST(Sweep, RefusesToMixWhatDiffers) {
  const TemporaryFolder folder;
  SweepRig(5).sweep(folder.path());
  const auto error = [&](auto&& change) {
    SweepRig rig(5);
    change(rig);
    return error_of([&] { rig.sweep(folder.path()); });
  };
  EXPECT_EQ(error([](SweepRig&) {}), "");
  const auto expect = [&](const std::string& part, auto&& change) {
    const std::string message = error(change);
    EXPECT_NE(message.find("made with another " + part), std::string::npos) << part << ": " << message;
  };
  expect("settings", [](SweepRig& rig) { rig.plan.settings = "other"; });
  expect("adapter or method mine", [](SweepRig& rig) { rig.plan.methods[1].identity = "retrained"; });
  expect("calibration of mine at 0.8",
         [](SweepRig& rig) { rig.plan.methods[1].budgets[0].thresholds[3] = 0.21f; });
  expect("task stories", [](SweepRig& rig) { rig.plan.tasks[0].task.items[2].gold = 3; });
  expect("task stories", [](SweepRig& rig) { rig.plan.tasks[0].encoded.items[4][1].tokens[2] = 7; });
  expect("model of ", [](SweepRig& rig) {
    Tensor& up = rig.story.model.weights.blocks[2].up;
    Tensor changed = Tensor::owned(Device::kCpu, DType::kF32, up.shape());
    std::memcpy(changed.raw(), up.raw(), static_cast<size_t>(up.nbytes()));
    changed.data<float>()[11] += 1;
    up = changed;
  });
  // More of it is no other: what is there serves.
  EXPECT_EQ(error([](SweepRig& rig) { rig.plan.seeds = 3; }), "");
}

// Another order's depths are other runs: none is taken for one of the first order's.
TEST(Sweep, AnotherOrderRunsItsOwnDepths) {
  const TemporaryFolder folder, fresh;
  const std::vector<double> first = numbers(SweepRig().sweep(folder.path()));
  SweepRig rig, alone;
  for (SweepRig* one : {&rig, &alone}) {  // the same kinds of units, a layer further up: the same depths
    for (int32_t& unit : one->plan.drop_order) unit = (unit + 2) % 10;
  }
  const std::vector<double> expected = numbers(alone.sweep(fresh.path()));
  EXPECT_NE(expected, first);
  EXPECT_EQ(numbers(rig.sweep(folder.path())), expected);
  EXPECT_GT(rig.kept, 0) << "dense, the method, random";
}

// Random skipping leaves out what the method protects, and skips as much in all.
TEST(Sweep, RandomProtectsWhatTheMethodProtects) {
  const TemporaryFolder folder;
  SweepRig rig;
  rig.policy = MethodPolicy::from_json(
      R"({"name": "random", "keyed_by": "text", "seed": 77, "rows_kept": 0.5, "protect": [0, 4, 0]})",
      "test");
  rig.plan.methods[1].policy = rig.policy.get();
  rig.plan.methods[1].budgets = {{std::nullopt, {}}};
  rig.plan.shallow = false;
  const std::vector<SweepPoint> points = rig.sweep(folder.path());
  EXPECT_NEAR(points[1].score.savings.skip_ratio, 0.5 * 3 / 5, 0.02);
  ASSERT_TRUE(points[1].random);
  EXPECT_NEAR(points[1].random->savings.skip_ratio, points[1].score.savings.skip_ratio, 0.02);

  // All of the one layer that is left: there is one way to do that.
  const TemporaryFolder other;
  rig.policy = MethodPolicy::from_json(
      R"({"name": "random", "keyed_by": "text", "rows_kept": 0, "protect": [0, 1, 3, 4]})", "test");
  rig.plan.methods[1].policy = rig.policy.get();
  const SweepPoint point = rig.sweep(other.path())[1];
  ASSERT_TRUE(point.random);
  EXPECT_NEAR(point.random->savings.skip_ratio, 0.2, 1e-12);
  for (size_t m = 0; m < point.score.metrics.size(); ++m)
    EXPECT_EQ(point.random_seeds[0].metrics[m].items, point.score.metrics[m].items);
  EXPECT_EQ(point.random_seeds[0].savings.net_flops, point.score.savings.net_flops);
}

// Where the layers that are left have fewer units than were skipped there is nothing to draw.
TEST(Sweep, NoRandomWhereTooMuchIsProtected) {
  const TemporaryFolder folder;
  SweepRig rig(5);
  rig.policy = MethodPolicy::from_json(
      R"({"name": "random", "keyed_by": "text", "rows_kept": 0.2, "protect": [0]})", "test");
  rig.plan.methods[1].policy = rig.policy.get();
  rig.plan.methods[1].budgets = {{std::nullopt, {}}};
  rig.sweep(folder.path());
  rig.policy->options().protect = {0, 1, 2};  // what is kept skipped 0.64 of all units
  rig.run = rig.fewer = rig.kept = 0;
  const std::vector<SweepPoint> points = rig.sweep(folder.path());
  EXPECT_FALSE(points[1].random);
  EXPECT_TRUE(points[1].to_random.empty());
  EXPECT_EQ(rig.run + rig.kept, expected_items(rig.plan) - rig.fewer) << "the bar ends at its end";
}

// Item by item: seeds averaged first, depths between the two.
TEST(Sweep, DifferencesArePaired) {
  const TemporaryFolder folder;
  SweepRig rig;
  const std::vector<SweepPoint> points = rig.sweep(folder.path());
  EXPECT_TRUE(points[0].to_dense.empty());
  for (size_t i = 1; i < points.size(); ++i) {
    const SweepPoint& point = points[i];
    ASSERT_EQ(point.to_dense.size(), point.score.metrics.size());
    EXPECT_EQ(point.to_random.empty(), !point.random);
    EXPECT_EQ(point.to_shallow.empty(), !point.shallow);
    const Metric &own = point.score.metrics[0], &dense = points[0].score.metrics[0];
    ASSERT_EQ(own.items.size(), 20u);
    double sum = 0, squares = 0;
    for (size_t item = 0; item < 20; ++item) {
      const double d = own.items[item] - dense.items[item];
      sum += d, squares += d * d;
    }
    EXPECT_NEAR(point.to_dense[0].value, sum / 20, 1e-12);
    EXPECT_NEAR(point.to_dense[0].error, std::sqrt((squares - sum * sum / 20) / 19 / 20), 1e-12);
    EXPECT_LE(point.to_dense[0].error, std::hypot(own.error, dense.error));
    if (!point.random) continue;
    for (size_t item = 0; item < 20; ++item)
      EXPECT_NEAR(
          point.random->metrics[0].items[item],
          (point.random_seeds[0].metrics[0].items[item] + point.random_seeds[1].metrics[0].items[item]) / 2,
          1e-12);
    EXPECT_NEAR(point.to_random[0].value, own.value - point.random->metrics[0].value, 1e-12);
    EXPECT_NEAR(point.to_shallow[0].value, own.value - point.shallow->metrics[0].value, 1e-12);
    EXPECT_FALSE(std::isnan(point.to_random[0].error) || std::isnan(point.to_shallow[0].error));
  }
}

TEST(Sweep, CancelledItSaysSo) {
  const TemporaryFolder folder;
  SweepRig rig(5);
  const std::atomic<bool> cancel{true};
  rig.plan.runner.cancel = &cancel;
  SweepCache cache(folder.path());
  EXPECT_FALSE(sweep(rig.plan, cache).has_value());
}

// Dense models of other sizes serve as the shallower ones; FLOPs are the first model's.
TEST(Sweep, DenseModelsThatWereNamed) {
  const TemporaryFolder folder;
  SweepRig rig(5);
  StoryModel small;
  small.model.config.layers = 2;
  small.model.weights.blocks.resize(2);
  small.model.config.windows.resize(2);
  const SweepModel other{small.ctx, small.model};
  rig.plan.drop_order.clear();
  rig.plan.methods.push_back({.label = "two layers", .model = other, .budgets = {{std::nullopt, {}}}});
  const std::vector<SweepPoint> points = rig.sweep(folder.path());
  ASSERT_EQ(points.size(), 4u);
  const Savings& two = points[3].score.savings;
  EXPECT_EQ(two.skip_ratio, 0);
  EXPECT_GT(two.net_flops, 0.4);
  EXPECT_LT(two.net_flops, 0.8) << "two of five blocks, and the output matrix";
  ASSERT_TRUE(points[1].shallow);
  EXPECT_NEAR(points[1].shallow->savings.net_flops, points[1].score.savings.net_flops, 1e-12);
}

TEST(Sweep, BetweenAndMean) {
  SweepScore a, b;
  a.metrics = {{"acc", 0.4, 0.1}};
  b.metrics = {{"acc", 0.2, 0.2}};
  a.savings.net_flops = 1;
  b.savings.net_flops = 0.5;
  const SweepScore middle = between(a, b, 0.25);
  EXPECT_NEAR(middle.metrics[0].value, 0.35, 1e-12);
  EXPECT_NEAR(middle.metrics[0].error, 0.125, 1e-12);
  EXPECT_NEAR(middle.savings.net_flops, 0.875, 1e-12);
  const SweepScore mean = mean_of(std::vector<SweepScore>{a, b});
  EXPECT_NEAR(mean.metrics[0].value, 0.3, 1e-12);
  // Items: (0.01 + 0.04) / 2. Draws: the variance 0.02 of two, over 2.
  EXPECT_NEAR(mean.metrics[0].error, std::sqrt(0.025 + 0.01), 1e-12);
  EXPECT_NEAR(mean.savings.net_flops, 0.75, 1e-12);
  a.metrics[0].error = NAN;
  EXPECT_TRUE(std::isnan(mean_of(std::vector<SweepScore>{a}).metrics[0].error));
}

}  // namespace
}  // namespace fathom
