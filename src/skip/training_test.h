// Losses and gradients of a method's training pass, and the differences they are checked against.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "ops/rows/add_rows.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/scale_rows.h"
#include "skip/tiny_model_test.h"

namespace fathom {

struct Trained {
  double loss = 0;
  std::vector<std::vector<float>> gradients;  // of each parameter, backbone first
  Seen seen;
};

class TinyTrainer {
 public:
  explicit TinyTrainer(Rig& rig) : rig_(rig) {
    for (const WeightSpec& spec : weight_specs(rig.model.config, rig.model.weights))
      add(spec.hf, spec.tensor);
    backbone_ = tensors_.size();
    for (const MethodParameter& parameter : rig.policy->parameters(rig.model.config))
      add(parameter.name, parameter.tensor);
  }

  size_t size() const { return tensors_.size(); }
  size_t backbone() const { return backbone_; }  // the parameters of the method start here
  const std::string& name(size_t i) const { return names_[i]; }
  Tensor& value(size_t i) { return *tensors_[i]; }

  // The loss under `policy` (undefined: the rig's), and its gradients where wanted. Targets are the next
  // tokens of random text.
  Trained run(const Rows& rows, PassOptions options, bool gradients = true,
              const SkipPolicy* policy = nullptr, SkipState* keep = nullptr) {
    Context& ctx = rig_.ctx;
    options.training = true;
    Tape tape(ctx.device());
    const TapeScope scope(ctx, tape);
    const RecordingScope recording(ctx, gradients);
    std::vector<Tensor> plain, sums;
    for (Tensor* tensor : tensors_) {
      plain.push_back(*tensor);
      sums.push_back(Tensor::owned(ctx.device(), DType::kF32, tensor->shape()));
      if (gradients) *tensor = parameter(*tensor, sums.back());
    }
    const auto tie = [&] {
      if (rig_.model.config.tied) rig_.model.weights.output = rig_.model.weights.embedding;
    };
    tie();
    Trained result;
    {
      const Batch batch = make_batch(ctx, rows);
      std::unique_ptr<SkipState> own;
      if (!keep) own = rig_.make_state(batch.sequences, options);
      SkipState& state = keep ? *keep : *own;
      rig_.set(state, options);
      const OutputRows output = forward_to_output(ctx, rig_.model, batch, FreshPass{.recompute = recompute},
                                                  Watch(policy ? *policy : *rig_.policy, result.seen), state);
      Rng rng(41);
      std::vector<int32_t> targets;
      for (size_t r = 0; r < rows.size(); ++r)
        targets.push_back(static_cast<int32_t>(rng.below(static_cast<uint32_t>(rig_.model.config.vocab))));
      const auto n = static_cast<int64_t>(rows.size());
      LossInput input{rig_.model,
                      batch,
                      output,
                      distilling() ? teacher(batch) : OutputRows(),
                      Tensor::from(ctx, targets, {n}),
                      Tensor::from(ctx, std::vector<float>(rows.size(), 1.0f / static_cast<float>(n)), {n}),
                      state};
      const Tensor loss = rig_.policy->loss(ctx, input);
      result.loss = static_cast<double>(loss.to(ctx, Device::kCpu).data<float>()[0]);
      if (gradients) tape.backward(ctx, loss);
      if (!keep) state.pass.units.clear();
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      *tensors_[i] = plain[i];
      result.gradients.emplace_back(static_cast<size_t>(sums[i].numel()));
      copy_to_host(ctx, sums[i], result.gradients.back());
    }
    tie();
    return result;
  }

  bool recompute = false;

 private:
  void add(const std::string& name, Tensor* tensor) {
    tensors_.push_back(tensor);
    names_.push_back(name);
  }
  bool distilling() const { return rig_.policy->options().objective == Objective::kDistill; }
  OutputRows teacher(const Batch& batch) {
    const RecordingScope quiet(rig_.ctx, false);
    PolicyState nothing;
    // Once: a teacher does not learn.
    if (!teacher_.x || teacher_.x.dim(0) != batch.rows()) {
      teacher_ = forward_to_output(rig_.ctx, rig_.model, batch, FreshPass{}, DensePolicy(), nothing);
      teacher_.weight = affine(rig_.ctx, detach(teacher_.weight), 1.0f, 0.0f);  // the model's moves
    }
    return teacher_;
  }

