#include <fmt/format.h>

#include "skip/training_test.h"

namespace fathom {
namespace {

void set(Rig& rig, const std::string& suffix, float value) {
  for (const MethodParameter& parameter : rig.policy->parameters(rig.model.config)) {
    if (parameter.name.ends_with(suffix))
      std::fill_n(parameter.tensor->data<float>(), parameter.tensor->numel(), value);
  }
}

TEST(MixtureOfDepths, TrainingKeepsTheBestOfEachSequence) {
  Rig rig(R"({"name": "mixture_of_depths"})");
  TinyTrainer trainer(rig);
  const Rows rows = random_rows({10, 1, 7});
  for (const float share : {1.0f, 0.5f, 0.25f, 0.01f}) {
    const Seen seen = trainer.run(rows, {.share = share}, false).seen;
    for (size_t unit = 0; unit < 8; ++unit) {
      for (int32_t s = 0; s < 3; ++s) {
        int kept = 0, all = 0;
        for (size_t r = 0; r < rows.size(); ++r) {
          if (rows[r].sequence != s) continue;
          ++all;
          kept += seen.kept[unit][r];
        }
        EXPECT_EQ(kept, static_cast<int>(std::ceil(share * static_cast<float>(all))))
            << share << " of " << all;
      }
      EXPECT_EQ(seen.kept[unit], seen.kept[unit - unit % 2]);  // the FFN follows
    }
  }
}

TEST(MixtureOfDepths, ThePredictorDecidesAtInference) {
  Rig rig(R"({"name": "mixture_of_depths"})");
  const Rows rows = random_rows({10, 7});
  const double mixed = skipped_share(rig.fresh(rows));
  EXPECT_GT(mixed, 0.1);
  EXPECT_LT(mixed, 0.9);
  set(rig, "predictor.outer.bias", 100);
  EXPECT_EQ(skipped_share(rig.fresh(rows)), 0);
  set(rig, "predictor.outer.bias", -100);
  EXPECT_EQ(skipped_share(rig.fresh(rows)), 1);
  TinyRun session(rig, 2);
  session.pass(rows);
  for (int64_t layer = 0; layer < 4; ++layer)  // hidden: no entry
    EXPECT_EQ(session.cache().layer(layer).lengths.data<int32_t>()[0], 0);
}

// h + σ · branch: the branch is scaled, the residual is not. Routers of 0 halve the matrices that end them.
TEST(MixtureOfDepths, TheRouterScalesTheBranchOnly) {
  Rig rig(R"({"name": "mixture_of_depths"})");
  set(rig, "predictor.outer.bias", 100);
  set(rig, "router.weight", 0);
  const Rows rows = random_rows({10, 7});
  const std::vector<float> got = rig.fresh(rows).logits;
  for (BlockWeights& block : rig.model.weights.blocks) {
    for (Tensor* w : {&block.o, &block.down}) {
      for (int64_t i = 0; i < w->numel(); ++i) w->data<float>()[i] *= 0.5f;
    }
  }
  const ArenaScope scope(rig.ctx);
  PolicyState state;
  const Tensor expected =
      forward(rig.ctx, rig.model, make_batch(rig.ctx, rows), FreshPass{}, DensePolicy(), state);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected.data<float>()[i], 1e-4);
}

// The same model with numbers in its residual stream that are `factor` times as large, as pretrained ones
// are.
void enlarge(Model& model, float factor) {
  const auto scale = [](Tensor& w, float by) {
    for (int64_t i = 0; i < w.numel(); ++i) w.data<float>()[i] *= by;
  };
  scale(model.weights.embedding, factor);
  for (BlockWeights& block : model.weights.blocks) {
    scale(block.o, factor);
    scale(block.down, factor);
  }
}

// On a pretrained model the gates begin open, in training and at inference; new weights begin without a bias.
TEST(MixtureOfDepths, APretrainedModelBeginsAsItWas) {
  const Rows rows = random_rows({10, 7});
  float least = 1;  // gate of any row of those
  const auto begun = [&](const char* json, bool pretrained, float factor = 1) {
    Rig rig(R"({"name": "dense"})");
    enlarge(rig.model, factor);
    rig.policy = MethodPolicy::from_json(json, "test");
    if (pretrained) rig.policy->start_from_pretrained();
    rig.policy->initialise(rig.model.config, 7);
    set(rig, "predictor.outer.bias", 100);
    const Seen seen = rig.fresh(rows, {.training = false});
    for (const std::vector<float>& gates : seen.gates) {
      for (const float gate : gates) least = std::min(least, gate);
    }
    return seen.logits;
  };
  const auto far = [](const std::vector<float>& a, const std::vector<float>& b) {
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(static_cast<double>(a[i] - b[i])));
    return most;
  };
  Rig dense(R"({"name": "dense"})");
  const std::vector<float> whole = dense.fresh(rows).logits;
  constexpr const char* kPlain = R"({"name": "mixture_of_depths"})";
  constexpr const char* kReleased = R"({"name": "mixture_of_depths", "start": "released"})";
  EXPECT_LT(far(begun(kPlain, true), whole), 0.2);
  EXPECT_LT(far(begun(kPlain, true, 100), whole), 0.2);
  EXPECT_GE(least, 0.99f);
  EXPECT_LT(least, 1.0f) << "there are gates";
  EXPECT_GT(far(begun(kPlain, false), whole), 1);
  EXPECT_EQ(far(begun(kReleased, true), whole), 0);  // no gate at inference
  EXPECT_EQ(begun(R"({"name": "mixture_of_depths", "start": "paper"})", true), begun(kPlain, false));
  // In training the port's gates are there.
  Rig port(kReleased), open(R"({"name": "mixture_of_depths", "start": "open"})");
  for (Rig* rig : {&port, &open}) {
    const Seen trained = rig->fresh(rows, {.training = true});
    const double moved = far(trained.logits, whole);
    EXPECT_GT(moved, 0.01);
  }
}

