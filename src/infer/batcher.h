// The engine without its thread: answers that share passes. fathom.h is what a user of it wants.
#pragma once

#include "infer/batcher_options.h"
#include "infer/lane.h"
#include "infer/log_probs.h"
#include "infer/slots.h"
#include "tensor/memory.h"

namespace fathom {

// The seed of a request's answer number `index`: the first one has the request's.
uint64_t answer_seed(uint64_t seed, int64_t index);

class Batcher {
 public:
  // The feeder's cache is the engine's alone from now on.
  Batcher(Feeder& feeder, BatcherOptions options);
  ~Batcher();  // ends what is still there as cancelled

  // The answers of a request, checked: a UserError says what is wrong with it. Any thread may call this while
  // another one steps.
  std::vector<std::unique_ptr<Lane>> prepare(Request request) const;
  void add(std::unique_ptr<Lane> lane);

  // Runs one pass over rows of many sequences. An answer that is being written has one row in it; one that
  // speculates has a draft, or all drafts to be verified. Pieces of prompts fill the rest. Drafts run in a
  // separate pass, in which the model is smaller, unless another row of the pass needs the whole model.
  // Returns false when there is nothing to do until a reader, a deadline or a new request changes that.
  bool step();

  bool idle() const { return lanes_.empty(); }
  std::optional<Moment> next_deadline() const;
  void end_all(FinishReason reason, const std::string& error = "");
  const EngineStats& stats() const { return stats_; }  // as of the last step
  Doorbell& doorbell() { return *doorbell_; }          // rings when a reader changes what can be done

 private:
  struct Part {  // of a pass: the next rows of a lane
    Lane* lane;
    Feed feed;
    int64_t rows() const { return std::ssize(feed.tokens); }
    int64_t logit_rows() const {
      return feed.logits == LogitsFor::kAll ? rows() : feed.logits == LogitsFor::kLast;
    }
  };

  void end_unwanted();
  void admit();
  void begin_writing(Lane& lane);
  bool waits_for_sibling(const Lane& lane) const;
  bool waits_for_prefix(const Lane& lane) const;
  bool make_place(Lane& lane);
  void plan();
  bool start_rounds(const std::vector<Lane*>& lanes);
  bool start_round(Lane& lane);
  void plan_rows(Lane& lane);
  void plan_round(Lane& lane);
  void add_part(Lane& lane, const Feed& feed);
  int64_t rows_for(const Lane& lane) const;
  LogitsFor logits_for(const Lane& lane, int64_t rows) const;
  bool make_room(const Lane& lane, int64_t rows);
  Lane* victim_for(const Lane& lane) const;
  void preempt(Lane& lane);
  void leave(Lane& lane, bool finished);

  void run_parts(std::span<const Part> parts);
  void run_halves(std::span<const Part> parts, const std::string& error);
  void count_rows(std::span<const Part> parts);
  void count_work(Lane& lane, int64_t rows, size_t row);
  bool draws(const Part& part) const;
  void draw_together(std::span<const Part> parts, const Tensor& logits);
  void draw_on_host(std::span<const Part> parts, const Tensor& logits);
  std::span<float> drawn_logits(const Tensor& logits);
  void deliver(const Part& part, const Tensor& logits, size_t row, int32_t drawn);
  void deliver_round(Lane& lane, const Tensor& logits, size_t row);
  void score_prompt(Lane& lane, int64_t first, const Tensor& logits);
  int32_t draw(Lane& lane, const Tensor& logits);
  struct Ran {  // by the row that gave a token
    double depth = 0;
    std::vector<uint8_t> units;  // (2L) where they are asked for
  };
  Ran ran_by(const Lane& lane, size_t row) const;
  void put(Lane& lane, const Writer::Written& written, const Tensor& logits, Ran ran);
  void shift_context(Lane& lane);
  void end(Lane& lane, FinishReason reason, const std::string& error = "");
  void remove_ended();
  void refresh_stats();

  bool before(const Lane& a, const Lane& b) const;
  std::vector<Lane*> in_order(bool running) const;

  Feeder& feeder_;
  const BatcherOptions options_;
  const bool whole_prompts_;               // the policy must see a prompt in one pass: no chunks, no sharing
  const std::vector<int32_t> model_ends_;  // end_token_ids()
  std::shared_ptr<Doorbell> doorbell_ = std::make_shared<Doorbell>();
  Slots slots_;
  Trace trace_{Trace::Scores::kLeftOut};  // of the last pass, where it is recorded
  std::vector<std::unique_ptr<Lane>> lanes_;
  int64_t arrivals_ = 0;
  std::vector<Part> parts_;  // of this pass
  int64_t rows_left_ = 0, logit_rows_left_ = 0;
  int64_t ended_ = 0;  // answers, in this step
  struct Drawing {
    size_t part;
    int64_t row;  // of the pass's logits
  };
  std::vector<TokenDraw> plain_;  // draws of this pass where the logits are
  std::vector<Drawing> drawing_;  // the others
  HostRoom logits_;               // (those, vocab)
  std::vector<int32_t> drawn_;    // by each part; -1: nothing yet
  EngineStats stats_;
};

}  // namespace fathom
