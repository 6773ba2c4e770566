#include "infer/quality.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <optional>

#include "base/format.h"
#include "infer/budgets.h"
#include "infer/ratio_of_sums.h"
#include "infer/stoppable_policy.h"
#include "ops/loss/cross_entropy.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr size_t kRowsOfAPass = 2048;  // two sets of logits are in memory

// Σ over a sequence's tokens, and how many.
struct Sums {
  double kl = 0, nll = 0, tokens = 0;
};

// Sequences of one pass; rows that have a next token want logits.
struct Piece {
  std::vector<BatchRow> rows;
  std::vector<int32_t> targets, sequences;  // of the rows that want logits
};

std::vector<Piece> pieces_of(const CalibrationText& text) {
  std::map<int32_t, std::vector<BatchRow>> sequences;
  for (const BatchRow& row : joined(text)) sequences[row.sequence].push_back(row);
  std::vector<Piece> pieces;
  for (auto& [sequence, rows] : sequences) {
    if (pieces.empty() || pieces.back().rows.size() + rows.size() > kRowsOfAPass) pieces.emplace_back();
    Piece& piece = pieces.back();
    const int32_t slot = piece.rows.empty() ? 0 : piece.rows.back().sequence + 1;
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].sequence = slot;
      rows[i].wants_logits = i + 1 < rows.size();
      if (rows[i].wants_logits) {
        piece.targets.push_back(rows[i + 1].token);
        piece.sequences.push_back(slot);
      }
      piece.rows.push_back(rows[i]);
    }
  }
  return pieces;
}

class Comparison {
 public:
  Comparison(Context& ctx, const Model& base, const Model& model, const SkipPolicy& policy,
             const std::vector<float>& thresholds, const CalibrationRunOptions& options)
      : ctx_(ctx), base_(base), model_(model), policy_(policy), thresholds_(thresholds), options_(options) {}

  // Adds the piece's sequences.
  void run(const Piece& piece, std::vector<Sums>& all) {
    const ArenaScope scope(ctx_);
    const Tensor base = logits(base_, piece, DensePolicy(), {}),
                 ours = logits(model_, piece, policy_, thresholds_);
    const auto rows = static_cast<int64_t>(piece.targets.size());
    const Tensor targets = Tensor::from(ctx_, piece.targets, {rows});
    size_t begin = 0;
    while (begin < piece.sequences.size()) {
      size_t end = begin;
      while (end < piece.sequences.size() && piece.sequences[end] == piece.sequences[begin]) ++end;
      const ArenaScope sequence(ctx_);
      const auto count = static_cast<int64_t>(end - begin);
      const Tensor ones = Tensor::from(ctx_, std::vector<float>(end - begin, 1.0f), {count});
      const auto part = [&](const Tensor& x) { return x.rows(static_cast<int64_t>(begin), count); };
      Sums sums;
      sums.kl = value(kl_divergence(ctx_, part(base), part(ours), ones));
      sums.nll = value(cross_entropy(ctx_, part(ours), part(targets), ones)) -
                 value(cross_entropy(ctx_, part(base), part(targets), ones));
      sums.tokens = static_cast<double>(end - begin);
      all.push_back(sums);
      begin = end;
    }
  }

 private:
  Tensor logits(const Model& model, const Piece& piece, const SkipPolicy& policy,
                std::span<const float> thresholds) {
    Batch batch = make_batch(ctx_, piece.rows);
    batch.given = piece.rows;
    KvCache cache = cache_for(ctx_, model.config, policy, piece.rows, options_);
    const std::unique_ptr<PolicyState> state = policy.make_state(ctx_, model.config, batch.sequences);
    for (int32_t s = 0; s < batch.sequences && !thresholds.empty(); ++s)
      state->set_thresholds(ctx_, s, thresholds);
    return forward(ctx_, model, batch, cache, StoppablePolicy(policy, options_.cancel), *state);
  }
  double value(const Tensor& one) {
    float number = 0;
    copy_to_host(ctx_, one, std::span(&number, 1));
    return static_cast<double>(number);
  }

  Context& ctx_;
  const Model &base_, &model_;
  const SkipPolicy& policy_;
  const std::vector<float>& thresholds_;
  const CalibrationRunOptions& options_;
};

Estimate estimate(const std::vector<Sums>& all, double Sums::*what) {
  const RatioOfSums mean = ratio_of_sums<Sums>(all, what, &Sums::tokens);
  return {mean.value, mean.error, std::ssize(all)};
}

// What the limit is compared with, in the limit's own unit.
double bound_of(const Divergence& seen, const QualityLimit& limit) {
  return limit.measure == "kl" ? seen.kl.upper() : std::exp(seen.nll.upper());
}

Divergence measured(Comparison comparison, const CalibrationText& text,
                    const CalibrationRunOptions& options) {
  std::vector<Sums> all;
  for (const Piece& piece : pieces_of(text)) comparison.run(piece, all);
  if (all.size() < 2)
    fail("a bound on quality needs at least two sequences of each kind of text, got {}", all.size());
  if (options.on_progress) options.on_progress(1);
  return {estimate(all, &Sums::kl), estimate(all, &Sums::nll)};
}

}  // namespace

