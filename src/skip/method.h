// A method: 26 functions in four groups. What it is (6), how a row is scored and joined (7), how budgets
// become thresholds (2), and what training needs (11). The defaults are the dense model's, so a method
// answers only where it differs. Another method can answer some of the questions: a hybrid is a config
// (skip/method_policy.h).
#pragma once

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/fields.h"
#include "ops/loss/output_loss.h"
#include "ops/rows/fill.h"
#include "ops/rows/select_rows.h"
#include "skip/measurements.h"
#include "skip/skip_state.h"

namespace fathom {

// Which units a method decides on.
enum class Units : uint8_t {
  kAttention,
  kFfn,
  kBoth,   // each for itself
  kBlock,  // attention decides, the FFN of the block follows
};
std::span<const std::string_view> enum_names(Units);  // "attention", "mlp", "both", "block"

// A tensor that a method owns, besides the model's.
struct MethodParameter {
  std::string name;  // "layers.3.attention.gate.weight"
  Tensor* tensor;    // f32
  Shape shape;
  float mean = 0, std = 0;  // at the start: N(mean, std), a constant where std is 0
  bool decay = true;        // weight decay applies
};

// What a method is asked with.
struct UnitCall {
  Context& ctx;
  const UnitInput& input;
  SkipState& state;
  int64_t rows() const { return input.h.dim(0); }
};

// What a loss is made of. weights: f32 (logit rows), summing to 1 over the step.
struct LossInput {
  const Model& model;
  const Batch& batch;
  OutputRows output;   // of the logit rows
  OutputRows teacher;  // the same at full depth; x undefined unless distilling
  Tensor targets;      // i32 (logit rows)
  Tensor weights;
  SkipState& state;
  float part = 1;  // of the step, where several micro-batches make one: penalties are scaled by it
};

// What a method is prepared from before its training: some batches of text, each a whole pass.
struct PrepareInput {
  const Model& model;
  std::span<const Batch> batches;
  SkippedKv skipped_kv;
  bool harm_order;  // start from the harm order (skip/harm_order.h) rather than as the paper does
  const std::vector<int32_t>& protect;
  const std::atomic<bool>* cancel = nullptr;  // when set, prepare() ends with PrepareCancelled
  Measurements* kept = nullptr;               // of this model on these batches; null: all is measured
};

// What a method is finished with after its training: some batches of text, each a whole pass.
struct FinishInput {
  const SkipPolicy& policy;  // the method's own, with the others of a hybrid
  const Model& model;
  std::span<const Batch> batches;
  const std::atomic<bool>* cancel = nullptr;  // when set, finish() ends with PrepareCancelled
};

struct PrepareCancelled {};  // thrown when `cancel` is set, after at most one more pass over a batch

// What holds for a configured method in every pass.
struct MethodTraits {
  Units units = Units::kBoth;       // the units that it decides on
  bool has_key_bias = false;        // as SkipPolicy::has_key_bias
  bool needs_whole_prompt = false;  // as SkipPolicy::needs_whole_prompt
  bool resumes = true;              // as SkipPolicy::resumes
  // Every row of every text runs the same units. No row ever reads the other units' keys and values.
  bool fixed_list = false;
  // At thresholds of −∞ every unit runs. False for a fixed list, and where training has fixed which units
  // may run.
  bool opens_fully = true;
  bool batch_quantile = false;    // has a rule for PassRules::batch_quantile
  bool straight_through = false;  // training needs the skipped rows' output, for the gradient of the mask
  bool freezes_backbone = false;  // as the paper trains it: routers only
  bool scales_branch = false;     // blend() multiplies the branch by more than decision.gate
  bool gates_input = false;       // score() makes the gate that multiplies the branch's input
  bool starts_by_harm = false;    // prepare() looks at PrepareInput::harm_order
  bool reads_share = false;       // training looks at the step's kept share
  bool distills = false;          // unless the recipe sets an objective, training distils from full depth
  bool fits_at_end = false;       // finish() has something to fit
  // Training draws rows at random, and thresholding the same scores keeps another share. Thresholds that keep
  // training's share are stored at the end (infer/trained_rule.h).
  bool keeps_density = false;
  // Each row is compared with a threshold, so calibration steers it by default (infer/calibrate.h).
  bool steers = false;
  const char* own_rule = "everything runs";  // what runs where no budget is asked for
  // Rows skip under the own rule, as in training. The end of training then compares the two shares.
  bool own_rule_skips = false;
};

struct UnitList {
  std::vector<int32_t> order;  // 2 · layer (+ 1: the FFN)
  std::vector<double> left;  // share of the blocks' multiply-adds that runs without the units up to this one
  // (units) −∞ where a unit runs at this budget, the largest number where it is dropped.
  std::vector<float> thresholds(double budget, int64_t units) const;
  // The same without the first `dropped` of the order.
  std::vector<float> without(size_t dropped, int64_t units) const;
};

class Method {
 public:
  virtual ~Method() = default;