// One rule in training and at inference: where all rows run, the same gates give the same logits. The port's
// differ, for it leaves its gates out at inference.
TEST(MixtureOfDepths, TheGateIsTheSameInTrainingAndInference) {
  const Rows rows = random_rows({10, 7});
  for (const char* start : {"open", "paper", "released"}) {
    Rig rig(fmt::format(R"({{"name": "mixture_of_depths", "start": "{}"}})", start));
    set(rig, "predictor.outer.bias", 100);
    const std::vector<float> trained = rig.fresh(rows, {.training = true, .share = 1.0f}).logits;
    const std::vector<float> served = rig.fresh(rows, {.training = false}).logits;
    if (std::string(start) == "released") {
      EXPECT_NE(trained, served);
    } else {
      EXPECT_EQ(trained, served) << start;
    }
  }
  // Whatever the bias is, it counts: a gate of nearly 1 is nearly the dense model.
  Rig rig(R"({"name": "mixture_of_depths", "start": "open"})"), dense(R"({"name": "dense"})");
  set(rig, "predictor.outer.bias", 100);
  set(rig, "router.weight", 0);
  set(rig, "router.bias", 20);
  const std::vector<float> whole = dense.fresh(rows).logits;
  for (const bool training : {false, true}) {
    const std::vector<float> got = rig.fresh(rows, {.training = training, .share = 1.0f}).logits;
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], whole[i], 1e-4) << training;
  }
}

// The predictors learn from their own loss, and nobody else does.
TEST(MixtureOfDepths, ThePredictorsLearnWhoWasChosen) {
  Rig rig(R"({"name": "mixture_of_depths"})"),
      without(R"({"name": "mixture_of_depths", "predictor_weight": 0})");
  TinyTrainer trainer(rig), other(without);
  const Rows rows = random_rows({9, 6});
  const std::vector<RowSet> replay = owned_rows(trainer.run(rows, {.share = 0.5f}, false).seen.kept);
  const PassOptions options{.replay = &replay, .share = 0.5f};
  const Trained got = trainer.run(rows, options), bare = other.run(rows, options);
  double cross_entropy = 0;
  for (size_t layer = 0; layer < 4; ++layer) {
    for (size_t r = 0; r < rows.size(); ++r) {
      const double p = static_cast<double>(got.seen.scores[2 * layer][r]);
      cross_entropy -=
          std::log(got.seen.kept[2 * layer][r] ? p : 1 - p) / static_cast<double>(4 * rows.size());
    }
  }
  EXPECT_NEAR(got.loss - bare.loss, cross_entropy, 1e-5);
  const auto loss = [&] { return trainer.run(rows, options, false).loss; };
  for (size_t i = 0; i < trainer.size(); ++i) {
    const bool predictor = trainer.name(i).find("predictor") != std::string::npos;
    EXPECT_EQ(got.gradients[i] != bare.gradients[i], predictor) << trainer.name(i);
  }
  // Everybody else's gradient is that of the rest of the loss, whose differences gradients_test.cc takes.
  std::vector<std::vector<float>> gradients = got.gradients;
  std::vector<size_t> predictors;
  for (size_t i = 0; i < trainer.size(); ++i) {
    if (trainer.name(i).find("predictor") != std::string::npos) predictors.push_back(i);
  }
  ASSERT_EQ(predictors.size(), 16u);
  for (const size_t i : predictors) expect_differences(trainer, gradients, loss, i, 0.02, i + 1);
}

}  // namespace
}  // namespace fathom