  Rig& rig_;
  std::vector<Tensor*> tensors_;
  std::vector<std::string> names_;
  size_t backbone_ = 0;
  OutputRows teacher_;
};

// What is straight-through.
enum class Through : uint8_t {
  kNothing,
  kMask,       // each branch's mask
  kBlockMask,  // MindSkip's over a block, as released: h + M · (A(h) + F(h + A(h)))
  kBlock,      // SkipLayer's factor of a block's output
  kUnit,       // the same of a unit's
};

// The function whose gradient a straight-through estimator is: the mask m replaced by m₀ + (s − s₀),
// SkipLayer's factor by 1 + (g − g₀). Decisions are replayed.
class Surrogate final : public ForwardingPolicy {
 public:
  Surrogate(const MethodPolicy& inner, const Seen& base, Through through)
      : ForwardingPolicy(inner), base_(base), through_(through) {}
  Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const override {
    if (input.unit == Unit::kAttention && through_ == Through::kBlockMask)
      before_ = affine(ctx, input.h, 1.0f, 0.0f);
    return ForwardingPolicy::decide(ctx, input, state);
  }
  void join(Context& ctx, const UnitInput& input, const Decision& decision, const Tensor& branch, Tensor& h,
            PolicyState& state) const override {
    if (through_ == Through::kBlockMask) return add_rows_to(ctx, h, RowSet::all(h.dim(0)), branch);
    if (through_ != Through::kMask || !decision.score || !branch) {
      ForwardingPolicy::join(ctx, input, decision, branch, h, state);
      if (through_ == Through::kUnit && decision.score) h = grown(ctx, input.index(), decision, h);
      return;
    }
    add_rows_to(ctx, h, RowSet::all(h.dim(0)), scale_rows(ctx, branch, moved(ctx, input.index(), decision)));
  }
  void after_block(Context& ctx, const UnitInput& input, Tensor& h, PolicyState& state) const override {
    const Decision& decision = static_cast<SkipState&>(state).pass.block;
    if (through_ == Through::kBlockMask) {
      if (!decision.score) return;
      const Tensor update = add(ctx, h, affine(ctx, before_, -1.0f, 0.0f));
      h = add(ctx, before_, scale_rows(ctx, update, moved(ctx, 2 * input.layer, decision)));
      return;
    }
    ForwardingPolicy::after_block(ctx, input, h, state);
    if (through_ == Through::kBlock && decision.score) h = grown(ctx, 2 * input.layer, decision, h);
  }

 private:
  // Run: h · (1 + (p − p₀)). Skipped: h · (1 + (1 − p) − (1 − p₀)).
  Tensor grown(Context& ctx, int64_t index, const Decision& decision, const Tensor& h) const {
    const auto unit = static_cast<size_t>(index);
    std::vector<float> factor;
    for (size_t r = 0; r < base_.scores[unit].size(); ++r) {
      const float more = decision.score.data<float>()[r] - base_.scores[unit][r];
      factor.push_back(1 + (base_.kept[unit][r] ? more : -more));
    }
    return scale_rows(ctx, h, Tensor::from(ctx, factor, {h.dim(0)}));
  }
  Tensor moved(Context& ctx, int64_t index, const Decision& decision) const {
    const auto unit = static_cast<size_t>(index);
    std::vector<float> mask;
    for (size_t r = 0; r < base_.scores[unit].size(); ++r)
      mask.push_back((base_.kept[unit][r] ? 1.0f : 0.0f) + decision.score.data<float>()[r] -
                     base_.scores[unit][r]);
    return Tensor::from(ctx, mask, {static_cast<int64_t>(mask.size())});
  }

