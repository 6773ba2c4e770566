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
  std::vector<float> offered(1 + static_cast<size_t>(*std::max_element(p.ids.begin(), p.ids.end())));
  for (size_t i = 0; i < q.ids.size(); ++i) {
    const auto id = static_cast<size_t>(q.ids[i]);
    if (id < offered.size()) offered[id] = q.probabilities[i];
  }
  double sum = 0;
  for (size_t i = 0; i < rest.ids.size(); ++i) {
    float& left = rest.probabilities[i];
    left = std::max(0.0f, left - offered[static_cast<size_t>(rest.ids[i])]);
    sum += left;
  }
  // p and q are rounded: where they are as good as equal nothing may be left.
  return sample(sum > 0 ? rest : p, rng);
}

SpeculationCounts& SpeculationCounts::operator+=(const SpeculationCounts& other) {
  drafted += other.drafted;
  accepted += other.accepted;
  looked_up += other.looked_up;
  draft_passes += other.draft_passes;
  verify_passes += other.verify_passes;
  return *this;
}

Speculator::Speculator(const DraftLengths& lengths, const AnswerOptions& options, int64_t vocab,
                       int64_t prompt_tokens, TokenMask* mask)
    : lengths_(lengths),
      mask_(mask),
      sampler_(options.sampler, vocab, prompt_tokens),
      vocab_(static_cast<size_t>(vocab)),
      end_ids_(options.end_ids),
      first_end_(static_cast<size_t>(prompt_tokens + options.min_tokens)),
      q_(kMostDrafts) {}

bool Speculator::start(std::span<const int32_t> history, int64_t most) {
  if (plain_at_ == history.size()) return false;
  if (plain_at_ > 0) lengths_.plain();
  plain_at_ = 0;
  match_ = lengths_.lookup ? index_.find(history) : LookupIndex::Match{};
  const DraftLengths::Choice choice = lengths_.next(match_.length, std::min(most, kMostDrafts));
  looked_up_ = choice.looked_up;
  wanted_ = choice.drafts;
  if (wanted_ > 0) begin(history);
  if (wanted_ > 0 && looked_up_) look_up(history, wanted_);
  if (wanted_ > 0) return true;
  plain_at_ = history.size();
  return false;
}

void Speculator::begin(std::span<const int32_t> history) {
  phase_ = Phase::kDraft;
  before_ = history.size();
  history_.assign(history.begin(), history.end());
  passes_ = 0;
  drafts_.clear();
  fed_.assign(1, history.back());
}

// The text goes on as it did after the place that was found, as far as it may. A draft without a distribution
// is one of chance 1.
void Speculator::look_up(std::span<const int32_t> history, int64_t most) {
  for (int64_t i = 0; i < most; ++i) {
    const int32_t draft = continued(history, match_, i);
    if (!may_come(draft)) break;
    Distribution& q = q_[drafts_.size()];
    q.ids.assign(1, draft);
    q.probabilities.assign(1, 1.0f);
    add_draft(draft);
    if (is_end(draft)) break;
  }
  wanted_ = std::ssize(drafts_);
  phase_ = wanted_ > 0 ? Phase::kVerify : Phase::kPlain;
}

// As far as the rules beside the logits say.
bool Speculator::may_come(int32_t token) {
  if (is_end(token) && history_.size() < first_end_) return false;
  if (!mask_) return true;
  allowed_.assign(vocab_, 0.0f);
  mask_->forbid(allowed_);
  return allowed_[static_cast<size_t>(token)] == 0;
}

bool Speculator::is_end(int32_t token) const {
  return std::find(end_ids_.begin(), end_ids_.end(), token) != end_ids_.end();
}

void Speculator::add_draft(int32_t draft) {
  drafts_.push_back(draft);
  fed_.push_back(draft);
  accept(draft);
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
  ++counts_.draft_passes;
  ++passes_;
  const std::span<const float> row = allowed(logits);
  // Drafts may be drawn from a part of the vocabulary, of which a mask may leave nothing.
  if (std::none_of(row.begin(), row.end(),
                   [](float x) { return x > -std::numeric_limits<float>::infinity(); })) {
    phase_ = Phase::kVerify;
    return;
  }
  Distribution& q = q_[drafts_.size()];
  q = sampler_.probabilities(row, history_);
  Rng rng = rng_for(sampler_.config().seed, position, Draw::kDraft);
  const int32_t draft = sample(q, rng);
  add_draft(draft);
  if (is_end(draft) || std::ssize(drafts_) == wanted_) phase_ = Phase::kVerify;
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
  if (looked_up_) {
    counts_.looked_up += drafted;
    lengths_.lookup->round(match_.length, drafted, accepted);
  } else {
    lengths_.model->round(passes_, accepted);
  }
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
