// Drafting and verifying in one cache: which rows run what. A sequence that drafts leaves a part of the model
// out; one that verifies runs its drafted rows under the output's own policy, each from the block where its
// draft began to differ. Sequences in any phase can share a pass.
#pragma once

#include <vector>

#include "infer/agreement.h"
#include "model/kv_cache.h"
#include "skip/method.h"

namespace fathom {

enum class Phase : uint8_t { kPlain, kDraft, kVerify };

inline constexpr int64_t kMostDrafts = 16;  // rows of a draft

// What a sequence's drafts leave out.
struct DraftRule {
  std::vector<uint8_t> dropped;   // (2L): 1 for a unit that no drafted row runs; empty: none
  std::vector<float> thresholds;  // (2L): a MethodPolicy's, at the draft's budget; empty: as verified
};

class SpeculativeState final : public PolicyState {
 public:
  SpeculativeState(Context& ctx, const ModelConfig& config, int64_t sequences,
                   std::unique_ptr<PolicyState> inner);

  PolicyState& inner() { return *inner_; }
  int64_t truncate(Context& ctx, int32_t sequence, int64_t position) override {
    return inner_->truncate(ctx, sequence, position);
  }
  int64_t fork(Context& ctx, int32_t from, int32_t to, int64_t position) override {
    return inner_->fork(ctx, from, to, position);
  }
  int64_t settle(Context& ctx, int32_t sequence, int64_t rows) override {  // drafts are not there to stay
    return phase(sequence) == Phase::kPlain ? inner_->settle(ctx, sequence, rows) : -1;
  }
  void set_thresholds(Context& ctx, int32_t sequence, std::span<const float> thresholds) override {
    inner_->set_thresholds(ctx, sequence, thresholds);
  }
  void clear_thresholds(Context& ctx, int32_t sequence) override { inner_->clear_thresholds(ctx, sequence); }

  // The rows that the sequence is fed from now on are drafts, one in each pass. The rule stays where it is
  // until finish().
  void draft(Context& ctx, const KvCache& cache, int32_t sequence, const DraftRule& rule);
  // The next pass feeds the sequence's drafts again, and rows after them. Cache entries that the verifying
  // policy would not have made are forgotten: entry (i, ℓ) stays for ℓ < c_i, where c_i is the first block in
  // which row i, or a row before it, differs. (In block c_i itself a projected entry would still be right.
  // Made again it has the same bits, and its query needs the weights anyway.)
  void verify(Context& ctx, KvCache& cache, int32_t sequence);
  // Back to plain decoding.
  void finish(Context& ctx, int32_t sequence);

  Phase phase(int32_t sequence) const { return sequences_[static_cast<size_t>(sequence)].phase; }
  // c_i of the drafted rows.
  std::span<const int32_t> starts(int32_t sequence) const {
    return sequences_[static_cast<size_t>(sequence)].starts;
  }
  // f32 (kMostDrafts, width): h at the start of block c_i.
  Tensor saved(int32_t sequence) const { return saved_.rows(sequence * kMostDrafts, kMostDrafts); }

 private:
  friend class SpeculativePolicy;
  struct Sequence {
    Phase phase = Phase::kPlain;
    const DraftRule* rule = nullptr;  // unless kPlain
    int64_t first = 0;                // position of the first drafted row
    std::vector<int32_t> starts;      // c_i
  };
  // A row of a pass that enters it at a later block.
  struct Entrant {
    int32_t row, start;
    int64_t saved;
  };
  struct Presence {
    int32_t until;  // the block in which the next rows enter
    RowSet rows;
  };
  struct Pass {
    std::vector<int32_t> sequence, position;  // (rows)
    std::vector<DraftRow> drafts;
    std::vector<Entrant> entrants;
    std::vector<Presence> presence;  // the first blocks, in which some rows do not take part yet
    std::vector<int64_t> dropped;    // (2L): how many drafts do not run the unit by their rules
    Tensor allowed;                  // f32 (2L, rows): 0 for those; undefined: there are none
    bool judged = false;             // drafts have their own thresholds, beside the verifier's
    Agreement agreement;
  };
  void plan(Context& ctx, const Batch& batch, bool resumes);
  void plan_drops(Context& ctx, int64_t rows);
  void admit(Context& ctx, int64_t rows);
  const RowSet* present(int64_t layer) const;
  void keep_drafts(Context& ctx);

  SkipState& skip_state() { return static_cast<SkipState&>(*inner_); }  // where a rule has thresholds
  const DraftRule& rule_of(const DraftRow& draft) const;

  std::unique_ptr<PolicyState> inner_;
  int64_t units_, width_;
  int64_t busy_ = 0;  // sequences that are not in the plain phase
  std::vector<Sequence> sequences_;
  Tensor saved_;  // f32 (sequences · kMostDrafts, width)
  Pass pass_;
};

// Around the output's own policy. Where its rows cannot resume in a later block, every c_i is 0.
class SpeculativePolicy final : public ForwardingPolicy {
 public:
  using ForwardingPolicy::ForwardingPolicy;
  std::unique_ptr<PolicyState> make_state(Context& ctx, const ModelConfig& config,
                                          int64_t sequences) const override;
  void begin(Context& ctx, const Model& model, const Batch& batch, PolicyState& state) const override;
  Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const override;
  void join(Context& ctx, const UnitInput& input, const Decision& decision, const Tensor& branch, Tensor& h,
            PolicyState& state) const override;
  void after_block(Context& ctx, const UnitInput& input, Tensor& h, PolicyState& state) const override;

 private:
  void draft(Context& ctx, const UnitInput& input, SpeculativeState& state, Decision& decision) const;
};

// The method's state, under a SpeculativePolicy or without one; null: the policy is no method.
SkipState* skip_state_of(PolicyState& state);

}  // namespace fathom