double student_95(int64_t freedom) {
  constexpr std::array kFew{6.3138, 2.9200, 2.3534, 2.1318, 2.0150, 1.9432, 1.8946, 1.8595,
                            1.8331, 1.8125, 1.7959, 1.7823, 1.7709, 1.7613, 1.7531, 1.7459};
  if (freedom <= std::ssize(kFew)) return kFew[static_cast<size_t>(std::max<int64_t>(freedom, 1) - 1)];
  // Expanded about the normal one (Abramowitz and Stegun 26.7.5): off by less than 3e-4 from here on.
  constexpr double kNormal = 1.644854;
  const double z2 = kNormal * kNormal, n = static_cast<double>(freedom);
  return kNormal * (1 + (z2 + 1) / (4 * n) + (5 * z2 * z2 + 16 * z2 + 3) / (96 * n * n));
}

double Estimate::upper() const {
  return mean + student_95(sequences - 1) * error;
}

QualityLimit parse_quality(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string measure = text.substr(0, equals);
  const bool kl = measure == "kl";
  if (equals != std::string::npos && (kl || measure == "ppl")) {
    const std::string number = text.substr(equals + 1);
    char* rest = nullptr;
    const float limit = std::strtof(number.c_str(), &rest);
    if (!number.empty() && *rest == 0 && std::isfinite(limit) && limit > (kl ? 0.0f : 1.0f))
      return {measure, limit};
  }
  fail("a quality must be kl=NATS (above 0) or ppl=RATIO (above 1), got '{}'", printable(text));
}

Divergence divergence(Context& ctx, const Compared& compared, const CalibrationText& text,
                      const std::vector<float>& thresholds, const CalibrationRunOptions& options) {
  return measured(Comparison(ctx, compared.base, compared.model, compared.policy, thresholds, options), text,
                  options);
}

Divergence divergence_of(Context& ctx, const Model& base, const Model& adapted, const CalibrationText& text,
                         const CalibrationRunOptions& options) {
  const DensePolicy dense;
  const std::vector<float> none;
  return measured(Comparison(ctx, base, adapted, dense, none, options), text, options);
}

namespace {

// The largest bound among the kinds of text, at one budget after another.
class WorstBound {
 public:
  WorstBound(Context& ctx, const Compared& compared, const Calibration& table, const QualityLimit& limit,
             const CalibrateOptions& options)
      : ctx_(ctx), compared_(compared), budgets_(table), limit_(limit), options_(options) {}

  CalibratedQuality at(float budget) const {
    CalibratedQuality worst{limit_.measure, limit_.limit, budget, -INFINITY};
    const std::vector<float> thresholds = budgets_.thresholds(double{budget});
    for (const CheckText& each : options_.check) {
      const double bound = bound_of(divergence(ctx_, compared_, each.text, thresholds, options_), limit_);
      if (bound <= static_cast<double>(worst.bound)) continue;
      worst.bound = static_cast<float>(bound);
      worst.kind = each.kind;
    }
    return worst;
  }

 private:
  Context& ctx_;
  const Compared& compared_;
  const Budgets budgets_;
  const QualityLimit& limit_;
  const CalibrateOptions& options_;
};

[[noreturn]] void fail_with_range(const std::vector<CalibratedQuality>& measured) {
  const auto [least, most] = std::minmax_element(
      measured.begin(), measured.end(),
      [](const CalibratedQuality& a, const CalibratedQuality& b) { return a.bound < b.bound; });
  fail(
      "{}={:g} cannot be kept: on the worst kind of text its upper 95 % bound is from {:.4g} (at a budget of "
      "{:g}, on {}) to {:.4g} (at {:g}, on {})",
      least->measure, least->limit, least->bound, least->budget, printable(least->kind), most->bound,
      most->budget, printable(most->kind));
}

}  // namespace

CalibratedQuality calibrate_quality(Context& ctx, const Compared& compared, const Calibration& table,
                                    const QualityLimit& limit, const CalibrateOptions& options) {
  if (options.check.empty()) fail("a bound on quality needs text that was kept back");
  const WorstBound worst(ctx, compared, table, limit, options);
  std::vector<float> budgets{table.points.front().budget};
  for (const CalibrationPoint& point : table.asked()) budgets.push_back(point.budget);
  // From the smallest budget up. A LoRA that learned to skip can be nearer to the base at a smaller budget,
  // so the largest budget tells nothing about the others.
  std::vector<CalibratedQuality> fails;
  std::optional<CalibratedQuality> kept;
  while (!kept && !budgets.empty()) {
    const CalibratedQuality next = worst.at(budgets.back());
    budgets.pop_back();
    if (next.bound <= limit.limit) {
      kept = next;
    } else {
      fails.push_back(next);
    }
  }
  if (!kept) fail_with_range(fails);
  if (fails.empty()) return *kept;
  // Between it and the budget below it, which fails: halved to 0.005.
  float below = fails.back().budget;
  while (kept->budget - below > 0.005f) {
    const CalibratedQuality next = worst.at((kept->budget + below) / 2);
    if (next.bound <= limit.limit) {
      kept = next;
    } else {
      below = next.budget;
    }
  }
  return *kept;
}

}  // namespace fathom