  const Seen& base_;
  Through through_;
  mutable Tensor before_;  // h before the block
};

// Along the gradient and along a random direction, for every parameter from `first` to before `last`.
inline void expect_differences(TinyTrainer& trainer, const std::vector<std::vector<float>>& gradients,
                               const std::function<double()>& loss, size_t first = 0, double tolerance = 0.02,
                               size_t last = SIZE_MAX) {
  constexpr double kStep = 8e-3;
  for (size_t i = first; i < std::min(last, trainer.size()); ++i) {
    Tensor& value = trainer.value(i);
    const std::vector<float> saved(value.data<float>(), value.data<float>() + value.numel());
    double norm = 0;
    for (const float g : gradients[i]) norm += static_cast<double>(g) * static_cast<double>(g);
    norm = std::sqrt(norm);
    for (const bool along : {true, false}) {
      if (along && norm < 1e-7) continue;
      Rng rng(17, {static_cast<uint32_t>(i), 0, 0});
      std::vector<double> direction;
      double length = 0, expected = 0;
      for (const float g : gradients[i])
        direction.push_back(along ? static_cast<double>(g) : static_cast<double>(rng.normal()));
      for (const double d : direction) length += d * d;
      length = std::sqrt(length);
      for (size_t j = 0; j < direction.size(); ++j) {
        direction[j] /= length;
        expected += direction[j] * static_cast<double>(gradients[i][j]);
      }
      const auto at = [&](double step) {
        for (size_t j = 0; j < saved.size(); ++j)
          value.data<float>()[j] = static_cast<float>(static_cast<double>(saved[j]) + step * direction[j]);
        return loss();
      };
      const auto slope = [&](double step) { return (at(step) - at(-step)) / (2 * step); };
      double difference = slope(kStep), rounding = 2e-4;
      if (std::abs(difference - expected) > tolerance * norm + rounding) {  // a kink inside the step?
        difference = slope(kStep / 10);
        rounding = 2e-3;
      }
      at(0);
      EXPECT_NEAR(difference, expected, tolerance * norm + rounding)
          << trainer.name(i) << (along ? ", along the gradient" : ", along a random direction");
    }
  }
}

// What a config makes of a small model: its tensors at the start, logits and scores by its own rule, at a
// budget and by the batch's quantile, three training steps' losses, gradients and controllers, its tensors
// after a fit.
inline std::vector<float> numbers_of(const std::string& json, Device device = Device::kCpu) {
  Rig rig(json, tiny_config(), 0.3f, 1, device);
  std::vector<float> all;
  const auto take = [&](const std::vector<float>& more) { all.insert(all.end(), more.begin(), more.end()); };
  for (const MethodParameter& parameter : rig.policy->parameters(rig.model.config)) {
    const Tensor here = parameter.tensor->to(rig.ctx, Device::kCpu);
    take({here.data<float>(), here.data<float>() + here.numel()});
  }
  const Rows rows = random_rows({11, 8});
  {
    TinyRun session(rig, 2);
    take(session.pass(rows).logits);
    take(session.pass({{3, 11, 0, true, 100}, {4, 8, 1, true, 101}}).logits);
  }
  take(rig.fresh(rows, {.batch_quantile = true}).logits);
  for (const std::vector<float>& scores : rig.fresh(rows).scores) take(scores);
  rig.calibrate(0.5f);
  {
    TinyRun session(rig, 2);
    take(session.pass(rows).logits);
  }
  TinyTrainer trainer(rig);
  for (int64_t step = 0; step < 3; ++step) {
    const std::unique_ptr<SkipState> state = rig.make_state(2);
    const PassOptions options{.share = rig.policy->share_at(step, 4, 9), .step = step};
    Trained trained =
        trainer.run(random_rows({11, 8}, static_cast<uint64_t>(step)), options, true, nullptr, state.get());
    rig.policy->observe(rig.ctx, *state, 0);
    adjust_gradients(rig, std::span(trained.gradients).subspan(trainer.backbone()));
    after_step(rig);
    state->pass.units.clear();
    all.push_back(static_cast<float>(trained.loss));
    for (const auto& gradient : trained.gradients) take(gradient);
    for (const float* value : rig.policy->controllers()) all.push_back(*value);
  }
  if (!rig.policy->fits_at_end()) return all;
  const ArenaScope scope(rig.ctx);
  const std::vector<Batch> batches{make_batch(rig.ctx, random_rows({30, 25}, 31))};
  rig.policy->finish(rig.ctx, rig.model, batches);
  for (const MethodParameter& parameter : rig.policy->parameters(rig.model.config)) {
    const Tensor here = parameter.tensor->to(rig.ctx, Device::kCpu);
    take({here.data<float>(), here.data<float>() + here.numel()});
  }
  return all;
}

}  // namespace fathom
