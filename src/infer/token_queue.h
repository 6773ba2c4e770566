// Between the engine's thread and one reader.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "infer/fathom.h"

namespace fathom {

// Wakes the engine's thread when it waits for its users.
class Doorbell {
 public:
  void ring();
  void wait(std::optional<Moment> until);  // for a ring since the last wait, or for the time

 private:
  std::mutex mutex_;
  std::condition_variable rung_;
  bool ringing_ = false;
};

class TokenQueue {
 public:
  TokenQueue(size_t capacity, std::shared_ptr<Doorbell> engine)
      : capacity_(capacity), engine_(std::move(engine)) {}

  // `open` counts the answers that have not ended. This one is among them from now on. Its reader sees its
  // end only after it has been taken off. Called once, before the engine has the answer.
  void count_in(std::shared_ptr<std::atomic<int64_t>> open);

  // The engine's side. It never waits: it begins a pass only when there is room, which a round may then go
  // beyond.
  bool full() const;
  bool cancelled() const;
  void push(Token token);
  void set_prompt_log_probs(std::shared_ptr<const LogProbs> log_probs);
  void close(AnswerEnd end);

  // The reader's.
  std::optional<Token> pop();
  bool ready_within(std::chrono::milliseconds time) const;
  void on_ready(std::function<void()> call);
  bool ended() const;
  const AnswerEnd& end() const;
  std::shared_ptr<const LogProbs> prompt_log_probs() const;
  void cancel();

 private:
  void tell_reader();

  const size_t capacity_;
  const std::shared_ptr<Doorbell> engine_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Token> tokens_;
  std::shared_ptr<const LogProbs> prompt_log_probs_;
  std::optional<AnswerEnd> end_;
  bool cancelled_ = false;
  std::function<void()> on_ready_;
  std::shared_ptr<std::atomic<int64_t>> open_;  // null: not counted, or no more
};

// The reader's handle of a queue.
Answer make_answer(std::shared_ptr<TokenQueue> queue);

}  // namespace fathom
