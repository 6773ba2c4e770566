// What a method's policy remembers: the thresholds of sequences at a budget, how the pass runs, the training
// step it belongs to, and what each method keeps for itself.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "model/policy.h"
#include "skip/steering.h"
#include "skip/threshold_fit.h"

namespace fathom {

class Method;

// What a method remembers, per pass and per sequence.
class MethodState {
 public:
  virtual ~MethodState() = default;
  // As PolicyState's.
  virtual int64_t truncate(Context&, int32_t /*sequence*/, int64_t position) { return position; }
  virtual int64_t fork(Context&, int32_t /*from*/, int32_t /*to*/, int64_t position) { return position; }
  virtual int64_t settle(Context&, int32_t /*sequence*/, int64_t /*rows*/) { return -1; }
};

// The thresholds that sequences run at: those of their budgets, and for a while those of their drafts.
class ThresholdTable {
 public:
  void set_units(int64_t units) { units_ = units; }  // 2L
  // As PolicyState's.
  void set(Context& ctx, int32_t sequence, std::span<const float> thresholds);
  void clear(Context& ctx, int32_t sequence);
  bool any() const { return budgets_ > 0; }      // does any sequence have thresholds?
  bool steered() const { return steered_ > 0; }  // does any have steered ones? (Drafts' alone do not count.)
  // f32 (sequences, 5 · 2L), the parts as in Steering: NaN where a sequence has none. While
  // judging: without the drafts'.
  const Tensor& table() const { return judging ? own_ : table_; }

  // A sequence that drafts (infer/speculative_policy.h) runs at other thresholds until end_draft(). After
  // each decision `judged` has the rows that would have run at the sequences' own budgets.
  void begin_draft(Context& ctx, int32_t sequence, std::span<const float> thresholds);
  void end_draft(Context& ctx, int32_t sequence);
  bool drafts() const { return drafts_ > 0; }  // does any sequence draft?
  bool judging = false;                        // table() is without the drafts'
  RowSet judged = RowSet::none(0);             // means nothing while no sequence drafts

 private:
  enum class Draft : uint8_t { kNone, kWithOwn, kWithoutOwn };  // kWithOwn: to be set again when it ends
  struct Slot {
    bool at_budget = false;  // has thresholds
    bool steered = false;    // its own are steered
    Draft draft = Draft::kNone;
  };
  void make_room(Context& ctx, int32_t sequence, int64_t values);
  void set_steered(Slot& slot, bool steered);
  void write(Context& ctx, int32_t sequence, std::span<const float> thresholds);

  std::vector<float> row_;  // what write() copies
  Tensor table_;
  Tensor own_;               // the same without drafts, once there was one
  std::vector<Slot> slots_;  // (sequences)
  int64_t units_ = 0;
  int64_t budgets_ = 0, steered_ = 0, drafts_ = 0;  // slots that have thresholds, steered ones; that draft
};

// What happened at a unit, for objectives, replay and pictures.
struct UnitRecord {
  int64_t unit = 0;  // 2 · layer + (0: attention, 1: FFN)
  Decision decision;
};

// How a pass runs, as its caller sets it, and what it leaves behind.
struct PassRules {
  bool masked = false;                                 // the oracle: compute every row, drop what is skipped
  bool recording = false;                              // fill `units` (training always does)
  bool batch_quantile = false;                         // GateSkip's rule as printed: for reproduction only
  const std::vector<RowSet>* replay = nullptr;         // (2L): these rows run; nothing is decided again
  std::vector<std::vector<float>>* collect = nullptr;  // (2L): calibration gathers the rows' scores here
  ThresholdFit* fit = nullptr;                         // calibration finds thresholds here

  // Filled as it runs.
  std::vector<UnitRecord> units;
  Decision block;      // attention's, while its block lasts
  Tensor block_input;  // f32 (rows, width): h before the block, where one mask over the whole block learns
};

// The training step that a pass belongs to, as the trainer sets it.
struct TrainingStep {
  bool on = false;  // false: the pass is inference
  uint64_t seed = 0;
  int64_t step = 0;
  float share = 1;  // how much training asks to keep at this step: the papers' b, P, capacity, our β
  bool learns_text = false;  // a step of a run that distils, without its teacher
  explicit operator bool() const { return on; }
};

class SkipState final : public PolicyState {
 public:
  int64_t truncate(Context& ctx, int32_t sequence, int64_t position) override;
  int64_t fork(Context& ctx, int32_t from, int32_t to, int64_t position) override;
  int64_t settle(Context& ctx, int32_t sequence, int64_t rows) override;
  void set_thresholds(Context& ctx, int32_t sequence, std::span<const float> values) override;
  void clear_thresholds(Context& ctx, int32_t sequence) override { thresholds.clear(ctx, sequence); }
  // The state that `method` made for itself.
  template <class State>
  State& of(const Method& method) {
    return static_cast<State&>(*methods.at(&method));
  }

  ThresholdTable thresholds;
  SteeringHistory history;  // where thresholds are steered
  PassRules pass;
  TrainingStep training;
  std::map<const Method*, std::unique_ptr<MethodState>> methods;
  const Method* alone = nullptr;  // the method that both scores and decides; null: two methods do
};

}  // namespace fathom
