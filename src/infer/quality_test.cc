#include "infer/quality.h"

#include <gtest/gtest.h>

#include <map>

#include "base/format.h"
#include "infer/log_probs.h"
#include "skip/tiny_model_test.h"

namespace fathom {
namespace {

std::vector<double> log_softmax(const float* logits, size_t vocab) {
  double most = -INFINITY, sum = 0;
  for (size_t v = 0; v < vocab; ++v) most = std::max(most, static_cast<double>(logits[v]));
  for (size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(logits[v]) - most);
  std::vector<double> out;
  for (size_t v = 0; v < vocab; ++v) out.push_back(static_cast<double>(logits[v]) - most - std::log(sum));
  return out;
}

CalibrationRunOptions exact() {
  CalibrationRunOptions options;
  options.k_type = options.v_type = DType::kF32;
  return options;
}

// Against plain sums over the logits of whole passes: the mean over tokens, and the error of the sequences.
// The base has other weights than the model, as one without its LoRA.
TEST(Quality, IsTheDivergenceFromTheBaseWithoutTheMethod) {
  Rig rig(R"({"name": "gate_skip"})"), dense(R"({"name": "dense"})");
  add_noise(dense.model.weights.blocks[1].q, 0.1f, 8, 1);
  rig.calibrate(0.6f);
  const Rows rows = random_rows({9, 5, 12});
  const std::vector<float> ours = rig.fresh(rows).logits, base = dense.fresh(rows).logits;
  std::vector<double> kl(3), nll(3), tokens(3);
  for (size_t r = 0; r + 1 < rows.size(); ++r) {
    if (rows[r + 1].sequence != rows[r].sequence) continue;
    const auto s = static_cast<size_t>(rows[r].sequence);
    const std::vector<double> p = log_softmax(&base[r * 48], 48), q = log_softmax(&ours[r * 48], 48);
    for (size_t v = 0; v < 48; ++v) kl[s] += std::exp(p[v]) * (p[v] - q[v]);
    const auto next = static_cast<size_t>(rows[r + 1].token);
    nll[s] += p[next] - q[next];
    tokens[s] += 1;
  }
  const auto expect = [&](const Estimate& got, const std::vector<double>& sums) {
    const double mean = (sums[0] + sums[1] + sums[2]) / 23;
    double squares = 0;
    for (size_t s = 0; s < 3; ++s) squares += std::pow(sums[s] - mean * tokens[s], 2);
    EXPECT_NEAR(got.mean, mean, 1e-5);
    EXPECT_NEAR(got.error, std::sqrt(squares * 3 / 2) / 23, 1e-5);
    EXPECT_NEAR(got.upper(), got.mean + 2.9200 * got.error, 1e-12);  // two degrees of freedom
  };
  const Compared compared{dense.model, rig.model, *rig.policy};
  const Divergence got = divergence(rig.ctx, compared, {rows}, rig.thresholds, exact());
  expect(got.kl, kl);
  expect(got.nll, nll);
  EXPECT_GT(got.kl.mean, 0.01);
  EXPECT_THROW(divergence(rig.ctx, compared, {random_rows({9})}, rig.thresholds, exact()), UserError);
}

// Values of printed tables. One sequence more than nothing tells hardly anything.
TEST(Quality, FewSequencesHaveAWideBound) {
  EXPECT_NEAR(student_95(1), 6.3138, 1e-4);
  EXPECT_NEAR(student_95(9), 1.8331, 1e-4);
  EXPECT_NEAR(student_95(15), 1.7531, 1e-4);
  EXPECT_NEAR(student_95(17), 1.7396, 2e-4);
  EXPECT_NEAR(student_95(30), 1.6973, 1e-4);
  EXPECT_NEAR(student_95(120), 1.6577, 1e-4);
  EXPECT_NEAR(student_95(1 << 30), 1.6449, 1e-4);
  for (int64_t freedom = 1; freedom < 200; ++freedom)
    EXPECT_GT(student_95(freedom), student_95(freedom + 1)) << freedom;
  EXPECT_NEAR((Estimate{1, 0.1, 2}.upper()), 1.63138, 1e-9);
}

std::string refusal(Rig& rig, const Compared& compared, const Calibration& table, const QualityLimit& limit,
                    const CalibrateOptions& options) {
  try {
    calibrate_quality(rig.ctx, compared, table, limit, options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// The smallest budget that keeps the limit on the worst kind.
TEST(Quality, TheSmallestBudgetThatKeepsIt) {
  Rig rig(R"({"name": "gate_skip", "init_std": 0.3})", Shaped::kLlama, 0.0f);
  const Compared compared{rig.model, rig.model, *rig.policy};
  CalibrateOptions options;
  options.k_type = options.v_type = DType::kF32;
  options.budgets = {0.9f, 0.8f, 0.7f};
  options.check = {{"one", {random_rows({40, 40, 40}, 2)}}, {"two", {random_rows({30, 30}, 3)}}};
  const Calibration table =
      calibrate(rig.ctx, rig.model, *rig.policy, {random_rows({60, 60, 60, 60}, 1)}, options);
  const auto worst = [&](float budget, const char* measure) {
    double most = -INFINITY;
    for (const CheckText& each : options.check) {
      const Divergence got = divergence(rig.ctx, compared, each.text, table.thresholds(budget), options);
      most = std::max(most, std::string(measure) == "kl" ? got.kl.upper() : std::exp(got.nll.upper()));
    }
    return most;
  };
  for (const char* measure : {"kl", "ppl"}) {
    // The loosest limit is kept by the smallest budget of the table. None keeps less than the least bound,
    // and the error says the range.
    EXPECT_EQ(calibrate_quality(rig.ctx, compared, table, {measure, 1e6f}, options).budget, 0.7f);
    std::map<double, float> bounds;
    for (const float budget : {1.0f, 0.9f, 0.8f, 0.7f}) bounds[worst(budget, measure)] = budget;
    const auto [least, at_least] = *bounds.begin();
    const auto [most, at_most] = *bounds.rbegin();
    const std::string said =
        refusal(rig, compared, table, {measure, static_cast<float>(least) * 0.99f}, options);
    EXPECT_NE(
        said.find(fmt::format("from {:.4g} (at a budget of {:g}, on ", static_cast<float>(least), at_least)),
        std::string::npos)
        << said;
    EXPECT_NE(said.find(fmt::format(" to {:.4g} (at {:g}, on ", static_cast<float>(most), at_most)),
              std::string::npos)
        << said;
    if (std::string(measure) == "ppl") continue;  // random text: less depth is as often better
    const auto limit = static_cast<float>(worst(0.85f, measure));
    const CalibratedQuality kept = calibrate_quality(rig.ctx, compared, table, {measure, limit}, options);
    EXPECT_LE(kept.bound, limit) << measure;
    EXPECT_NEAR(kept.bound, worst(kept.budget, measure), 1e-5) << measure;
    EXPECT_NEAR(kept.budget, 0.85, 0.05) << measure;
    EXPECT_GT(worst(kept.budget - 0.006f, measure), static_cast<double>(limit)) << measure;
  }
}

// A model that learned to do without its last FFN: it is the base where it skips that FFN, and far from the
// base at full depth.
TEST(Quality, ASmallerBudgetCanBeNearerToTheBase) {
  Rig rig(R"({"name": "mind_skip", "level": "token", "units": "mlp", "layers": [3]})"),
      other(R"({"name": "dense"})");
  Tensor& down = other.model.weights.blocks[3].down;
  std::fill_n(down.data<float>(), down.numel(), 0.0f);
  CalibrateOptions options;
  options.k_type = options.v_type = DType::kF32;
  options.check = {{"one", {random_rows({40, 40}, 2)}}};
  Calibration table;
  table.points.resize(2);
  for (CalibrationPoint& point : table.points) point.thresholds.assign(8, -INFINITY);
  table.points[1].budget = table.points[1].achieved = 0.9f;
  table.points[0].thresholds[7] = 0.0f;  // below every σ
  table.points[1].thresholds[7] = 2.0f;  // above every σ
  const Compared with_lora{other.model, rig.model, *rig.policy}, without{rig.model, rig.model, *rig.policy};
  EXPECT_EQ(calibrate_quality(rig.ctx, with_lora, table, {"kl", 1e-4f}, options).budget, 0.9f);
  EXPECT_GT(calibrate_quality(rig.ctx, without, table, {"kl", 1e-4f}, options).budget, 0.98f);
}

TEST(Quality, IsWrittenInTwoWays) {
  EXPECT_EQ(parse_quality("kl=0.2").measure, "kl");
  EXPECT_EQ(parse_quality("ppl=1.1").limit, 1.1f);
  for (const char* text : {"", "kl", "kl=", "kl=0", "kl=-1", "kl=nan", "kl=1x", "ppl=1", "acc=3", "0.2"})
    EXPECT_THROW(parse_quality(text), UserError) << text;
}

}  // namespace
}  // namespace fathom
