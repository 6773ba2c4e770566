// The tokens of lossless speculation: a sequence drafts some, or looks them up in its own text, and one pass
// of the verifying policy says which of them stay. The tokens that come out have the distribution that plain
// decoding gives them; at temperature 0 they are the same tokens. (Leviathan et al. 2023; Chen et al. 2023.)
#pragma once

#include "infer/draft_length.h"
#include "infer/lookup.h"
#include "infer/speculative_policy.h"
#include "infer/writer.h"

namespace fathom {

// The rule: a draft from q stays with chance min(1, p/q); the token in its place comes from max(0, p − q).
bool accepts(const Distribution& p, const Distribution& q, int32_t draft, Rng& rng);
int32_t sample_residual(const Distribution& p, const Distribution& q, Rng& rng);

// One sequence. The caller runs the passes: it asks for the next pass's tokens and hands in its logits.
class Speculator {
 public:
  // The answer is drawn as a Writer would draw it; nothing is drafted after an end token.
  // `mask`: what may come next, or null; between rounds it stands where the writer left it.
  Speculator(const DraftLengths& lengths, const AnswerOptions& options, int64_t vocab, int64_t prompt_tokens,
             TokenMask* mask = nullptr);

  // A round, at most `most` drafts long. `history`: the tokens so far; the last one is not in the cache yet.
  // Returns false when that token is to be decoded plainly. A second call at the same place returns the same.
  bool start(std::span<const int32_t> history, int64_t most);
  void abandon();  // forgets the round: start() begins it again

  // Rows of the next pass. While the phase is kDraft: one token; then, kVerify: the token before the drafts
  // and the drafts. A round whose drafts are looked up begins there. All of the pass's rows want logits.
  Phase phase() const { return phase_; }
  std::span<const int32_t> tokens() const;
  std::span<const int32_t> drafts() const { return drafts_; }  // of this round, so far
  int64_t drafting_passes() const { return passes_; }          // of this round: tokens() that ran before

  // The logits of a drafting pass, (vocab). Where they allow no token, the drafts end before it.
  void take_draft(std::span<const float> logits);
  // The logits of the verifying pass, (drafts + 1, vocab). Returns the tokens that follow the history: the
  // drafts that stay, and one more. The same number of rows stays in the cache.
  std::span<const int32_t> take_verified(std::span<const float> logits);

  const SpeculationCounts& counts() const { return counts_; }

 private:
  void begin(std::span<const int32_t> history);
  void look_up(std::span<const int32_t> history, int64_t most);
  bool may_come(int32_t token);
  void add_draft(int32_t draft);
  bool is_end(int32_t token) const;
  void judge(std::span<const float> logits);
  std::span<const float> allowed(std::span<const float> logits);
  void accept(int32_t token);
  void take_back();

  DraftLengths lengths_;
  LookupIndex index_;
  LookupIndex::Match match_;  // of this place
  bool looked_up_ = false;    // this round's drafts were
  TokenMask* mask_;
  int64_t masked_ = 0;  // tokens of this round that the mask has accepted
  Sampler sampler_;
  size_t vocab_;
  std::vector<int32_t> end_ids_;
  size_t first_end_;  // tokens of a history before an end token may come
  Phase phase_ = Phase::kPlain;
  int64_t wanted_ = 0;            // drafts of this round
  int64_t passes_ = 0;            // drafting passes of this round
  size_t plain_at_ = 0;           // tokens before the one that was to be decoded plainly last
  size_t before_ = 0;             // tokens before its first draft
  std::vector<int32_t> history_;  // with the drafts, or those that stay
  std::vector<int32_t> drafts_;   // of this round
  std::vector<int32_t> fed_;      // the token before the drafts, and the drafts
  std::vector<int32_t> out_;
  std::vector<Distribution> q_;  // (kMostDrafts): what each draft was drawn from
  std::vector<float> allowed_;   // logits without the forbidden tokens'
  SpeculationCounts counts_;
};

}  // namespace fathom
