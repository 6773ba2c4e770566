// One answer inside the engine: waiting for a place in the cache, or running in one.
#pragma once

#include "infer/drafter.h"
#include "infer/token_queue.h"

namespace fathom {

// What all answers of a request have in common.
struct SharedRequest {
  Request request;                // checked; end_ids complete, context the real one
  std::vector<float> thresholds;  // of its budget; empty: the method's own rule
  std::optional<Speculation> speculation;
  std::shared_ptr<const LogProbs> prompt_log_probs;  // once known

  int64_t prompt_tokens() const { return static_cast<int64_t>(request.prompt.size()); }
};

struct Lane {
  std::shared_ptr<SharedRequest> shared;
  int64_t index = 0;  // of the request's answers
  std::shared_ptr<TokenQueue> out;
  int64_t arrival = 0;              // the order in which lanes came
  std::unique_ptr<TokenMask> mask;  // where the request has one
  std::optional<Writer> writer;     // from the first admission on
  std::optional<Drafter> drafter;   // the same, where it speculates
  std::vector<int32_t> shifted;     // after a context shift: what is fed in place of the history
  int64_t shifted_prompt = 0;       // of them, those that the shift kept: fed as a prompt is
  int32_t slot = -1;                // of the cache; -1: waiting
  int64_t fed = 0;                  // rows in the cache
  int64_t served = 0;  // the last pass in which it had rows; before its first: the one after its arrival
  LogProbs prompt_log_probs;  // as far as they are scored since it was fed from its beginning
  AnswerStats stats;
  double depths = 0;                              // sum over the tokens
  int64_t computed_rows = 0, computed_units = 0;  // rows, and units that they ran, drafts included
  Moment came, admitted;
  std::optional<Moment> first_token;
  bool ended = false;  // leaves with this step

  const Request& request() const { return shared->request; }
  // The prompt and the answer so far: what the cache holds, and what is still to be fed.
  const std::vector<int32_t>& tokens() const {
    if (!shifted.empty()) return shifted;
    return writer ? writer->history() : request().prompt;
  }
  // Tokens that a policy that must see its prompt whole sees in one pass.
  int64_t whole_rows() const { return shifted.empty() ? shared->prompt_tokens() : shifted_prompt; }
  int64_t unfed() const { return static_cast<int64_t>(tokens().size()) - fed; }
  bool decodes() const { return unfed() == 1; }  // the next row gives a token and nothing else is to be fed
  Phase phase() const { return drafter ? drafter->phase() : Phase::kPlain; }
  // After the first token, which the prompt gives, a round of drafts may begin wherever one is decoded.
  bool speculates() const { return drafter && writer->generated() > 0; }
  bool running() const { return slot >= 0; }
  bool paused() const { return out->full(); }
  // Is this the answer that computes the prompt's log-probabilities for all of them?
  bool scores_prompt() const { return request().score_prompt && !shared->prompt_log_probs; }
};

}  // namespace fathom
