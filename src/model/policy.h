// The interface between the model and the methods. Before every unit the model asks a policy which rows run;
// it knows no method.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "model/batch.h"
#include "model/model.h"

namespace fathom {

enum class Unit : uint8_t { kAttention, kFfn };

// What later tokens see, in this layer, of a row that skipped attention.
enum class SkippedKv : uint8_t {
  kProject,        // its keys and values as usual
  kCopyFromBelow,  // those of the nearest layer below with the same RoPE (copied_layer)
  kHide,           // nothing: no entry
};
std::span<const std::string_view> enum_names(SkippedKv);  // "project", "copy", "hide"

struct UnitInput {
  const Model& model;
  int64_t layer;
  Unit unit;
  const Tensor& h;  // f32 (rows, width): the residual stream at this unit
  const Batch& batch;
  // The rows that take part in this block; null: all. The other rows enter at a later block, with a saved
  // state: until then their rows of h mean nothing.
  const RowSet* present = nullptr;
  int64_t index() const { return 2 * layer + (unit == Unit::kFfn ? 1 : 0); }  // of 2L units
};

struct Decision {
  RowSet kept = RowSet::none(0);
  SkippedKv skipped_kv = SkippedKv::kProject;
  // The rows that take part, as in UnitInput; `kept` is a subset. Other rows leave no entry.
  const RowSet* present = nullptr;
  // Compute every row and drop what the skipped ones give: the tests' oracle, and training where the gradient
  // of the decision needs the skipped branch's output. What the rows see of each other is the same either
  // way.
  bool masked = false;
  // join() adds the branch to the kept rows as it is: on a GPU that trains it may then be bf16.
  bool joins_as_it_is = false;
  // (rows, width): unit_input() of every row, where the policy has computed it for itself, in f32, or with a
  // tape in activation_type(). With a tape its gradient goes to h, and only a unit that takes every row reads
  // it.
  Tensor input{};
  Tensor key_bias{};    // f32 (rows): added to the logit of that row's key; undefined: none
  Tensor input_gate{};  // f32 (rows) or (rows, width): multiplies the branch's normalised input
  // The method's own, for its join(); the model does not read them.
  Tensor score{};  // f32 (rows)
  Tensor gate{};   // f32 (rows) or (rows, width)
};

// What a policy remembers between units, passes and steps; lives with the sequences' cache.
class PolicyState {
 public:
  virtual ~PolicyState() = default;
  // The sequence goes back to its first `position` rows. Returns how many rows the state still covers:
  // `position`, or 0 where the policy cannot go back that far and the sequence must be fed again.
  virtual int64_t truncate(Context&, int32_t /*sequence*/, int64_t position) { return position; }
  // The empty sequence `to` becomes the first `position` rows of `from`. Returns how many rows its state
  // covers: `position` or 0, as truncate().
  virtual int64_t fork(Context&, int32_t /*from*/, int32_t /*to*/, int64_t position) { return position; }
  // Says that the sequence's first `rows` rows stay. After this, a truncate() to fewer rows may return 0.
  // Returns the row whose decisions now hold for the whole sequence, or -1: none since the last call. In a
  // layer where that row left no cache entry, no later row reads any, so KvCache::settle empties the layer.
  virtual int64_t settle(Context&, int32_t /*sequence*/, int64_t /*rows*/) { return -1; }
  // At a calibrated budget a sequence has its own thresholds, one per unit (2L; NaN: the policy's own rule
  // there). They stay until they are set again or cleared, also when the sequence is truncated. Sequences
  // without thresholds, in the same pass too, follow the policy's own rule. A policy that does not decide by
  // thresholds throws a UserError.
  virtual void set_thresholds(Context&, int32_t sequence, std::span<const float> thresholds);
  virtual void clear_thresholds(Context&, int32_t /*sequence*/) {}
};

class SkipPolicy {
 public:
  virtual ~SkipPolicy() = default;
  virtual std::unique_ptr<PolicyState> make_state(Context&, const ModelConfig&, int64_t /*sequences*/) const {
    return std::make_unique<PolicyState>();
  }
  // Returns whether any Decision carries a key_bias. The cache then stores one with each entry.
  virtual bool has_key_bias() const { return false; }
  // Returns whether a row that skips may leave a copy of the keys and values below (kCopyFromBelow).
  virtual bool copies_kv(const ModelConfig&) const { return false; }
  // Returns whether decisions depend on the whole prompt at once. A prompt is then not fed in chunks, nor
  // shared.
  virtual bool needs_whole_prompt() const { return false; }
  // Returns whether a row may enter a pass at a later block, with its saved h. It may not where the policy
  // remembers more about a row from block to block than h.
  virtual bool resumes() const { return true; }

  // Before the first block. Tensors made here live until the pass ends; those made by the calls below until
  // their block does.
  virtual void begin(Context&, const Model&, const Batch&, PolicyState&) const {}
  virtual Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const = 0;
  // Adds the branch's output (rows computed, width) to the residual stream h; undefined when no row ran. The
  // default adds it unchanged.
  virtual void join(Context& ctx, const UnitInput& input, const Decision& decision, const Tensor& branch,
                    Tensor& h, PolicyState& state) const;
  virtual void after_block(Context&, const UnitInput&, Tensor& /*h*/, PolicyState&) const {}
  // Returns whether join() adds the branch of a unit that every row runs, and does nothing else. The model
  // may then add it without calling join().
  virtual bool only_adds() const { return false; }
};

// Adds the computed rows' branch to h where the rows are kept. Masked rows are dropped here.
// Straight-through, `score` (f32 (rows), undefined: no score learns) gets the gradient of the mask, in the
// rows that are computed.
void add_branch(Context& ctx, const Decision& decision, const Tensor& branch, const Tensor& score, Tensor& h);

// Passes every call on to another policy. A class derived from it can see or change some of the answers.
class ForwardingPolicy : public SkipPolicy {
 public:
  explicit ForwardingPolicy(const SkipPolicy& inner) : inner_(inner) {}
  std::unique_ptr<PolicyState> make_state(Context& ctx, const ModelConfig& config,
                                          int64_t sequences) const override {
    return inner_.make_state(ctx, config, sequences);
  }
  bool has_key_bias() const override { return inner_.has_key_bias(); }
  bool copies_kv(const ModelConfig& config) const override { return inner_.copies_kv(config); }
  bool needs_whole_prompt() const override { return inner_.needs_whole_prompt(); }
  bool resumes() const override { return inner_.resumes(); }
  void begin(Context& ctx, const Model& model, const Batch& batch, PolicyState& state) const override {
    inner_.begin(ctx, model, batch, state);
  }
  Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const override {
    return inner_.decide(ctx, input, state);
  }
  void join(Context& ctx, const UnitInput& input, const Decision& decision, const Tensor& branch, Tensor& h,
            PolicyState& state) const override {
    inner_.join(ctx, input, decision, branch, h, state);
  }
  void after_block(Context& ctx, const UnitInput& input, Tensor& h, PolicyState& state) const override {
    inner_.after_block(ctx, input, h, state);
  }

 private:
  const SkipPolicy& inner_;
};

// Every row runs everything.
class DensePolicy final : public SkipPolicy {
 public:
  Decision decide(Context&, const UnitInput& input, PolicyState&) const override {
    Decision decision;
    decision.kept = RowSet::all(input.h.dim(0));
    decision.joins_as_it_is = true;
    return decision;
  }
  bool only_adds() const override { return true; }
};

}  // namespace fathom
