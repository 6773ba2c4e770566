#include "skip/measurements.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "skip/harm_order.h"
#include "skip/tiny_model_test.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

class Kept : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = (fs::temp_directory_path() /
               ("fathom-kept-" + std::string(info->name()) + "-" + std::to_string(getpid())))
                  .string();
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<std::string> files() const {
    std::vector<std::string> all;
    if (!fs::exists(folder_)) return all;
    for (const auto& entry : fs::directory_iterator(folder_)) all.push_back(entry.path().string());
    return all;
  }

  // What a method measures with this folder, and the multiply-adds that it took.
  uint64_t work(const char* json, const Rows& rows, const std::function<void(Model&)>& change = {}) {
    Rig rig(R"({"name": "dense"})");
    if (change) change(rig.model);
    const ArenaScope scope(rig.ctx);
    const std::vector<Batch> batches{make_batch(rig.ctx, rows)};
    Measurements kept(rig.ctx, folder_, rig.model, batches);
    const auto policy = MethodPolicy::from_json(json, "test");
    policy->initialise(rig.model.config, 7);
    const uint64_t before = rig.ctx.counters().total().madds;
    policy->prepare(rig.ctx, rig.model, batches, true, nullptr, &kept);
    json_ = policy->to_json();
    EXPECT_EQ(kept.measured(), rig.ctx.counters().total().madds > before);
    return rig.ctx.counters().total().madds - before;
  }

  const Rows rows_ = random_rows({12, 9});
  std::string folder_, json_;
};

constexpr const char* kOrder = R"({"name": "harm_order"})";

TEST_F(Kept, TheSameModelOnTheSameTextIsMeasuredOnce) {
  for (const char* json :
       {kOrder, R"({"name": "attention_drop", "count": 1})", R"({"name": "short_gpt", "count": 1})"}) {
    EXPECT_GT(work(json, rows_), 0u) << json;
    const std::string first = json_;
    EXPECT_EQ(work(json, rows_), 0u) << json;
    EXPECT_EQ(json_, first);
  }
  ASSERT_EQ(files().size(), 1u);
  // Of one measurement any length of list.
  EXPECT_EQ(work(R"({"name": "harm_order", "kept": 0.5, "cost_context": 7})", rows_), 0u);
  EXPECT_EQ(work(R"({"name": "short_gpt", "count": 2})", rows_), 0u);
  // Priced routers begin from the same harm.
  EXPECT_EQ(work(R"({"name": "priced", "init": "harm_order"})", rows_), 0u);
}

TEST_F(Kept, AnotherModelOrTextIsMeasured) {
  EXPECT_GT(work(kOrder, rows_), 0u);
  Rows other = rows_;
  other[3].token ^= 1;
  EXPECT_GT(work(kOrder, other), 0u) << "another token";
  other = rows_;
  other[3].wants_logits = false;
  EXPECT_GT(work(kOrder, other), 0u) << "a row whose output nobody reads";
  other = rows_;
  other.resize(12);
  EXPECT_GT(work(kOrder, other), 0u) << "less of it";
  EXPECT_GT(work(kOrder, rows_, [](Model& model) { model.weights.blocks[2].up.data<float>()[11] += 1; }), 0u)
      << "another weight";
  EXPECT_EQ(files().size(), 5u);
  EXPECT_EQ(work(kOrder, rows_), 0u) << "the first one is still there";
}

// A greedy search begins with the plain one's measurement, and goes on where it was stopped.
TEST_F(Kept, AStoppedSearchGoesOn) {
  constexpr const char* kGreedy = R"({"name": "harm_order", "search": "greedily", "greedy_until": 0.3})";
  const uint64_t whole = work(kGreedy, rows_);
  const std::string order = json_;
  const std::string file = files().at(0);
  // As if it had been stopped before the last measurement, which has the longest name.
  std::ifstream in(file);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  size_t last = 0, length = 0;
  for (size_t at = text.find("\"harm"); at != std::string::npos; at = text.find("\"harm", at + 1)) {
    const size_t size = text.find('"', at + 1) - at;
    if (size > length) last = at, length = size;
  }
  text.replace(last + 1, 4, "else");
  std::ofstream(file) << text;
  const uint64_t rest = work(kGreedy, rows_);
  EXPECT_GT(rest, 0u);
  EXPECT_LT(2 * rest, whole);
  EXPECT_EQ(json_, order);
  EXPECT_EQ(work(kOrder, rows_), 0u);
}

TEST_F(Kept, ADamagedFileIsMeasuredAnew) {
  const uint64_t first = work(kOrder, rows_);
  const std::string order = json_, file = files().at(0);
  std::ifstream in(file);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("[1, 2]"), std::string("\xff\x00", 2),
        std::string(100000, '['), with("\"harm\":[", "\"harm\":[1,"), with("\"harm\":[", "\"harm\":[\"x\","),
        with("\"values\":{", "\"values\":[],\"more\":{"), with("\"version\":1", "\"version\":2"),
        with("\"key\":\"", "\"key\":\"x")}) {
    std::ofstream(file) << text;
    EXPECT_EQ(work(kOrder, rows_), first) << text.substr(0, 80);
    EXPECT_EQ(json_, order);
    std::ifstream again(file);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(again), {}), whole);
  }
}

TEST_F(Kept, ValuesComeBackAsTheyWere) {
  Rig rig(R"({"name": "dense"})");
  const std::vector<Batch> batches{make_batch(rig.ctx, rows_)};
  const std::vector<double> values{1.0 / 3, 0, -1e-300, 5e300, NAN, 0.1 + 0.2};
  const auto never = [&]() -> std::vector<double> {
    ADD_FAILURE() << "measured";
    return {};
  };
  Measurements(rig.ctx, folder_, rig.model, batches).get("x", values.size(), [&] { return values; });
  const std::vector<double> back = Measurements(rig.ctx, folder_, rig.model, batches).get("x", 6, never);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(back[i] == values[i] || (std::isnan(back[i]) && std::isnan(values[i]))) << i;
  }
}

// A cache that cannot be written costs time, and nothing else.
TEST_F(Kept, AFolderThatCannotBeMadeIsNoError) {
  std::ofstream(folder_) << "a file";
  EXPECT_GT(work(kOrder, rows_), 0u);
  const std::string order = json_;
  EXPECT_GT(work(kOrder, rows_), 0u);
  EXPECT_EQ(json_, order);
}

TEST_F(Kept, WithoutAPlaceItIsMeasured) {
  int times = 0;
  const auto measure = [&] {
    ++times;
    return std::vector<double>{1};
  };
  kept_or_measured(nullptr, "x", 1, measure);
  kept_or_measured(nullptr, "x", 1, measure);
  EXPECT_EQ(times, 2);
}

}  // namespace
}  // namespace fathom
