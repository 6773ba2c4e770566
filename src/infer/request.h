// What is asked of the engine, and what comes back.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "infer/draft.h"
#include "infer/log_probs.h"
#include "infer/speculator.h"

namespace fathom {

using Moment = std::chrono::steady_clock::time_point;

// One prompt, and how it is to be answered. end_ids are the request's own; the model's come on top unless
// ignore_eos.
struct Request : AnswerOptions {
  std::vector<int32_t> prompt = {};
  int64_t answers = 1;  // each with a seed of its own: answer_seed()
  bool ignore_eos = false;
  bool score_prompt = false;  // the prompt's own log-probabilities come with the answers
  int64_t log_probs = -1;     // of each token; -1: none; 0: its own; more: of so many most likely tokens, too
  std::optional<float> budget = {};  // β; none: the engine's
  // Lossless: sampled answers are other draws of the same distribution, greedy ones the same tokens.
  std::optional<DraftOptions> speculate = {};
  int64_t context = 0;   // prompt and answer at most; 0: the cache's
  int64_t priority = 0;  // higher goes first; who waits rises
  std::optional<Moment> deadline = {};
};

// The seed of a request's answer number `index`: the first one has the request's.
uint64_t answer_seed(uint64_t seed, int64_t index);

// A token that ends the answer comes too, as the last one, with its log-probability and without text.
struct Token {
  int32_t id = 0;
  std::string text;   // whole UTF-8 characters; a later token or the end brings what is held back
  float logprob = 0;  // of the model's own distribution, before bias, penalties and temperature
  // Best first. Where this token is the best, the first has its `logprob` bit for bit.
  std::vector<TokenLogProb> top = {};
  double depth = 0;   // layers run, as units / 2, by the row that gave it
  bool ends = false;  // an end token: no part of the text
};

struct AnswerStats {
  int64_t prompt_tokens = 0, reused_tokens = 0;  // of the prompt: taken from a sequence that began alike
  int64_t generated = 0;                         // tokens of the answer, without the one that ended it
  double depth = 0;                              // mean over them
  int64_t preemptions = 0;                       // times it made room for others and was computed again
  SpeculationCounts speculation = {};
  double wait_seconds = 0, prefill_seconds = 0, decode_seconds = 0;  // until admitted, first token, end
};

struct AnswerEnd {
  FinishReason reason = FinishReason::kCancelled;
  std::string text;   // what was held back
  std::string error;  // one line, when the reason is kError
  AnswerStats stats;
};

class TokenQueue;

// One answer as its reader sees it. Tokens come through a bounded queue (beyond its bound a round of
// speculation may give at most kMostDrafts): a reader that falls behind pauses its own answer and no other. A
// reader that goes away cancels.
class Answer {
 public:
  explicit Answer(std::shared_ptr<TokenQueue> queue);
  ~Answer();
  Answer(Answer&&) noexcept;
  Answer& operator=(Answer&&) noexcept;

  // Waits for the next token; nothing: the answer has ended.
  std::optional<Token> next();
  // Would next() return at once? Waits for it, but not longer.
  bool ready_within(std::chrono::milliseconds time) const;
  const AnswerEnd& end() const;  // once next() has given nothing
  // Of the prompt, where they were asked for: once next() has returned. The same for all answers of a
  // request.
  std::shared_ptr<const LogProbs> prompt_log_probs() const;
  // Ends the answer before the engine's next pass. What is in the queue can still be read.
  void cancel();

 private:
  std::shared_ptr<TokenQueue> queue_;
};

}  // namespace fathom
