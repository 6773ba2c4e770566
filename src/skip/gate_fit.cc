#include "skip/gate_fit.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "base/progress.h"
#include "model/transformer.h"
#include "skip/least_squares.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr double kEdge = 1e-6;  // gates are kept this far from 0 and 1

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
