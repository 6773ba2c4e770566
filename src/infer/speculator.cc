#include "infer/speculator.h"

#include <algorithm>
#include <limits>

#include "base/format.h"

namespace fathom {

bool accepts(const Distribution& p, const Distribution& q, int32_t draft, Rng& rng) {
  const double wanted = probability_of(p, draft), offered = probability_of(q, draft);
  return rng.uniform_double() * offered < wanted;
}

int32_t sample_residual(const Distribution& p, const Distribution& q, Rng& rng) {
  Distribution rest = p;
  double sum = 0;
  for (size_t i = 0; i < rest.ids.size(); ++i) {
    rest.probabilities[i] = std::max(0.0f, rest.probabilities[i] - probability_of(q, rest.ids[i]));
    sum += rest.probabilities[i];
  }
  // p and q are rounded: where they are as good as equal nothing may be left.
  return sample(sum > 0 ? rest : p, rng);
}

SpeculationCounts& SpeculationCounts::operator+=(const SpeculationCounts& other) {
  drafted += other.drafted;
  accepted += other.accepted;
  draft_passes += other.draft_passes;
  verify_passes += other.verify_passes;
  return *this;
}

Speculator::Speculator(DraftLength length, const AnswerOptions& options, int64_t vocab, int64_t prompt_tokens,
                       TokenMask* mask)
    : length_(length),
      mask_(mask),
      sampler_(options.sampler, vocab),
      vocab_(static_cast<size_t>(vocab)),
      end_ids_(options.end_ids),
      first_end_(static_cast<size_t>(prompt_tokens + options.min_tokens)),
      q_(kMostDrafts) {}

bool Speculator::start(std::span<const int32_t> history, int64_t most) {
  if (plain_at_ == history.size()) return false;
  if (plain_at_ > 0) length_.plain();
  plain_at_ = 0;
  wanted_ = length_.next(std::min(most, kMostDrafts));
  if (wanted_ <= 0) {
    plain_at_ = history.size();
    return false;
  }
  phase_ = Phase::kDraft;
  before_ = history.size();
  history_.assign(history.begin(), history.end());
  drafts_.clear();
  fed_.assign(1, history.back());
  return true;
}

std::span<const int32_t> Speculator::tokens() const {
  const std::span<const int32_t> all = fed_;
  return phase_ == Phase::kDraft ? all.last(1) : all;
}

// As Writer::write forbids them.
std::span<const float> Speculator::allowed(std::span<const float> logits) {
  const bool may_end = history_.size() >= first_end_ || end_ids_.empty();
  if (may_end && !mask_) return logits;
  allowed_.assign(logits.begin(), logits.end());
  for (const int32_t id : end_ids_) {
    if (!may_end && id >= 0 && static_cast<size_t>(id) < allowed_.size())
      allowed_[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
  }
  if (mask_) mask_->forbid(allowed_);
  return allowed_;
}

// The token comes into the history of this round.
void Speculator::accept(int32_t token) {
  history_.push_back(token);
  if (!mask_) return;
  mask_->accept(token);
  ++masked_;
}

// The mask forgets this round.
void Speculator::take_back() {
  if (mask_ && masked_ > 0) mask_->rollback(masked_);
  masked_ = 0;
}

void Speculator::abandon() {
  take_back();
  phase_ = Phase::kPlain;
}

void Speculator::take_draft(std::span<const float> logits) {
  const auto position = static_cast<int64_t>(history_.size());
  Distribution& q = q_[drafts_.size()];
  q = sampler_.probabilities(allowed(logits), history_);
  Rng rng = rng_for(sampler_.config().seed, position, Draw::kDraft);
  const int32_t draft = sample(q, rng);
  drafts_.push_back(draft);
  fed_.push_back(draft);
  accept(draft);
  ++counts_.draft_passes;
  const bool ends = std::find(end_ids_.begin(), end_ids_.end(), draft) != end_ids_.end();
  if (ends || std::ssize(drafts_) == wanted_) phase_ = Phase::kVerify;
}

std::span<const int32_t> Speculator::take_verified(std::span<const float> logits) {
  if (logits.size() != vocab_ * fed_.size())
    fail("speculation: expected {} rows of {} logits, got {} values", fed_.size(), vocab_, logits.size());
  history_.resize(before_);
  take_back();
  out_.clear();
  judge(logits);
  take_back();
  const auto drafted = std::ssize(drafts_), accepted = std::ssize(out_) - 1;
  counts_.drafted += drafted;
  counts_.accepted += accepted;
  ++counts_.verify_passes;
  length_.round(drafted, accepted);
  phase_ = Phase::kPlain;
  return out_;
}

void Speculator::judge(std::span<const float> logits) {
  const uint64_t seed = sampler_.config().seed;
  for (size_t i = 0; i <= drafts_.size(); ++i) {
    const std::span<const float> row = allowed(logits.subspan(i * vocab_, vocab_));
    const auto position = static_cast<int64_t>(history_.size());
    if (i == drafts_.size()) {  // all of them stay: the last row's own token comes on top
      out_.push_back(sampler_.next(row, history_, position));
      return;
    }
    const Distribution& p = sampler_.probabilities(row, history_);
    Rng judging = rng_for(seed, position, Draw::kAccept),
        redrawing = rng_for(seed, position, Draw::kResidual);
    if (!accepts(p, q_[i], drafts_[i], judging)) {
      out_.push_back(sample_residual(p, q_[i], redrawing));
      return;
    }
    out_.push_back(drafts_[i]);
    accept(drafts_[i]);
  }
}

}  // namespace fathom
