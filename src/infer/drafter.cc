#include "infer/drafter.h"

#include <algorithm>
#include <limits>

#include "base/format.h"

namespace fathom {
namespace {

SpeculativeState* speculative(PolicyState& state, const Speculation& how) {
  auto* speculative = dynamic_cast<SpeculativeState*>(&state);
  if (!speculative && how.length.model) fail("speculation needs a feeder with a SpeculativePolicy");
  return how.length.model ? speculative : nullptr;
}

}  // namespace

Drafter::Drafter(Feeder& feeder, const Speculation& how, const AnswerOptions& options, int64_t prompt_tokens,
                 TokenMask* mask)
    : feeder_(feeder),
      state_(speculative(feeder.state(), how)),
      how_(how),
      speculator_(how.length, options, feeder.model().config.vocab, prompt_tokens, mask) {}

bool Drafter::start(int32_t sequence, std::span<const int32_t> history, int64_t most) {
  if (phase() != Phase::kPlain) return true;
  if (!speculator_.start(history, most)) return false;
  sequence_ = sequence;
  first_ = feeder_.cache().rows(sequence);
  const int64_t tokens = std::ssize(history);
  if (!lead_) lead_ = feeder_.dense_passes() - tokens;
  since_ = *lead_ + tokens;
  ran_.clear();
  if (phase() == Phase::kDraft) state_->draft(feeder_.context(), feeder_.cache(), sequence_, how_.rule);
  return true;
}

Feed Drafter::feed() const {
  const bool drafts = phase() == Phase::kDraft;
  return {.sequence = sequence_,
          .tokens = speculator_.tokens(),
          .logits = LogitsFor::kAll,
          .tentative = true,
          .again = drafts ? 0 : speculator_.drafting_passes(),
          .vocab = drafts ? how_.vocab : 0};
}

bool Drafter::take(const Tensor& logits, const Trace& trace, size_t row) {
  const bool drafted = phase() == Phase::kDraft;
  host_.resize(static_cast<size_t>(logits.numel()));
  copy_to_host(feeder_.context(), logits, host_);
  if (drafted && how_.vocab > 0) {  // whatever the pass read for others
    host_.resize(static_cast<size_t>(how_.vocab));
    host_.resize(static_cast<size_t>(feeder_.model().config.vocab), -std::numeric_limits<float>::infinity());
  }
  try {
    if (drafted) {
      take_draft(trace, row);
    } else {
      take_verified(trace, row);
    }
  } catch (const UserError&) {
    stop();
    throw;
  }
  return !drafted;
}

void Drafter::take_draft(const Trace& trace, size_t row) {
  speculator_.take_draft(host_);
  for (int64_t unit = 0; unit < trace.units(); ++unit) ran_.push_back(trace.ran(row, unit));
  if (phase() == Phase::kVerify) state_->verify(feeder_.context(), feeder_.cache(), sequence_);
}

void Drafter::take_verified(const Trace& trace, size_t row) {
  const std::span<const int32_t> given = speculator_.take_verified(host_);
  tokens_.assign(given.begin(), given.end());
  // A row's first blocks were run by its draft, as the verifying policy would have.
  const bool by_model = drafts_by_model();
  const std::span<const int32_t> starts = by_model ? state_->starts(sequence_) : std::span<const int32_t>();
  depths_.clear();
  units_.clear();
  units_of_a_row_ = static_cast<size_t>(trace.units());
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const int64_t drafted = i < starts.size() ? 2 * starts[i] : 0;  // units that the draft ran for good
    const size_t draft = i * units_of_a_row_;                       // where its units begin in ran_
    for (int64_t unit = 0; unit < trace.units(); ++unit)
      units_.push_back(unit < drafted ? ran_[draft + static_cast<size_t>(unit)] : trace.ran(row + i, unit));
    const auto units = units_.end() - trace.units();
    depths_.push_back(static_cast<double>(std::count(units, units_.end(), 1)) / 2);
  }
  if (by_model) state_->finish(feeder_.context(), sequence_);
  const int64_t kept = std::ssize(tokens_);
  feeder_.truncate(sequence_, first_ + kept);
  feeder_.settle(sequence_);
  feeder_.add_plain(kept, first_, since_);
}

std::span<const uint8_t> Drafter::units(size_t token) const {
  return std::span(units_).subspan(token * units_of_a_row_, units_of_a_row_);
}

void Drafter::stop() {
  if (phase() == Phase::kPlain) return;
  if (drafts_by_model()) state_->finish(feeder_.context(), sequence_);
  speculator_.abandon();
}

}  // namespace fathom
