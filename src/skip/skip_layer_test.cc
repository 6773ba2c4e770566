// SkipLayer's capacity penalty λ Σ (r − P)² against its formula: r is the share of a router's rows that ran,
// P the step's kept share. It is counted, so its gradient is that of the routers' mean probability in its
// place: 2 λ (r − P) · ∂ mean p.
#include "skip/training_test.h"

namespace fathom {
namespace {

constexpr double kPenaltyWeight = 2;
constexpr float kPenaltyShare = 0.9f;

struct PenaltyCase {
  const char* method;  // its JSON, open at the end
  bool block;          // the FFN follows attention's router, and is not counted again
  Through through = Through::kNothing;
};

std::string with_weight(const PenaltyCase& each, double weight) {
  return each.method + std::string(R"(, "capacity_weight": )") + std::to_string(weight) + "}";
}

// Of every router its unit and r − P.
std::vector<std::pair<size_t, double>> excess_of(const PenaltyCase& each, const Seen& seen) {
  std::vector<std::pair<size_t, double>> all;
  for (size_t unit = 0; unit < seen.kept.size(); ++unit) {
    if (seen.scores[unit].empty() || (each.block && unit % 2 == 1)) continue;
    const std::vector<uint8_t>& kept = seen.kept[unit];
    const auto ran = static_cast<double>(std::count(kept.begin(), kept.end(), 1));
    all.emplace_back(unit, ran / static_cast<double>(kept.size()) - static_cast<double>(kPenaltyShare));
  }
  return all;
}

TEST(SkipLayer, PenaltyIsTheSumOfSquares) {
  const std::pair<PenaltyCase, size_t> cases[] = {
      {{R"({"name": "skip_layer")", true}, 4},
      {{R"({"name": "skip_layer", "router": "sigmoid")", true}, 4},
      {{R"({"name": "skip_layer", "router": "top1")", true}, 4},
      {{R"({"name": "skip_layer", "units": "attention")", false}, 4},
      {{R"({"name": "skip_layer", "units": "both")", false}, 8},
      {{R"({"name": "wide_ffn")", false}, 4},
  };
  const Rows rows = random_rows({9, 6});
  const PassOptions options{.share = kPenaltyShare};
  for (const auto& [each, routers] : cases) {
    SCOPED_TRACE(each.method);
    Rig rig(with_weight(each, kPenaltyWeight)), without(with_weight(each, 0));
    const Trained trained = TinyTrainer(rig).run(rows, options, false),
                  plain = TinyTrainer(without).run(rows, options, false);
    ASSERT_EQ(trained.seen.kept, plain.seen.kept);
    const auto excess = excess_of(each, trained.seen);
    ASSERT_EQ(excess.size(), routers);
    double squares = 0;
    for (const auto& [unit, more] : excess) squares += more * more;
    EXPECT_GT(squares, 0.05);
    EXPECT_NEAR(trained.loss - plain.loss, kPenaltyWeight * squares, 1e-4);
  }
}

TEST(SkipLayer, PenaltysGradientEntersEveryProbability) {
  const Rows rows = random_rows({9, 6});
  for (const PenaltyCase& each :
       {PenaltyCase{R"({"name": "skip_layer")", true, Through::kBlock},
        PenaltyCase{R"({"name": "skip_layer", "units": "both")", false, Through::kUnit}}) {
    SCOPED_TRACE(each.method);
    Rig rig(with_weight(each, kPenaltyWeight)), without(with_weight(each, 0));
    TinyTrainer trainer(rig), plain(without);
    const PassOptions drawn{.share = kPenaltyShare};
    const std::vector<RowSet> replay = owned_rows(trainer.run(rows, drawn, false).seen.kept);
    const PassOptions replayed{.replay = &replay, .share = kPenaltyShare};
    const Trained base = trainer.run(rows, replayed);
    std::vector<std::vector<float>> gradients = base.gradients;
    const Trained task = plain.run(rows, replayed);
    for (size_t i = 0; i < gradients.size(); ++i) {
      for (size_t j = 0; j < gradients[i].size(); ++j) gradients[i][j] -= task.gradients[i][j];
    }
    const Surrogate surrogate(*rig.policy, base.seen, each.through);
    const auto excess = excess_of(each, base.seen);
    const auto soft = [&] {
      const Seen seen = trainer.run(rows, replayed, false, &surrogate).seen;
      double sum = 0;
      for (const auto& [unit, more] : excess) {
        const std::vector<float>& p = seen.scores[unit];
        double mean = 0;
        for (const float value : p) mean += static_cast<double>(value) / static_cast<double>(p.size());
        sum += 2 * kPenaltyWeight * more * mean;
      }
      return sum;
    };
    double size = 0;
    for (size_t i = trainer.backbone(); i < trainer.size(); ++i) {
      for (const float g : gradients[i]) size += static_cast<double>(g) * static_cast<double>(g);
    }
    EXPECT_GT(size, 1e-3);
    expect_differences(trainer, gradients, soft, trainer.backbone());
  }
}

}  // namespace
}  // namespace fathom
