// I6, the gradients of every method's whole loss against differences, and the half of I2 that is about
// gradients: where training is physical, computing all rows and masking gives the same.
#include "skip/methods.h"
#include "skip/training_test.h"

namespace fathom {
namespace {

struct TrainCase {
  const char* json;
  Through through = Through::kNothing;
  Shaped shaped = Shaped::kLlama;
};
void PrintTo(const TrainCase& c, std::ostream* os) {
  *os << c.json;
}

// What is detached is left out here (its difference is another one), and so are the straight-through
// penalties, whose differences are those of means: the methods' own tests take them.
const TrainCase kCases[] = {
    {R"({"name": "dense"})"},
    {R"({"name": "gate_skip", "detached": false})"},
    {R"({"name": "gate_skip", "detached": false, "sparsity": "kl", "gate_input": "residual"})"},
    {R"({"name": "gate_skip", "detached": false, "sparsity": "kl_paper"})"},
    {R"({"name": "gate_skip", "detached": false, "sparsity": "kl_released"})"},
    {R"({"name": "gate_skip", "detached": false, "gate": "scalar", "sparsity": "l1", "placement": "before"})"},
    {R"({"name": "gate_skip", "net": "mlp", "sharing": "shared", "detached": false, "skipped_kv": "copy",
         "train_skipped_kv": "copy"})"},
    {R"({"name": "skip_layer", "router": "sigmoid", "capacity_weight": 0})"},
    {R"({"name": "skip_layer", "router": "top1", "capacity_weight": 0})"},
    {R"({"name": "skip_layer", "capacity_weight": 0})", Through::kBlock},
    {R"({"name": "skip_layer", "units": "both", "capacity_weight": 0})", Through::kUnit},
    {R"({"name": "skip_layer", "units": "both", "router": "top1", "capacity_weight": 0})"},
    {R"({"name": "skip_layer", "units": "attention", "capacity_weight": 0})", Through::kUnit},
    {R"({"name": "skip_layer", "units": "attention", "router": "sigmoid", "capacity_weight": 0})"},
    {R"({"name": "wide_ffn", "router": "sigmoid", "capacity_weight": 0})"},
    {R"({"name": "random", "train_skipped_kv": "hide"})"},
    {R"({"name": "random", "train_skipped_kv": "copy", "objective": "distill"})"},
    {R"({"name": "skip_middle", "controller": "sparsity_variance", "mean_weight": 1, "variance_weight": -1})",
     Through::kNothing, Shaped::kSandwich},
    {R"({"name": "skip_middle", "controller": "sparsity_variance_l2", "gate_axis": "none"})"},
    {R"({"name": "skip_middle", "controller": "none"})", Through::kNothing, Shaped::kGemma},
    {R"({"name": "mixture_of_depths", "predictor_weight": 0})"},
    {R"({"name": "mixture_of_depths", "predictor_weight": 0, "start": "open"})"},
    {R"({"name": "highway"})"},
    {R"({"name": "calm"})"},
    {R"({"name": "free", "state_weight": 0})"},
    {R"({"name": "layer_skip", "dropout": 0.6})"},
    {R"({"name": "attention_drop"})"},
    {R"({"name": "nested", "objective": "distill", "head_weight": 0})"},
    {R"({"name": "priced", "detached": false})", Through::kMask},
    {R"({"name": "mind_skip", "pool": "prefix:3", "loss_weight": 0})", Through::kMask},
    {R"({"name": "mind_skip", "pool": "full", "loss_weight": 0, "units": "mlp"})", Through::kMask},
    {R"({"name": "mind_skip", "level": "token", "loss_weight": 0, "units": "block"})", Through::kBlockMask},
    {R"({"name": "mind_skip", "pool": "prefix:3", "loss_weight": 0, "units": "block", "layers": [0, 1, 2, 3]})",
     Through::kBlockMask},
    {R"({"name": "mind_skip", "pool": "prefix:3", "units": "mlp", "router_input": "attention_norm", "bias": true,
         "loss_weight": 0})",
     Through::kMask},
};

