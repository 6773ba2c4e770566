#include "infer/speculative_policy.h"

#include <algorithm>

#include "base/format.h"
#include "ops/rows/assign.h"
#include "ops/rows/fill.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/select_rows.h"

namespace fathom {
namespace {

SpeculativeState& own(PolicyState& state) {
  return static_cast<SpeculativeState&>(state);
}

RowSet where(Context& ctx, const Tensor& mask) {
  return select_rows(ctx, mask, Compare::kAbove, scalar(ctx, 0.5f));
}

RowSet both(Context& ctx, const RowSet& a, const RowSet& b, int64_t rows) {
  if (a.is_all() || b.is_none()) return b;
  if (b.is_all() || a.is_none()) return a;
  return where(ctx, multiply(ctx, row_mask(ctx, a, rows), row_mask(ctx, b, rows)));
}

RowSet static_rows(Context& ctx, std::span<const int32_t> ids) {
  const auto count = static_cast<int32_t>(ids.size());
  return RowSet::some(Tensor::from(ctx, ids, {count}), known_count(ctx, count));
}

}  // namespace

SpeculativeState::SpeculativeState(Context& ctx, const ModelConfig& config, int64_t sequences,
                                   std::unique_ptr<PolicyState> inner)
    : inner_(std::move(inner)),
      units_(2 * config.layers),
      width_(config.width),
      sequences_(static_cast<size_t>(sequences)),
      saved_(Tensor::owned(ctx.device(), DType::kF32, {sequences * kMostDrafts, config.width})) {
  for (Sequence& sequence : sequences_) sequence.starts.reserve(kMostDrafts);
}

void SpeculativeState::draft(Context& ctx, const KvCache& cache, int32_t sequence, const DraftRule& rule) {
  Sequence& mine = sequences_[static_cast<size_t>(sequence)];
  busy_ += mine.phase == Phase::kPlain ? 1 : 0;
  mine.phase = Phase::kDraft;
  mine.rule = &rule;
  mine.first = cache.rows(sequence);
  mine.starts.clear();
  if (!rule.thresholds.empty()) skip_state().thresholds.begin_draft(ctx, sequence, rule.thresholds);
}

void SpeculativeState::verify(Context& ctx, KvCache& cache, int32_t sequence) {
  Sequence& mine = sequences_[static_cast<size_t>(sequence)];
  mine.phase = Phase::kVerify;
  if (!mine.rule->thresholds.empty()) skip_state().thresholds.end_draft(ctx, sequence);
  for (int64_t layer = cache.layers() - 1; layer >= 0; --layer) {
    // c never rises from row to row: what is right in a layer are the first rows.
    const auto right =
        std::count_if(mine.starts.begin(), mine.starts.end(), [&](int32_t start) { return layer < start; });
    cache.truncate_layer(ctx, layer, sequence, mine.first + right);
  }
}

void SpeculativeState::finish(Context& ctx, int32_t sequence) {
  Sequence& mine = sequences_[static_cast<size_t>(sequence)];
  if (mine.phase == Phase::kPlain) return;
  --busy_;
  mine.phase = Phase::kPlain;
  if (!mine.rule->thresholds.empty()) skip_state().thresholds.end_draft(ctx, sequence);
}

const DraftRule& SpeculativeState::rule_of(const DraftRow& draft) const {
  const int32_t sequence = pass_.sequence[static_cast<size_t>(draft.row)];
  return *sequences_[static_cast<size_t>(sequence)].rule;
}

// Who drafts in this pass, and who enters it later.
void SpeculativeState::plan(Context& ctx, const Batch& batch, bool resumes) {
  pass_.drafts.clear();
  pass_.entrants.clear();
  pass_.presence.clear();
  if (busy_ == 0) return;
  const auto rows = static_cast<size_t>(batch.rows());
  pass_.sequence.resize(rows);
  pass_.position.resize(rows);
  std::vector<BatchRow> room;
  const std::span<const BatchRow> host = rows_on_host(ctx, batch, room);
  for (size_t row = 0; row < rows; ++row) {
    pass_.sequence[row] = host[row].sequence;
    pass_.position[row] = host[row].position;
  }
  for (size_t row = 0; row < rows; ++row) {
    const int32_t sequence = pass_.sequence[row];
    const Sequence& of = sequences_[static_cast<size_t>(sequence)];
    const int64_t at = pass_.position[row] - of.first;
    if (of.phase == Phase::kDraft) {
      if (at >= kMostDrafts) fail("a draft has at most {} rows", kMostDrafts);
      const int32_t limit = !resumes ? 0 : of.starts.empty() ? INT32_MAX : of.starts.back();
      pass_.drafts.push_back({static_cast<int32_t>(row), limit});
    } else if (of.phase == Phase::kVerify && at < std::ssize(of.starts)) {
      const int32_t start = of.starts[static_cast<size_t>(at)];
      if (start > 0)
        pass_.entrants.push_back({static_cast<int32_t>(row), start, sequence * kMostDrafts + at});
    }
  }
  if (!pass_.entrants.empty()) admit(ctx, batch.rows());
  if (pass_.drafts.empty()) return;
  plan_drops(ctx, batch.rows());
  pass_.judged = resumes && std::any_of(pass_.drafts.begin(), pass_.drafts.end(), [&](const DraftRow& draft) {
                   return !rule_of(draft).thresholds.empty();
                 });
  pass_.agreement.begin(ctx, pass_.drafts, batch.rows(), width_);
}

// Each sequence's drafts leave out their own units.
void SpeculativeState::plan_drops(Context& ctx, int64_t rows) {
  pass_.dropped.assign(static_cast<size_t>(units_), 0);
  pass_.allowed = {};
  std::vector<float> allowed(static_cast<size_t>(units_ * rows), 1.0f);
  bool any = false;
  for (const DraftRow& draft : pass_.drafts) {
    const std::vector<uint8_t>& dropped = rule_of(draft).dropped;
    for (size_t unit = 0; unit < dropped.size(); ++unit) {
      if (!dropped[unit]) continue;
      any = true;
      ++pass_.dropped[unit];
      allowed[unit * static_cast<size_t>(rows) + static_cast<size_t>(draft.row)] = 0.0f;
    }
  }
  if (any) pass_.allowed = Tensor::from(ctx, allowed, {units_, rows});
}

// The rows that take part, for each run of blocks in which they are the same.
void SpeculativeState::admit(Context& ctx, int64_t rows) {
  std::vector<int32_t> start_of(static_cast<size_t>(rows)), present;
  for (const Entrant& entrant : pass_.entrants) start_of[static_cast<size_t>(entrant.row)] = entrant.start;
  for (int32_t from = 0; from != INT32_MAX;) {
    int32_t next = INT32_MAX;
    present.clear();
    for (int32_t row = 0; row < rows; ++row) {
      const int32_t start = start_of[static_cast<size_t>(row)];
      if (start <= from) {
        present.push_back(row);
      } else {
        next = std::min(next, start);
      }
    }
    if (next != INT32_MAX)
      pass_.presence.push_back({next, present.empty() ? RowSet::none(rows) : static_rows(ctx, present)});
    from = next;
  }
}

const RowSet* SpeculativeState::present(int64_t layer) const {
  for (const Presence& presence : pass_.presence) {
    if (layer < presence.until) return &presence.rows;
  }
  return nullptr;
}

void SpeculativeState::keep_drafts(Context& ctx) {
  const std::span<const int32_t> blocks = pass_.agreement.blocks(ctx);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const int32_t row = pass_.drafts[i].row, sequence = pass_.sequence[static_cast<size_t>(row)];
    std::vector<int32_t>& starts = sequences_[static_cast<size_t>(sequence)].starts;
    Tensor slot = saved_.rows(sequence * kMostDrafts + std::ssize(starts), 1);
    if (blocks[i] > 0) assign(ctx, slot, pass_.agreement.states().rows(row, 1));
    starts.push_back(blocks[i]);
  }
}

