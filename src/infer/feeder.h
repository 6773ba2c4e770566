// Runs the model over new tokens of cached sequences, and keeps the books of what the kernels did.
#pragma once

#include <span>
#include <vector>

#include "base/counters.h"
#include "infer/fathom.h"
#include "infer/trace.h"
#include "model/transformer.h"

namespace fathom {

// What the kernels did, and what a dense model's would have done for the same rows.
struct WorkBooks {
  Work ran, dense;
  uint64_t dense_output_madds = 0;  // of dense.madds: the output matrix

  Savings savings() const;
};
WorkBooks operator+(const WorkBooks& a, const WorkBooks& b);
WorkBooks operator-(const WorkBooks& a, const WorkBooks& b);

enum class LogitsFor : uint8_t { kNone, kLast, kAll };

// The next tokens of one sequence.
struct Feed {
  int32_t sequence = 0;
  std::span<const int32_t> tokens;
  LogitsFor logits = LogitsFor::kLast;
  // For drafts and their verification: the dense model's work for these rows is counted later, by
  // Feeder::add_plain, when it is known which of them stay.
  bool tentative = false;
  int64_t again = 0;         // the first `again` tokens are already in the cache and run again
  int64_t logits_from = -1;  // not below 0: logits for the tokens from here on, whatever `logits` says
  int64_t vocab = 0;         // logits of this many tokens are enough, those of the lowest ids; 0: all
};

// Owns nothing but its buffers: the parts outlive it.
class Feeder {
 public:
  Feeder(Context& ctx, const Model& model, KvCache& cache, const SkipPolicy& policy, PolicyState& state)
      : ctx_(ctx),
        model_(model),
        cache_(cache),
        policy_(policy),
        state_(state),
        settles_(ctx.device() == Device::kCpu) {}

  // A pass over the next tokens of several sequences: begin(), add() once for each sequence, run(). run()
  // returns f32 (rows that want logits, vocab) in the order added, undefined when no row wants them. (Fewer
  // columns where no part needs all.) It lives in the arena of the caller's ArenaScope. add() makes room in
  // the cache at once; a token outside the vocabulary is a UserError.
  void begin();
  void add(const Feed& feed);
  Tensor run();

  // Feeds one sequence in one pass. Returns f32 (1 or tokens, vocab).
  Tensor feed(int32_t sequence, std::span<const int32_t> tokens, LogitsFor logits);

  Tensor feed(const Feed& feed);
  // Counts the dense model's work for `count` tentative rows of one sequence that stay, the first of them at
  // position `past`. A dense model runs them in `count` passes of one row each. `since`: dense_passes() when
  // the rows were begun. Dense passes counted since then, for other sequences, serve these rows as well; only
  // the passes that are missing are added.
  void add_plain(int64_t count, int64_t past, int64_t since);
  int64_t dense_passes() const { return dense_passes_; }

  // Feeds one token to each of several sequences, in one pass. Returns f32 (sequences, vocab).
  Tensor feed_each(std::span<const int32_t> sequences, std::span<const int32_t> tokens);

  // Forgets what a sequence was fed at `position` and after. Returns how many rows it still holds:
  // `position`, or 0 where the policy or a window's cache cannot go back that far and the sequence must be
  // fed again from its start.
  int64_t truncate(int32_t sequence, int64_t position);

  // The empty sequence `to` becomes the first `position` rows of `from` and shares their pages. Returns how
  // many rows `to` then holds: `position`, or 0 where they cannot be shared.
  int64_t fork(int32_t from, int32_t to, int64_t position);

  // Gives back pages that were reserved for rows that then skipped. On the CPU every pass ends with it. On
  // CUDA it waits for the device, so the caller decides when to call it.
  void settle(int32_t sequence);
  void settle_every_pass(bool on) { settles_ = on; }

  // Every later pass also writes its rows into `trace`; null: passes record nothing, at no cost.
  void record(Trace* trace) { recorded_ = trace; }
  Trace* recorded() const { return recorded_; }

  Context& context() { return ctx_; }
  const Model& model() const { return model_; }
  const SkipPolicy& policy() const { return policy_; }
  PolicyState& state() { return state_; }
  KvCache& cache() { return cache_; }

  Work work() const { return books_.ran; }           // counted by the kernels since the start
  const WorkBooks& books() const { return books_; }  // since the start
  Savings savings() const;

 private:
  void add_dense(int64_t count, int64_t past, int64_t logit_rows);
  void check_token(int32_t token) const;
  void settle_pass();

  Context& ctx_;
  const Model& model_;
  KvCache& cache_;
  const SkipPolicy& policy_;
  PolicyState& state_;
  bool settles_;                    // after every pass
  std::vector<BatchRow> rows_;      // of the pass being made
  std::vector<int32_t> tentative_;  // sequences whose rows may go again
  int64_t vocab_ = 0;               // that the pass's logits are for; 0: no row wants any
  int64_t counted_rows_ = 0;        // of them, those that are not tentative
  bool counted_logits_ = false;
  Trace* recorded_ = nullptr;
  WorkBooks books_;
  int64_t dense_passes_ = 0;
};

}  // namespace fathom
