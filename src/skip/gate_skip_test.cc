// GateSkip's penalties against their formulas, and the pair that it refuses.
#include "base/error.h"
#include "skip/training_test.h"

namespace fathom {
namespace {

double bernoulli_kl(double p, double q) {
  return p * std::log(p / q) + (1 - p) * std::log((1 - p) / (1 - q));
}

// What the penalty adds to the loss of a step whose kept share is 0.6.
double penalty(const std::string& shape, const std::string& sparsity) {
  const std::string with = R"({"name": "gate_skip", "gate": ")" + shape +
                           R"(", "rows_kept": 0.7, "sparsity": ")" + sparsity + R"(", "sparsity_weight": )";
  Rig rig(with + "2}"), without(with + "0}");
  TinyTrainer trainer(rig), plain(without);
  const Rows rows = random_rows({9, 6});
  const PassOptions options{.share = 0.6f};
  return trainer.run(rows, options, false).loss - plain.run(rows, options, false).loss;
}

TEST(GateSkip, PenaltiesAreWhatTheyAreCalled) {
  for (const char* shape : {"scalar", "vector"}) {
    SCOPED_TRACE(shape);
    Rig rig(std::string(R"({"name": "gate_skip", "gate": ")") + shape + "\"}");
    const Seen seen = TinyTrainer(rig).run(random_rows({9, 6}), {.share = 0.6f}, false).seen;
    double squares = 0, sizes = 0, of_means = 0, of_gates = 0;
    for (const std::vector<float>& gates : seen.gates) {
      const auto n = static_cast<double>(gates.size());
      double mean = 0;
      for (const float gate : gates) {
        const auto g = static_cast<double>(gate);
        mean += g / n;
        squares += g * g / n;
        sizes += g / n;
        of_gates += bernoulli_kl(g, 0.7) / n;
      }
      of_means += bernoulli_kl(mean, 0.6);
    }
    const double units = 8;
    EXPECT_NEAR(penalty(shape, "l2"), 2 * squares / units, 1e-4);
    EXPECT_NEAR(penalty(shape, "l1"), 2 * sizes / units, 1e-4);
    EXPECT_NEAR(penalty(shape, "kl"), 2 * of_means / units, 1e-4);
    EXPECT_NEAR(penalty(shape, "kl_paper"), 2 * of_means, 1e-4);
    EXPECT_NEAR(penalty(shape, "kl_released"), 2 * of_gates / units, 1e-4);
    EXPECT_GT(of_means, 0.1);
  }
}

// A gate that opens once it is known who runs cannot scale what goes in.
TEST(GateSkip, TwoStagesNeedThePlaceAfter) {
  EXPECT_THROW(Rig(R"({"name": "gate_skip", "two_stage": true, "placement": "before"})"), UserError);
  EXPECT_NO_THROW(Rig(R"({"name": "gate_skip", "two_stage": true, "placement": "after"})"));
}

// The gate in front of a unit is made where the row is rated: another method's rating has none, and another's
// blend would leave it in.
TEST(GateSkip, AGateInFrontIsInNoHybrid) {
  for (const char* json :
       {R"({"name": "random", "blend": "gate_skip", "gate_skip": {"placement": "before"}})",
        R"({"name": "gate_skip", "placement": "before", "blend": "random"})"})
    EXPECT_THROW(Rig{json}, UserError) << json;
  for (const char* json :
       {R"({"name": "random", "blend": "gate_skip"})", R"({"name": "gate_skip", "blend": "random"})",
        R"({"name": "gate_skip", "placement": "before"})"})
    EXPECT_NO_THROW(Rig{json}) << json;
}

}  // namespace
}  // namespace fathom
