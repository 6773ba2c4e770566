// A method answers five questions about every unit, and that is all it is: how a row is rated (score), who
// runs (decide), how the output re-enters the residual (blend), what others see of a skipped row (skipped
// K/V), and what training pushes towards (objective). One method can answer all five, or another one some of
// them: a hybrid is a config (skip/method_policy.h).
#pragma once

#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/fields.h"
#include "model/policy.h"
#include "ops/rows/select_rows.h"

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

// What a method remembers, per pass and per sequence.
class MethodState {
 public:
  virtual ~MethodState() = default;
  // As PolicyState's.
  virtual int64_t truncate(Context&, int32_t /*sequence*/, int64_t position) { return position; }
  virtual int64_t fork(Context&, int32_t /*from*/, int32_t /*to*/, int64_t position) { return position; }
  virtual int64_t settle(Context&, int32_t /*sequence*/, int64_t /*rows*/) { return -1; }
};

// Calibration of methods whose units have thresholds of their own: found while one pass goes through the
// network, so that each is a quantile of the scores that rows have after everything below has skipped.
struct ThresholdFit {
  float share = 0;                // of each unit's rows that is to skip
  std::vector<float> thresholds;  // (2L), −∞ where nobody asked
};

// What happened at a unit, for objectives, replay and pictures.
struct UnitRecord {
  int64_t unit = 0;  // 2 · layer + (0: attention, 1: FFN)
  Decision decision;
};

class Method;

class SkipState final : public PolicyState {
 public:
  int64_t truncate(Context& ctx, int32_t sequence, int64_t position) override;
  int64_t fork(Context& ctx, int32_t from, int32_t to, int64_t position) override;
  int64_t settle(Context& ctx, int32_t sequence, int64_t rows) override;
  // The state that `method` made for itself.
  template <class State>
  State& of(const Method& method) {
    return static_cast<State&>(*methods.at(&method));
  }

  // At a calibrated budget a sequence has its own thresholds, one per unit (NaN: the method's own rule
  // there). They stay until they are set anew or cleared, whatever becomes of the sequence's rows; others in
  // the same pass may have theirs, or none: these follow the method's own rule.
  void set_thresholds(Context& ctx, int32_t sequence, std::span<const float> thresholds);
  void clear_thresholds(Context& ctx, int32_t sequence);
  bool has_thresholds() const { return budgets_ > 0; }                       // of any sequence
  const Tensor& thresholds() const { return judging ? own_ : thresholds_; }  // f32 (sequences, 2L)

  // A sequence that drafts (infer/speculative_policy.h) runs at other thresholds for a while. What the own
  // ones of each sequence say of the same rows stands in `judged`, after each decision.
  void begin_draft(Context& ctx, int32_t sequence, std::span<const float> thresholds);
  void end_draft(Context& ctx, int32_t sequence);
  bool drafts() const { return drafts_ > 0; }  // any sequence does
  bool judging = false;                        // thresholds() are the sequences' own
  RowSet judged = RowSet::none(0);             // means nothing while nobody drafts

  // Set by the trainer.
  bool training = false;
  uint64_t seed = 0;
  int64_t step = 0;
  float share = 1;  // how much training asks to keep at this step: the papers' b, P, capacity, our β

  // Set by whoever runs the pass.
  bool masked = false;                                 // the oracle: compute every row, drop what is skipped
  bool recording = false;                              // fill `units` (training always does)
  const std::vector<RowSet>* replay = nullptr;         // (2L): these rows run; nothing is decided again
  bool batch_quantile = false;                         // GateSkip's rule as printed: for reproduction only
  std::vector<std::vector<float>>* collect = nullptr;  // (2L): calibration gathers the rows' scores here
  ThresholdFit* fit = nullptr;                         // calibration finds thresholds here
  std::vector<UnitRecord> units;                       // of this pass
  Decision block;                                      // attention's, while its block lasts
  Tensor block_input;  // f32 (rows, width): h before the block, where one mask over the whole block learns
  const Method* alone = nullptr;  // the method that both scores and decides; null: two methods do
  std::map<const Method*, std::unique_ptr<MethodState>> methods;

 private:
  enum class Draft : uint8_t { kNone, kWithOwn, kWithoutOwn };  // kWithOwn: to be set again when it ends
  struct Slot {
    bool at_budget = false;  // has thresholds
    Draft draft = Draft::kNone;
  };
  void make_room(Context& ctx, int32_t sequence, int64_t columns);
  void write(Context& ctx, int32_t sequence, std::span<const float> thresholds);

  Tensor thresholds_;                 // NaN where a sequence has none
  Tensor own_;                        // the same without drafts, once there was one
  std::vector<Slot> slots_;           // (sequences)
  int64_t budgets_ = 0, drafts_ = 0;  // slots that have thresholds, that draft
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
  Tensor logits;   // f32 (logit rows, vocab)
  Tensor teacher;  // the same at full depth; undefined unless distilling
  Tensor targets;  // i32 (logit rows)
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
  const std::atomic<bool>* cancel = nullptr;  // set: what is being measured ends with PrepareCancelled
};