std::unique_ptr<PolicyState> SpeculativePolicy::make_state(Context& ctx, const ModelConfig& config,
                                                           int64_t sequences) const {
  return std::make_unique<SpeculativeState>(ctx, config, sequences,
                                            ForwardingPolicy::make_state(ctx, config, sequences));
}

void SpeculativePolicy::begin(Context& ctx, const Model& model, const Batch& batch,
                              PolicyState& state) const {
  own(state).plan(ctx, batch, resumes());
  ForwardingPolicy::begin(ctx, model, batch, own(state).inner());
}

Decision SpeculativePolicy::decide(Context& ctx, const UnitInput& input, PolicyState& state) const {
  SpeculativeState& mine = own(state);
  UnitInput seen = input;
  seen.present = mine.present(input.layer);
  Decision decision = ForwardingPolicy::decide(ctx, seen, mine.inner());
  if (!mine.pass_.drafts.empty()) draft(ctx, seen, mine, decision);
  if (seen.present) {
    decision.kept = both(ctx, decision.kept, *seen.present, input.h.dim(0));
    decision.present = seen.present;
  }
  return decision;
}

// What the rules leave of the inner policy's decision.
void SpeculativePolicy::draft(Context& ctx, const UnitInput& input, SpeculativeState& state,
                              Decision& decision) const {
  SpeculativeState::Pass& pass = state.pass_;
  const int64_t rows = input.h.dim(0), dropped = pass.dropped[static_cast<size_t>(input.index())];
  const RowSet verifier = pass.judged ? state.skip_state().thresholds.judged : decision.kept;
  if (dropped > 0) {
    const bool hides =
        decision.kept.is_all() && verifier.is_all() && copied_layer(input.model.config, input.layer) >= 0;
    const auto allowed = [&] { return pass.allowed.rows(input.index(), 1).reshape({rows}); };
    decision.kept =
        dropped == rows ? RowSet::none(rows) : both(ctx, decision.kept, where(ctx, allowed()), rows);
    // No draft of the sequence asks this unit, so none looks for the entry, and verification begins here or
    // below: it runs what was dropped. (Where a rule copies entries, the first layer of a kind has to have
    // them.)
    if (hides && decision.skipped_kv == SkippedKv::kProject) decision.skipped_kv = SkippedKv::kHide;
    if (verifier.is_all() && dropped == std::ssize(pass.drafts)) return pass.agreement.part();
  }
  if (dropped > 0 || pass.judged) pass.agreement.unit(ctx, verifier, decision.kept);
}

void SpeculativePolicy::join(Context& ctx, const UnitInput& input, const Decision& decision,
                             const Tensor& branch, Tensor& h, PolicyState& state) const {
  ForwardingPolicy::join(ctx, input, decision, branch, h, own(state).inner());
}

void SpeculativePolicy::after_block(Context& ctx, const UnitInput& input, Tensor& h,
                                    PolicyState& state) const {
  SpeculativeState& mine = own(state);
  ForwardingPolicy::after_block(ctx, input, h, mine.inner());
  SpeculativeState::Pass& pass = mine.pass_;
  for (const auto& entrant : pass.entrants) {
    if (entrant.start != input.layer + 1) continue;
    Tensor row = h.rows(entrant.row, 1);
    assign(ctx, row, mine.saved_.rows(entrant.saved, 1));
  }
  if (pass.drafts.empty()) return;
  pass.agreement.block(ctx, input.layer, h);
  if (input.layer + 1 == input.model.config.layers) mine.keep_drafts(ctx);
}

SkipState* skip_state_of(PolicyState& state) {
  auto* speculative = dynamic_cast<SpeculativeState*>(&state);
  return dynamic_cast<SkipState*>(speculative ? &speculative->inner() : &state);
}

}  // namespace fathom