class Training : public testing::TestWithParam<TrainCase> {};

TEST_P(Training, GradientsEqualDifferences) {
  Rig rig(GetParam().json, GetParam().shaped);
  TinyTrainer trainer(rig);
  const Rows rows = random_rows({7, 1, 9});
  const PassOptions free{.share = 0.6f};
  const std::vector<RowSet> replay = owned_rows(trainer.run(rows, free, false).seen.kept);
  const PassOptions replayed{.replay = &replay, .share = 0.6f};
  const Trained base = trainer.run(rows, replayed);
  const Surrogate surrogate(*rig.policy, base.seen, GetParam().through);
  const auto loss = [&] { return trainer.run(rows, replayed, false, &surrogate).loss; };
  EXPECT_NEAR(loss(), base.loss, 1e-5);
  expect_differences(trainer, base.gradients, loss);
}

// Recomputed activations give the same gradients, bit for bit.
TEST_P(Training, RecomputingChangesNothing) {
  Rig rig(GetParam().json, GetParam().shaped);
  TinyTrainer trainer(rig);
  const Rows rows = random_rows({7, 1, 9});
  const Trained kept = trainer.run(rows, {.share = 0.6f});
  trainer.recompute = true;
  const Trained again = trainer.run(rows, {.share = 0.6f});
  EXPECT_EQ(again.loss, kept.loss);
  for (size_t i = 0; i < trainer.size(); ++i) {
    for (size_t j = 0; j < kept.gradients[i].size(); ++j)
      ASSERT_NEAR(again.gradients[i][j], kept.gradients[i][j], 1e-6) << trainer.name(i);
  }
}

// Does physical training give what masked training gives? Not asked where the skipped branch is needed.
TEST_P(Training, MaskedGradientsEqualPhysicalOnes) {
  if (GetParam().through == Through::kMask || GetParam().through == Through::kBlockMask)
    GTEST_SKIP() << "trains on every row's branch";
  Rig rig(GetParam().json, GetParam().shaped);
  TinyTrainer trainer(rig);
  std::vector<int> ragged;
  for (int s = 0; s < 64; ++s) ragged.push_back(1 + s % 4);
  for (const Rows& rows : {random_rows({9, 1, 6}), random_rows(ragged)}) {
    const size_t n = rows.size();
    std::vector<std::vector<std::vector<uint8_t>>> choices{
        trainer.run(rows, {.share = 0.6f}, false).seen.kept};
    for (int choice = 0; choice < 4; ++choice) {
      Rng rng(static_cast<uint64_t>(choice));
      choices.emplace_back(choices[0].size(), std::vector<uint8_t>(n, 0));
      for (auto& unit : choices.back()) {
        for (size_t r = 0; r < n; ++r)
          unit[r] = choice == 0 ? 1 : choice == 1 ? 0 : choice == 2 ? r == 2 : rng.below(2);
      }
    }
    for (const auto& choice : choices) {
      const std::vector<RowSet> replay = owned_rows(choice);
      const Trained physical = trainer.run(rows, {.replay = &replay, .share = 0.6f});
      const Trained masked = trainer.run(rows, {.masked = true, .replay = &replay, .share = 0.6f});
      ASSERT_NEAR(physical.loss, masked.loss, 1e-5);
      for (size_t i = 0; i < trainer.size(); ++i) {
        for (size_t j = 0; j < physical.gradients[i].size(); ++j)
          ASSERT_NEAR(physical.gradients[i][j], masked.gradients[i][j], 1e-5) << trainer.name(i);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Training, testing::ValuesIn(kCases), [](const auto& each) {
  std::string name = std::to_string(each.index) + "_";
  for (const char* c = each.param.json; *c; ++c) {
    if (std::isalnum(static_cast<unsigned char>(*c))) name += *c;
  }
  return name;
});

}  // namespace
}  // namespace fathom