struct PrepareCancelled {};  // thrown, at the latest after one more pass over a batch

class Method {
 public:
  virtual ~Method() = default;
  virtual std::vector<Field> fields() { return {}; }
  // Can it serve this model? A UserError that says why not.
  virtual void check(const ModelConfig&) const {}
  virtual std::vector<MethodParameter> parameters(const ModelConfig&) { return {}; }
  virtual std::unique_ptr<MethodState> make_state(Context&, const ModelConfig&, int64_t /*sequences*/) const {
    return std::make_unique<MethodState>();
  }
  virtual bool freezes_backbone() const { return false; }  // as the paper trains it: routers only
  // The weights are a pretrained model's, not new ones: what is left to the method starts accordingly.
  virtual void start_from_pretrained() {}
  virtual void prepare(Context&, const PrepareInput&) {}
  // Numbers that training moves and that are not parameters: controllers, prices. Saved with the rest.
  virtual std::vector<float*> controllers() { return {}; }

  virtual Units units() const { return Units::kBoth; }
  virtual void begin(Context&, const Model&, const Batch&, SkipState&) const {}

  // How a budget turns into thresholds: 0, each unit has its own, the quantile that keeps the same share of
  // rows everywhere; else one number for the network, times this weight of the unit.
  virtual float threshold_weight(const ModelConfig&, int64_t /*unit*/, SkippedKv) const { return 0; }

  // The same units for every row of every text: nobody ever looks at the keys and values of the others.
  virtual bool is_fixed_list() const { return false; }
  // Has it a rule of its own for SkipState::batch_quantile?
  virtual bool has_batch_quantile() const { return false; }

  // Does everything run at thresholds of −∞? Not where a list is fixed, nor beyond what training settled.
  virtual bool opens_fully() const { return true; }

  // Score: fills decision.score, .gate, .key_bias and .input_gate, as far as the method has them. Where
  // units() is kBlock it is asked at the FFN again, with attention's decision in place.
  virtual void score(UnitCall&, Decision&) const {}
  // Decide: asked only where rows may skip. By default everybody runs.
  virtual RowSet decide(UnitCall& call, const Decision&) const { return RowSet::all(call.rows()); }
  // Does training need the skipped rows' output (straight-through on the mask)?
  virtual bool straight_through() const { return false; }
  // Blend: the branch of the computed rows, scaled. By default decision.gate multiplies where there is one.
  virtual Tensor blend(UnitCall& call, const Decision& decision, const Tensor& branch) const;
  // Replaces the sum with the residual altogether; false: h + blend(branch). The branch is undefined where no
  // row of the pass ran.
  virtual bool joins(UnitCall&, const Decision&, const Tensor& /*branch*/, Tensor& /*h*/) const {
    return false;
  }
  virtual void after_block(UnitCall&, const Decision& /*attention's*/, Tensor& /*h*/) const {}

  virtual SkippedKv skipped_kv(bool /*training*/) const { return SkippedKv::kProject; }
  virtual bool has_key_bias() const { return false; }
  virtual bool resumes() const { return true; }  // as SkipPolicy::resumes
  // Do its decisions depend on the whole prompt at once? Then it may not be fed in chunks, nor shared.
  virtual bool needs_whole_prompt() const { return false; }

  // Objective: what is added to the task's loss, f32 (1), undefined: nothing. And where the task's loss is
  // not the cross-entropy of the last layer: that loss.
  virtual Tensor penalty(Context&, const LossInput&) const { return {}; }
  virtual Tensor task_loss(Context&, const LossInput&) const { return {}; }
  // What the pass of a micro-batch recorded, after its gradients; the first of a step is part 0. Then
  // adjust() and, once the optimiser has stepped, after_step(): what follows from all of them.
  virtual void observe(Context&, SkipState&, int64_t /*part*/) {}
  // The step's gradients of parameters(), in their order, before the optimiser takes them.
  virtual void adjust(std::span<const std::span<float>> /*gradients*/) {}
  virtual void after_step(Context&) {}
};

// The rows that a unit computes: all of them when masked.
inline RowSet computed_rows(const UnitCall& call, const Decision& decision) {
  return decision.masked ? RowSet::all(call.rows()) : decision.kept;
}

// Decides by a threshold: score > that of the row's sequence at this unit or, where it has none, `own`, the
// method's rule. A budget does not open a unit further than `least`.
RowSet above_threshold(UnitCall& call, const Tensor& score, float own, float least = -INFINITY);

// One scalar router: sigmoid or not of w·x + b. x: (rows, width), weight: (1, width) -> (rows)
Tensor scalar_head(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias = {});

// f32 (1), on the context's device.
Tensor scalar(Context& ctx, float value);

}  // namespace fathom
