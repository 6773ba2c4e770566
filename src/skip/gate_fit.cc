#include "skip/gate_fit.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "base/progress.h"
#include "model/transformer.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr double kEdge = 1e-6;  // gates are kept this far from 0 and 1

// Σ x xᵀ and Σ x y with x = (input, 1): the lower triangle, row after row, in double.
class NormalEquations {
 public:
  explicit NormalEquations(int64_t width)
      : n_(width + 1),
        matrix_(static_cast<size_t>(n_ * (n_ + 1) / 2), 0.0),
        right_(static_cast<size_t>(n_), 0.0) {}

  // x: (rows, width); y: (rows). Rows of the triangle are shared out among the threads, each summed in row
  // order.
  void add(ThreadPool& pool, std::span<const float> x, std::span<const double> y) {
    const int64_t width = n_ - 1, rows = std::ssize(y);
    pool.parallel_for(n_, 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double* row = matrix_.data() + i * (i + 1) / 2;
        for (int64_t r = 0; r < rows; ++r) {
          const float* input = x.data() + r * width;
          const double factor = i < width ? double{input[i]} : 1.0;
          for (int64_t j = 0; j < std::min(i + 1, width); ++j) row[j] += factor * double{input[j]};
          if (i == width) row[width] += 1.0;
          right_[static_cast<size_t>(i)] += factor * y[static_cast<size_t>(r)];
        }
      }
    });
    for (const double one : y) squares_ += one * one;
    rows_ += rows;
  }

  // The weights and, last, the bias, which the ridge leaves alone.
  std::vector<double> solve(double ridge) {
    double diagonal = 0;
    for (int64_t i = 0; i + 1 < n_; ++i) diagonal += at(i, i);
    const double extra = ridge * diagonal / static_cast<double>(std::max<int64_t>(1, n_ - 1)) + 1e-12;
    std::vector<double> kept = matrix_;
    for (int64_t i = 0; i + 1 < n_; ++i) at(i, i) += extra;
    factorise();
    std::vector<double> x = right_;
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t j = 0; j < i; ++j) x[static_cast<size_t>(i)] -= at(i, j) * x[static_cast<size_t>(j)];
      x[static_cast<size_t>(i)] /= at(i, i);
    }
    for (int64_t i = n_ - 1; i >= 0; --i) {
      for (int64_t j = i + 1; j < n_; ++j) x[static_cast<size_t>(i)] -= at(j, i) * x[static_cast<size_t>(j)];
      x[static_cast<size_t>(i)] /= at(i, i);
    }
    matrix_ = std::move(kept);
    return x;
  }

  // Σ (x·w − y)², and Σ (y − mean y)².
  double squared_error(std::span<const double> w) const {
    double error = squares_;
    for (int64_t i = 0; i < n_; ++i) {
      const double wi = w[static_cast<size_t>(i)];
      error -= 2 * wi * right_[static_cast<size_t>(i)];
      for (int64_t j = 0; j <= i; ++j) {
        const double term =
            wi * w[static_cast<size_t>(j)] * matrix_[static_cast<size_t>(i * (i + 1) / 2 + j)];
        error += i == j ? term : 2 * term;
      }
    }
    return std::max(0.0, error);
  }
  double variation() const {
    const double sum = right_.back();
    return rows_ > 0 ? std::max(0.0, squares_ - sum * sum / static_cast<double>(rows_)) : 0.0;
  }
  int64_t rows() const { return rows_; }

 private:
  double& at(int64_t i, int64_t j) { return matrix_[static_cast<size_t>(i * (i + 1) / 2 + j)]; }

  void factorise() {  // Cholesky, in place
    for (int64_t j = 0; j < n_; ++j) {
      for (int64_t i = j; i < n_; ++i) {
        double sum = at(i, j);
        for (int64_t k = 0; k < j; ++k) sum -= at(i, k) * at(j, k);
        at(i, j) = i == j ? std::sqrt(std::max(sum, 1e-300)) : sum / at(j, j);
      }
    }
  }

  int64_t n_, rows_ = 0;
  std::vector<double> matrix_, right_;
  double squares_ = 0;
};

// Runs the policy and notes every gate's input and what the gate says.
class GateWatcher final : public ForwardingPolicy {
 public:
  GateWatcher(const GateReading& reading, std::vector<NormalEquations>& equations)
      : ForwardingPolicy(reading.policy), residual_(reading.residual), equations_(equations) {}

  Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const override {
    Decision decision = ForwardingPolicy::decide(ctx, input, state);
    const Tensor x = residual_ ? input.h : unit_input(ctx, input.model, input.layer, input.unit, input.h);
    std::vector<float> inputs(static_cast<size_t>(x.numel())), means(static_cast<size_t>(x.dim(0)));
    copy_to_host(ctx, x, inputs);
    copy_to_host(ctx, decision.score, means);
    std::vector<double> logits;
    for (const float mean : means) {
      const double open = std::clamp(double{mean}, kEdge, 1 - kEdge);
      logits.push_back(std::log(open / (1 - open)));
    }
    const auto gate = static_cast<size_t>(input.index()) % equations_.size();  // two of them when shared
    equations_[gate].add(ctx.pool(), inputs, logits);
    return decision;
  }

 private:
  bool residual_;
  std::vector<NormalEquations>& equations_;
};

}  // namespace

GateFit fit_gate_heads(Context& ctx, const GateReading& reading, const Model& model,
                       std::span<const Batch> batches, std::span<const GateHead> heads, double ridge) {
  std::vector<NormalEquations> equations(heads.size(), NormalEquations(model.config.width));
  const GateWatcher watcher(reading, equations);
  Progress progress("fitting gates", std::ssize(batches));
  for (const Batch& batch : batches) {
    const ArenaScope pass(ctx);
    const auto state = watcher.make_state(ctx, model.config, batch.sequences);
    forward(ctx, model, batch, FreshPass{}, watcher, *state);
    progress.add(1);
  }
  GateFit fit;
  double error = 0, variation = 0, count = 0;
  for (size_t gate = 0; gate < heads.size(); ++gate) {
    NormalEquations& own = equations[gate];
    if (own.rows() == 0) fail("gates cannot be fitted without text");
    const std::vector<double> w = own.solve(ridge);
    Tensor head = heads[gate].weight, bias = heads[gate].bias;
    const std::vector<float> fitted(w.begin(), w.end());
    copy_from_host(ctx, std::span(fitted).first(static_cast<size_t>(model.config.width)), head);
    copy_from_host(ctx, std::span(fitted).last(1), bias);
    error += own.squared_error(w);
    variation += own.variation();
    count += static_cast<double>(own.rows());
    fit.rows += own.rows();
  }
  fit.error = std::sqrt(error / count);
  fit.explained = variation > 0 ? 1 - error / variation : 1;
  return fit;
}

}  // namespace fathom
