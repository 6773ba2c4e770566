// Who runs: the interface between the model and the methods. The model asks before every unit; it knows no
// method.
#pragma once

#include "model/batch.h"

namespace fathom {

enum class Unit : uint8_t { kAttention, kFfn };

// What later tokens see, in this layer, of a row that skipped attention.
enum class SkippedKv : uint8_t {
  kProject,  // its keys and values as usual
  kHide,     // nothing: no entry
};

struct UnitInput {
  int64_t layer;
  Unit unit;
  const Tensor& h;  // f32 (rows, width): the residual stream at this unit
  const Batch& batch;
};

struct Decision {
  RowSet kept = RowSet::none(0);
  SkippedKv skipped_kv = SkippedKv::kProject;
};

// What a policy remembers between units and steps, in memory of its own (the arena is given back after every
// unit); lives with the sequences' cache.
class PolicyState {
 public:
  virtual ~PolicyState() = default;
};

class SkipPolicy {
 public:
  virtual ~SkipPolicy() = default;
  virtual Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const = 0;
  // How the branch's output (kept.capacity(), width) re-enters the residual; as it is unless a method says
  // otherwise.
  virtual Tensor blend(Context&, const Decision&, const Tensor& branch) const { return branch; }
};

// Every row runs everything.
class DensePolicy final : public SkipPolicy {
 public:
  Decision decide(Context&, const UnitInput& input, PolicyState&) const override {
    return {RowSet::all(input.h.dim(0)), SkippedKv::kProject};
  }
};

}  // namespace fathom
