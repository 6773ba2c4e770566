// Many requests at once on one model: continuous batching.
//
//   Engine engine(feeder, {.rows = 512});                  // over a cache with room for many sequences
//   std::vector<Answer> answers = engine.submit(request);  // from any thread
//   while (std::optional<Token> token = answers[0].next()) show(token->text);
//   const AnswerEnd& end = answers[0].end();               // why it ended, held-back text, what it cost
//
// One thread steps. Each step is one pass over a row of every answer that is being written and pieces of the
// prompts of those that have just come. An answer's tokens and log-probabilities are, bit for bit, those of
// the same request alone: neither load, nor chunks, nor priorities, nor a want of memory changes them.
//
// An answer may speculate (Request::speculate): its drafts and their verification are rows of the same
// passes, in the same cache. How much it drafts follows from its own history; a round that finds no room
// waits for it, or is begun again later with the same drafts.
//
// Answers wait for a place in the cache in the order of their priorities, which rise while they wait. When
// the cache is full, the last in that order gives up its place and is computed again later. An answer ends
// within one step of its cancellation or deadline, in the middle of its prompt too.
#pragma once

#include <thread>

#include "infer/batcher.h"

namespace fathom {

// Too many are waiting: to be tried again later.
class EngineBusy : public UserError {
 public:
  using UserError::UserError;
};

class Engine {
 public:
  // The feeder and its parts outlive the engine and are its own meanwhile.
  explicit Engine(Feeder& feeder, EngineOptions options = {});
  // Cancels what is left and waits for the thread, never for a reader: what is in the queues can still be
  // read.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // One Answer for each of request.answers. A request that cannot be served is a UserError, a full house an
  // EngineBusy. Never waits.
  std::vector<Answer> submit(Request request);

  // Takes no more requests and waits until those it has have ended. Their readers must go on reading.
  void drain();

  EngineStats stats() const;

 private:
  void run();
  bool take_requests();
  void publish();

  const int64_t most_;  // answers at a time
  Batcher batcher_;     // the thread's, but for prepare()
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::vector<std::unique_ptr<Lane>> inbox_;
  EngineStats stats_;
  bool draining_ = false, stopping_ = false, working_ = false;
  std::thread thread_;
};

}  // namespace fathom
