// Nested lists: one decision a row, prices, the head that learns what a list costs a row.
#include <gtest/gtest.h>

#include "model/flops.h"
#include "skip/methods.h"
#include "skip/running_means.h"
#include "skip/training_test.h"

namespace fathom {
namespace {

const std::string kOrder = R"(, "cost_context": 16, "order": [5, 2, 6, 3, 4, 7])";

std::string nested_config(const std::string& more) {
  return R"({"name": "nested")" + kOrder + (more.empty() ? "" : ", ") + more + "}";
}

std::string nested_refusal(const std::string& more) {
  try {
    MethodPolicy::from_json(R"({"name": "nested", )" + more + "}", "test")->check(tiny_config());
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Nested, ValuesThatMakeNoSense) {
  EXPECT_EQ(nested_refusal(R"("lists": [0.9, 0.9])"),
            "nested: lists must be shares that fall from below 1 and stay above 0, got 0.9 after 0.9");
  EXPECT_EQ(nested_refusal(R"("lists": [])"), "nested: lists must have from 1 to 32 shares, got 0");
  EXPECT_EQ(nested_refusal(R"("layer": 4)"), "nested: layer must be from 0 to 3, got 4");
  EXPECT_EQ(nested_refusal(R"("alpha": 1.5)"), "nested: alpha must be between 0 and 1, got 1.5");
  EXPECT_EQ(nested_refusal(R"("band": -1)"), "nested: band must be 0 or more, got -1");
  EXPECT_EQ(nested_refusal(R"("regression_rows": 0)"), "nested: regression_rows must be at least 1, got 0");
  EXPECT_EQ(nested_refusal(R"("order": [1])"), "nested: order must name units from 2 to 7, got 1");
  EXPECT_EQ(nested_refusal(R"("order": [5, 5])"), "nested: order must name a unit once, got 5 twice");
  EXPECT_EQ(nested_refusal(R"("order": [5, 2])"), "");
}

// The list of each row: how many units of the order it leaves out, which must be the first ones.
std::vector<int> dropped(const Seen& seen, const std::vector<int>& order) {
  std::vector<int> counts;
  for (size_t r = 0; r < seen.kept[0].size(); ++r) {
    int count = 0;
    bool ended = false;
    for (const int unit : order) {
      const bool gone = !seen.kept[static_cast<size_t>(unit)][r];
      EXPECT_FALSE(gone && ended) << "row " << r << " runs unit " << unit << "'s predecessor and not it";
      ended = ended || !gone;
      count += gone;
    }
    counts.push_back(count);
  }
  return counts;
}

// Every row leaves out a beginning of the order, however the head decides; one price for all units.
TEST(Nested, RowsTakeListsOfOneOrder) {
  for (const char* more : {R"("band": 0)", R"("band": 1)", R"("choice": "random")", R"("alpha": 0.4)",
                           R"("centre_block": 4)", R"("protect_rows": 3)"}) {
    Rig rig(nested_config(more));
    std::map<int, int> lists;
    for (const float price : {-1.0f, 0.2f, 0.6f, 1.1f, 2.3f}) {
      rig.thresholds.assign(8, price);
      const Seen seen = rig.fresh(random_rows({40, 30}, 99));
      for (const int count : dropped(seen, {5, 2, 6, 3, 4, 7})) ++lists[count];
    }
    EXPECT_GT(lists.size(), 2u) << more;
  }
}

TEST(Nested, FirstRowsRunEverything) {
  Rig rig(nested_config(R"("protect_rows": 3)"));
  rig.thresholds.assign(8, 1e19f);
  const Rows rows = random_rows({9, 2});
  const Seen seen = rig.fresh(rows);
  for (size_t r = 0; r < rows.size(); ++r) {
    EXPECT_EQ(seen.kept[5][r], rows[r].position < 3) << r;
    EXPECT_EQ(seen.kept[0][r], 1);
  }
}

TEST(Nested, FirstRowsRunEverythingWithAFixedListToo) {
  Rig rig(nested_config(R"("choice": "fixed", "protect_rows": 3)"));
  rig.thresholds = rig.policy->list(rig.model.config).thresholds(0.7, 8);
  const Rows rows = random_rows({9, 2});
  const Seen seen = rig.fresh(rows);
  for (size_t r = 0; r < rows.size(); ++r) EXPECT_EQ(seen.kept[5][r], rows[r].position < 3) << r;
}

// At alpha 0 every row is the mean row, as with the fixed choice.
TEST(Nested, WithoutTheRowsPartAllAreAlike) {
  for (const char* more : {R"("alpha": 0)", R"("choice": "fixed")"}) {
    Rig rig(nested_config(more));
    for (const auto& scores : rig.fresh(random_rows({20, 7})).scores) {
      for (const float score : scores) EXPECT_EQ(score, scores[0]) << more;
    }
  }
}

TEST(Nested, AFixedListNeedsNoTable) {
  Rig rig(nested_config(R"("choice": "fixed")"));
  const UnitList list = rig.policy->list(rig.model.config);
  ASSERT_EQ(list.order.size(), 6u);
  rig.thresholds = list.thresholds(0.7, 8);
  const Seen seen = rig.fresh(random_rows({40}));
  const double dense = static_cast<double>(dense_work(rig.model.config, random_rows({40})).block_madds);
  EXPECT_LT(static_cast<double>(seen.work.madds - seen.work.policy_madds) / dense, 1.05);  // with the output
  EXPECT_EQ(dropped(seen, {5, 2, 6, 3, 4, 7}), std::vector<int>(40, dropped(seen, {5, 2, 6, 3, 4, 7})[0]));
  EXPECT_TRUE(Rig(nested_config("")).policy->list(rig.model.config).order.empty());
}

// By chance, rows take the two lists nearest to the price.
TEST(Nested, TheRandomChoiceTakesTwoNeighbours) {
  Rig rig(nested_config(R"("choice": "random")"));
  rig.thresholds.assign(8, 1.4f);
  std::map<int, int> lists;
  for (const int count : dropped(rig.fresh(random_rows({100, 100})), {5, 2, 6, 3, 4, 7})) ++lists[count];
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_NEAR(std::next(lists.begin())->second, 80, 25);
}

// A unit that no row of a sequence runs holds no keys and values for it; its neighbour's stay.
TEST(Nested, WhatNoRowRunsHoldsNoKeys) {
  Rig rig(nested_config(R"("lists": [0.9, 0.8, 0.6])"));
  const Rows rows = random_rows({10, 12});
  TinyRun session(rig, 2);
  session.state().set_thresholds(rig.ctx, 0, std::vector<float>(8, 1e10f));
  session.state().set_thresholds(rig.ctx, 1, std::vector<float>(8, -INFINITY));
  const Seen together = session.pass(rows);
  std::vector<int32_t> lengths(2);
  copy_to_host(rig.ctx, session.cache().layer(1).lengths, lengths);  // unit 2 is on the first lists
  EXPECT_EQ(lengths, (std::vector<int32_t>{0, 12}));
  copy_to_host(rig.ctx, session.cache().layer(0).lengths, lengths);
  EXPECT_EQ(lengths, (std::vector<int32_t>{10, 12}));
  const Seen masked = rig.fresh(rows, {.masked = true});
  EXPECT_EQ(masked.logits.size(), together.logits.size());
}

// Training draws lists for sequences and for rows, near the step's share.
TEST(Nested, TrainingDrawsListsForSequencesAndRows) {
  const auto lists = [](const std::string& more, float share, int64_t step) {
    Rig rig(nested_config(more));
    TinyTrainer trainer(rig);
    const PassOptions options{.share = share, .step = step};
    return dropped(trainer.run(random_rows({12, 12, 12, 12}), options, false).seen, {5, 2, 6, 3, 4, 7});
  };
  const auto differ = [](const std::vector<int>& all, size_t begin, size_t end) {
    return std::any_of(all.begin() + static_cast<ptrdiff_t>(begin), all.begin() + static_cast<ptrdiff_t>(end),
                       [&](int one) { return one != all[begin]; });
  };
  EXPECT_FALSE(differ(lists(R"("sequence_spread": 0, "row_spread": 0)", 0.8f, 0), 0, 48));
  const std::vector<int> sequences = lists(R"("sequence_spread": 1, "row_spread": 0)", 0.8f, 0);
  for (size_t s = 0; s < 4; ++s) EXPECT_FALSE(differ(sequences, 12 * s, 12 * s + 12));
  EXPECT_TRUE(differ(sequences, 0, 48));
  EXPECT_TRUE(differ(lists(R"("sequence_spread": 0, "row_spread": 1)", 0.8f, 0), 0, 12));
  EXPECT_NE(lists("", 0.8f, 0), lists("", 0.8f, 1));
  EXPECT_EQ(lists("", 1.0f, 0), std::vector<int>(48, 0));
}

// The head's loss is a function of the head alone: its gradients are its differences, and the model has none
// of it.
TEST(Nested, TheHeadsGradientsAreDifferences) {
  const Rows rows = random_rows({7, 5, 9});
  Rig rig(nested_config(R"("regression_rows": 15)")), without(nested_config(R"("head_weight": 0)"));
  TinyTrainer trainer(rig), other(without);
  const PassOptions options{.share = 0.7f};
  const Trained base = trainer.run(rows, options), none = other.run(rows, options);
  const auto loss = [&] { return trainer.run(rows, options, false).loss; };
  expect_differences(trainer, base.gradients, loss, trainer.backbone());
  double size = 0;
  for (size_t i = trainer.backbone(); i < trainer.size(); ++i) {
    for (const float g : base.gradients[i]) size += std::abs(static_cast<double>(g));
  }
  EXPECT_GT(size, 0.01);
  for (size_t i = 0; i < trainer.backbone(); ++i) EXPECT_EQ(base.gradients[i], none.gradients[i]) << i;
}

double kl(const float* p, const float* q, size_t vocab) {
  const auto log_sum = [&](const float* x) {
    double sum = 0;
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(x[i]));
    return std::log(sum);
  };
  const double zp = log_sum(p), zq = log_sum(q);
  double sum = 0;
  for (size_t i = 0; i < vocab; ++i)
    sum += std::exp(static_cast<double>(p[i]) - zp) *
           ((static_cast<double>(p[i]) - zp) - (static_cast<double>(q[i]) - zq));
  return sum;
}

// What rows lose at one price for all, and the share of the blocks' work that ran.
struct Loss {
  std::vector<double> rows;
  double beta = 0;
  double mean() const {
    double sum = 0;
    for (const double one : rows) sum += one;
    return sum / static_cast<double>(rows.size());
  }
};

Loss loss_at(Rig& rig, const Rows& rows, float price) {
  rig.thresholds.clear();
  const Seen full = rig.fresh(rows);
  rig.thresholds.assign(8, price);
  const Seen less = rig.fresh(rows);
  const size_t vocab = full.logits.size() / rows.size();
  Loss loss;
  for (size_t r = 0; r < rows.size(); ++r)
    loss.rows.push_back(kl(full.logits.data() + r * vocab, less.logits.data() + r * vocab, vocab));
  const auto work = [](const Seen& seen) {
    return static_cast<double>(seen.work.madds - seen.work.policy_madds);
  };
  loss.beta = work(less) / work(full);
  return loss;
}

// The price at which that share runs, nearly.
Loss loss_at_share(Rig& rig, const Rows& rows, double share) {
  float low = -50, high = 200;
  for (int i = 0; i < 24; ++i) {
    const float middle = (low + high) / 2;
    (loss_at(rig, rows, middle).beta > share ? low : high) = middle;
  }
  return loss_at(rig, rows, high);
}

double correlation(const std::vector<double>& a, const std::vector<float>& b) {
  const auto n = static_cast<double>(a.size());
  double sa = 0, sb = 0, aa = 0, bb = 0, ab = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto y = static_cast<double>(b[i]);
    sa += a[i], sb += y, aa += a[i] * a[i], bb += y * y, ab += a[i] * y;
  }
  return (ab - sa * sb / n) / std::sqrt((aa - sa * sa / n) * (bb - sb * sb / n));
}

std::vector<int> lengths(int count) {
  return std::vector<int>(static_cast<size_t>(count), 24);
}

// The FFNs above the first layer answer to one number of a row, which every third token has: who leaves them
// out loses much there and nothing elsewhere.
void make_some_tokens_hard(Rig& rig) {
  const ModelConfig& c = rig.model.config;
  float* embedding = rig.model.weights.embedding.data<float>();
  for (int64_t token = 0; token < c.vocab; ++token) embedding[token * c.width] = token % 3 == 0 ? 2.5f : 0.0f;
  for (BlockWeights& block : rig.model.weights.blocks) {
    for (int64_t i = 0; i < c.ffn_width * c.width; ++i) block.up.data<float>()[i] *= i % c.width == 0 ? 4 : 0;
    for (Tensor* out : {&block.o, &block.down}) {  // nothing else writes to it
      for (int64_t i = 0; i < out->dim(1); ++i) out->data<float>()[i] = 0;
    }
  }
}

const std::string kFfns = R"({"name": "nested", "cost_context": 16, "order": [5, 3, 7], "band": 0, )";

void fit_lists(Rig& rig) {
  const ArenaScope scope(rig.ctx);
  std::vector<Batch> batches;
  for (uint64_t seed = 200; seed < 206; ++seed)
    batches.push_back(make_batch(rig.ctx, random_rows(lengths(12), seed)));
  for (const std::string& said : rig.policy->finish(rig.ctx, rig.model, batches))
    EXPECT_NE(said.find("mean KL of each list on 1728 rows"), std::string::npos) << said;
}

// On rows that it has not seen, the head foresees what a list costs them, and at the same work its choice
// costs less than chance's.
TEST(Nested, TheHeadForeseesLosses) {
  const Rows held_out = random_rows(lengths(20), 77);
  Rig single(kFfns + R"("ridge": 0.001, "lists": [0.7]})");
  make_some_tokens_hard(single);
  fit_lists(single);
  const std::vector<float> foreseen = single.fresh(held_out).scores[5];  // with one list: loss over cost
  EXPECT_GT(correlation(loss_at(single, held_out, 1e10f).rows, foreseen), 0.6);

  Rig rig(kFfns + R"("ridge": 0.001, "lists": [0.85, 0.7]})"),
      random(kFfns + R"("choice": "random", "lists": [0.85, 0.7]})");
  make_some_tokens_hard(rig);
  make_some_tokens_hard(random);
  fit_lists(rig);
  for (const double share : {0.9, 0.8}) {
    const Loss head = loss_at_share(rig, held_out, share), chance = loss_at_share(random, held_out, share);
    EXPECT_NEAR(head.beta, chance.beta, 0.02);
    EXPECT_LT(head.mean(), 0.5 * chance.mean()) << share;
  }
}

// Steps along the regression's gradient teach the head the same.
TEST(Nested, TrainingTeachesTheHead) {
  Rig rig(kFfns + R"("lists": [0.7], "sequence_spread": 0, "row_spread": 0})", Shaped::kLlama, 0.0f);
  make_some_tokens_hard(rig);
  TinyTrainer trainer(rig);
  const Rows text = random_rows(lengths(8), 300), held_out = random_rows(lengths(20), 77);
  const PassOptions options{.share = 0.6f};
  const double before = trainer.run(text, options, false).loss;
  for (int step = 0; step < 60; ++step) {
    const Trained trained = trainer.run(text, options);
    for (size_t i = trainer.backbone(); i < trainer.size(); ++i) {
      for (int64_t j = 0; j < trainer.value(i).numel(); ++j)
        trainer.value(i).data<float>()[j] -= 0.02f * trained.gradients[i][static_cast<size_t>(j)];
    }
  }
  EXPECT_LT(trainer.run(text, options, false).loss, before);
  const std::vector<float> foreseen = rig.fresh(held_out).scores[5];
  EXPECT_GT(correlation(loss_at(rig, held_out, 1e10f).rows, foreseen), 0.5);
}

// Lists and the mean row's losses are measured where the recipe says so.
TEST(Nested, PreparingFindsTheOrderAndTheMeanRow) {
  Rig rig(R"({"name": "nested", "init": "harm_order", "protect": [3], "lists": [0.9, 0.7]})", Shaped::kLlama,
          0.0f);
  const std::string json = rig.policy->to_json();
  EXPECT_EQ(json.find("\"order\": []"), std::string::npos) << json;
  for (const char* protected_unit : {" 0,", " 1,", " 6,", " 7,"})
    EXPECT_EQ(json.substr(json.find("\"order\"")).find(protected_unit), std::string::npos) << json;
  const std::vector<float> scores = rig.fresh(random_rows({9})).scores[2].empty()
                                        ? rig.fresh(random_rows({9})).scores[3]
                                        : rig.fresh(random_rows({9})).scores[2];
  ASSERT_FALSE(scores.empty());
  EXPECT_GT(scores[0], 0.0f);  // a price: leaving out something costs something
}

TEST(RunningMeans, AreThoseOfWholeBlocksBefore) {
  RunningMeans means;
  means.set_size(1, 4, 100);
  const auto centred = [&](int32_t sequence, int64_t position, float value) {
    means.centre(sequence, position, std::span(&value, 1));
    return value;
  };
  for (int i = 0; i < 4; ++i) EXPECT_EQ(centred(1, i, static_cast<float>(i)), static_cast<float>(i));
  EXPECT_EQ(centred(1, 4, 10), 10 - 1.5f);
  EXPECT_EQ(centred(1, 5, 2), 2 - 1.5f);
  means.fork(1, 0, 5);
  means.truncate(1, 3);
  EXPECT_EQ(centred(1, 3, 11), 11);
  EXPECT_EQ(centred(1, 4, 10), 10 - 3.5f);
  EXPECT_EQ(centred(0, 5, 2), 2 - 1.5f);
  EXPECT_EQ(centred(0, 5, 2), 2 - 1.5f);  // again
  EXPECT_THROW(centred(0, 9, 2), UserError);
}

}  // namespace
}  // namespace fathom
