#include <fmt/format.h>
#include <gtest/gtest.h>

#include "model/flops.h"
#include "skip/tiny_model_test.h"

namespace fathom {
namespace {

std::vector<int> dropped(Rig& rig, const PassOptions& options = {}) {
  const Seen seen = rig.fresh(random_rows({7, 5}), options);
  std::vector<int> units;
  for (size_t unit = 0; unit < seen.kept.size(); ++unit) {
    const auto ran = std::count(seen.kept[unit].begin(), seen.kept[unit].end(), 1);
    EXPECT_TRUE(ran == 0 || ran == 12);
    if (ran == 0) units.push_back(static_cast<int>(unit));
  }
  return units;
}

// A branch that is made small changes its input little: it must be the one that goes.
void weaken(Tensor& weight, float factor) {
  for (int64_t i = 0; i < weight.numel(); ++i) weight.data<float>()[i] *= factor;
}

void prepare_again(Rig& rig) {
  const ArenaScope scope(rig.ctx);
  const std::vector<Batch> batches{make_batch(rig.ctx, random_rows({20, 11}, 4))};
  rig.policy->prepare(rig.ctx, rig.model, batches);
}

using List = std::vector<int>;

// A Rig is prepared as it is made; an explicit empty list makes the policy choose again after the weights
// changed.
struct Weakened : Rig {
  explicit Weakened(const std::string& json) : Rig(R"({"name": "dense"})") {
    weaken(model.weights.blocks[2].o, 1e-3f);  // attention of 2
    weaken(model.weights.blocks[1].o, 1e-2f);  // block 1
    weaken(model.weights.blocks[1].down, 1e-2f);
    policy = MethodPolicy::from_json(json, "test");
    policy->check(model.config);
    prepare_again(*this);
  }
};

TEST(AttentionDrop, DropsWhatChangesItsInputLeast) {
  Weakened one(R"({"name": "attention_drop", "count": 1})"), two(R"({"name": "attention_drop", "count": 2})"),
      share(R"({"name": "attention_drop"})"), half(R"({"name": "attention_drop", "drop_share": 0.5})"),
      guarded(R"({"name": "attention_drop", "count": 1, "protect": [2]})");
  EXPECT_EQ(dropped(one), (List{4}));
  EXPECT_EQ(dropped(two), (List{2, 4}));
  EXPECT_EQ(dropped(share), (List{4}));  // a quarter of four layers
  EXPECT_EQ(dropped(half), (List{2, 4}));
  EXPECT_EQ(dropped(guarded), (List{2}));
}

TEST(ShortGpt, DropsBlocksOfLeastInfluence) {
  Weakened one(R"({"name": "short_gpt"})"), guarded(R"({"name": "short_gpt", "protect": [1]})"),
      two(R"({"name": "short_gpt", "count": 2})");
  EXPECT_EQ(dropped(one), (List{2, 3}));
  EXPECT_NE(dropped(guarded), (List{2, 3}));
  EXPECT_EQ(dropped(two).size(), 4u);
}

TEST(StaticDrop, AListThatIsGivenStays) {
  for (const char* name : {"attention_drop", "short_gpt", "harm_order"}) {
    Rig rig(std::string(R"({"name": ")") + name + R"(", "drop": [1, 6]})");
    EXPECT_EQ(dropped(rig), (List{1, 6})) << name;
    EXPECT_NE(rig.policy->to_json().find("\"drop\""), std::string::npos);
    // What was chosen is stored with the rest.
    const auto again = MethodPolicy::from_json(rig.policy->to_json(), "again");
    EXPECT_EQ(again->to_json(), rig.policy->to_json());
    EXPECT_THROW(Rig(std::string(R"({"name": ")") + name + R"(", "drop": [8]})"), UserError);
    EXPECT_THROW(Rig(std::string(R"({"name": ")") + name + R"(", "drop": [-1]})"), UserError);
  }
  EXPECT_THROW(Rig(R"({"name": "short_gpt", "count": 5})"), UserError);
  EXPECT_THROW(Rig(R"({"name": "short_gpt", "drop_share": 1.5})"), UserError);
  EXPECT_THROW(Rig(R"({"name": "harm_order", "kept": 2})"), UserError);
  EXPECT_THROW(Rig(R"({"name": "harm_order", "order": [9]})"), UserError);
}

// Dropping whole blocks from the end is a shallower model, bit for bit.
TEST(StaticDrop, DroppedBlocksAreAShallowerModel) {
  Rig rig(R"({"name": "short_gpt", "drop": [4, 5, 6, 7]})");
  Rig dense(R"({"name": "dense"})");
  dense.model.config.layers = 2;
  dense.model.config.windows.resize(2);
  dense.model.weights.blocks.resize(2);
  const Rows rows = random_rows({9, 4});
  const Seen ours = rig.fresh(rows), theirs = dense.fresh(rows);
  EXPECT_EQ(ours.logits, theirs.logits);
  EXPECT_EQ(ours.work.madds, theirs.work.madds);  // their keys and values are not even projected
}

TEST(HarmOrderDrop, DropsUntilTheShareIsLeft) {
  const std::string order = R"("order": [3, 6, 1, 0, 2, 4, 5, 7], "cost_context": 16)";
  // Attention 2 · 32 · 32 + 2 · 32 · 16 + 2 · 16 · 32 = 4096, FFN 3840: together 31744.
  Rig light(R"({"name": "harm_order", "kept": 0.9, )" + order + "}"),
      none(R"({"name": "harm_order", "kept": 1, )" + order + "}"),
      half(R"({"name": "harm_order", "kept": 0.5, )" + order + "}"),
      projected(R"({"name": "harm_order", "kept": 0.5, "counted_kv": "project", )" + order + "}"),
      longer(R"({"name": "harm_order", "kept": 0.9, "order": [3, 6, 1, 0, 2, 4, 5, 7]})");
  EXPECT_EQ(dropped(none), (List{}));
  EXPECT_EQ(dropped(light), (List{3}));                  // 27904 left: 0.879
  EXPECT_EQ(dropped(half), (List{0, 1, 3, 6}));          // 15872: 0.5
  EXPECT_EQ(dropped(projected), (List{0, 1, 2, 3, 6}));  // 17920 after four
  EXPECT_EQ(dropped(longer), (List{3, 6}));              // long contexts make attention dear
  EXPECT_EQ(dropped(none, {.training = true, .share = 0.9f}), (List{3}));
  Rig found(R"({"name": "harm_order", "kept": 0.7})");  // prepared on text
  EXPECT_FALSE(dropped(found).empty());
}

// In a cache a dropped attention unit holds nothing.
TEST(StaticDrop, NoEntriesWhereNobodyLooks) {
  Rig rig(R"({"name": "attention_drop", "drop": [2]})");
  TinyRun session(rig, 1);
  session.pass(random_rows({10}));
  EXPECT_EQ(session.cache().layer(0).lengths.data<int32_t>()[0], 10);
  EXPECT_EQ(session.cache().layer(1).lengths.data<int32_t>()[0], 0);
}

// A sequence at a budget drops the units that `kept` would drop, and so runs the same bits; each sequence of
// a pass has its own budget.
TEST(HarmOrder, BudgetsAreTakenFromTheListWithoutATable) {
  const std::string order = R"("order": [4, 7, 2, 5, 6, 3, 1, 0], "protect": [0]})";
  Rig all(R"({"name": "harm_order", "kept": 1, )" + order);
  const UnitList list = all.policy->list(all.model.config);
  EXPECT_EQ(list.order, (std::vector<int32_t>{4, 7, 2, 5, 6, 3})) << "layer 0 always runs";
  EXPECT_TRUE(std::is_sorted(list.left.rbegin(), list.left.rend()));
  const Rows rows = random_rows({9, 4});
  for (const char* kept : {"1", "0.9", "0.7", "0.5"}) {
    Rig fixed(R"({"name": "harm_order", "kept": )" + std::string(kept) + ", " + order);
    all.thresholds = list.thresholds(std::stod(kept), 8);
    const Seen want = fixed.fresh(rows), got = all.fresh(rows);
    EXPECT_EQ(got.kept, want.kept) << kept;
    EXPECT_EQ(got.logits, want.logits) << kept;
    EXPECT_EQ(got.work.madds, want.work.madds) << kept;
    EXPECT_EQ(TinyRun(all, 2).pass(rows).logits, TinyRun(fixed, 2).pass(rows).logits) << kept;
  }
  EXPECT_TRUE(Rig(R"({"name": "harm_order", "drop": [3]})").policy->list(all.model.config).order.empty());
  const auto early =
      MethodPolicy::from_json(R"({"name": "harm_order", "order": [4, 0, 7], "protect": [0]})", "t");
  try {
    early->check(all.model.config);
    ADD_FAILURE() << "a protected unit that is not last";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "harm_order: order must name the units of protected layers last, got 7 after one of them");
  }
}

// What a list says is left is what runs, protected layers or not.
TEST(HarmOrder, AllOfAListLeavesWhatItSays) {
  for (const char* protect : {"", R"(, "protect": [0, 2])"}) {
    Rig rig(fmt::format(
        R"({{"name": "harm_order", "kept": 1, "cost_context": 9, "order": [2, 3, 6, 7, 4, 5, 0, 1]{}}})",
        protect));
    const UnitList list = rig.policy->list(rig.model.config);
    ASSERT_EQ(list.order.size(), *protect ? 4u : 8u);
    const Rows rows = random_rows({9});
    const auto madds = [&](size_t dropped) {
      rig.thresholds = list.without(dropped, 8);
      return static_cast<double>(rig.fresh(rows).work.madds);
    };
    const auto blocks = static_cast<double>(dense_work(rig.model.config, rows).block_madds);
    for (const size_t dropped : {size_t{2}, list.order.size()}) {
      EXPECT_NEAR(1 - (madds(0) - madds(dropped)) / blocks, list.left[dropped - 1], 0.02)
          << dropped << protect;
    }
  }
}

}  // namespace
}  // namespace fathom