  // Its config, its traits, its tensors, what it remembers.
  virtual std::vector<Field> fields() { return {}; }
  // Throws a UserError that says why the method cannot serve this model.
  virtual void check(const ModelConfig&) const {}
  virtual MethodTraits traits() const { return {}; }
  virtual std::vector<MethodParameter> parameters(const ModelConfig&) { return {}; }
  // Numbers that training moves and that are not parameters: controllers, prices. Saved with the rest.
  virtual std::vector<float*> controllers() { return {}; }
  virtual std::unique_ptr<MethodState> make_state(Context&, const ModelConfig&, int64_t /*sequences*/) const {
    return std::make_unique<MethodState>();
  }

  // How a row is scored and joined, in the order of a pass.
  virtual void begin(Context&, const Model&, const Batch&, SkipState&) const {}
  // Score: fills decision.score, .gate, .key_bias and .input_gate, as far as the method has them. Where
  // units is kBlock it is asked at the FFN again, with attention's decision in place.
  virtual void score(UnitCall&, Decision&) const {}
  // Decide: asked only where rows may skip. By default every row runs.
  virtual RowSet decide(UnitCall& call, const Decision&) const { return RowSet::all(call.rows()); }
  // What later rows see of one that skipped attention.
  virtual SkippedKv skipped_kv(bool /*training*/) const { return SkippedKv::kProject; }
  // Blend: the branch of the computed rows, scaled. By default decision.gate multiplies where there is one.
  virtual Tensor blend(UnitCall& call, const Decision& decision, const Tensor& branch) const;
  // Replaces the sum with the residual altogether; false: h + blend(branch). The branch is undefined where no
  // row of the pass ran.
  virtual bool joins(UnitCall&, const Decision&, const Tensor& /*branch*/, Tensor& /*h*/) const {
    return false;
  }
  virtual void after_block(UnitCall&, const Decision& /*attention's*/, Tensor& /*h*/) const {}

  // Units in the order in which budgets drop them, for every row alike: such budgets need no calibration.
  // Empty: there is no such order.
  virtual UnitList list(const ModelConfig&) const { return {}; }
  // How budgets become thresholds. 0: each unit has its own, the quantile that keeps the same share of rows
  // everywhere. Else: one number for the network, times this weight of the unit.
  virtual float threshold_weight(const ModelConfig&, int64_t /*unit*/, SkippedKv) const { return 0; }

  // What training needs, in the order of a run.
  // Throws a UserError if one value makes another useless, or if training and the finished method would run
  // different things. share: what every step keeps; NaN: it changes, or nothing learns.
  virtual void check_training(float /*share*/) const {}
  // Called when the weights are a pretrained model's: sets the start values for that.
  virtual void start_from_pretrained() {}
  // Measures what it needs to begin. It fills the fields measured() where they are empty, so that a run that
  // goes on takes them from its checkpoint.
  virtual void prepare(Context&, const PrepareInput&) {}
  virtual std::vector<std::string> measured() const { return {}; }
  // Objective: what is added to the task's loss, f32 (1), undefined: nothing. And where the task's loss is
  // not the cross-entropy of the last layer: that loss.
  virtual Tensor penalty(Context&, const LossInput&) const { return {}; }
  virtual Tensor task_loss(Context&, const LossInput&) const { return {}; }
  // Called for each micro-batch after its gradients; the first is part 0. adjust(), figures() and
  // after_step() then run once a step: the first two before the optimiser's step, the last one after it.
  virtual void observe(Context&, SkipState&, int64_t /*part*/) {}
  // The step's gradients of parameters(), in their order, before the optimiser takes them: views of what it
  // takes, f32 of the parameters' shapes, on the context's device.
  virtual void adjust(Context&, std::span<const Tensor> /*gradients*/) {}
  // Returns what after_step() has to know of the step: f32 (1) each, in the arena. They come to the host
  // together with the step's own numbers.
  virtual std::vector<Tensor> figures(Context&) { return {}; }
  virtual void after_step(std::span<const float> /*figures*/) {}
  // After the last step: fits what follows from everything else that has learned. Returns what there is to
  // say about it.
  virtual std::string finish(Context&, const FinishInput&) { return {}; }
};

// The rows that a unit computes: all of them when masked.
inline RowSet computed_rows(const UnitCall& call, const Decision& decision) {
  return decision.masked ? RowSet::all(call.rows()) : decision.kept;
}

// Decides by a threshold: score > that of the row's sequence at this unit or, where it has none, `own`, the
// method's rule. A budget does not open a unit further than `least`.
RowSet above_threshold(UnitCall& call, const Tensor& score, float own, float least = -INFINITY);

// One scalar router: w·x + b, without a sigmoid. x: (rows, width), weight: (1, width). Returns (rows).
Tensor scalar_head(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace fathom
