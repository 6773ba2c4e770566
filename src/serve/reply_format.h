// Answers as OpenAI's JSON: the two kinds of replies, each whole or as server-sent events.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "serve/api_request.h"
#include "serve/served_model.h"

namespace fathom {

// The work and the tokens of a request's answers so far.
struct Usage {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  double block_madds = 0, dense_block_madds = 0, skipped = 0;  // skipped: skip_ratio × dense_block_madds
  SpeculationCounts speculation = {};
  std::optional<float> budget = {};  // none: the method's own rule

  void add(const AnswerStats& stats);
  double skip_ratio() const { return dense_block_madds > 0 ? skipped / dense_block_madds : 0; }
  double block_flops() const { return dense_block_madds > 0 ? block_madds / dense_block_madds : 1; }
};

// A part of an answer: the prompt where it is echoed, tokens and the text that they brought.
struct AnswerPart {
  int64_t index = 0;                             // of the choice
  const std::vector<int32_t>* prompt = nullptr;  // echoed with this part
  std::shared_ptr<const LogProbs> prompt_log_probs = {};
  std::string text = {};
  std::vector<Token> tokens = {};
  int64_t characters = 0;  // of the choice's text before this part
  std::optional<FinishReason> finish = {};
};

struct ReplyHead {
  std::string id, model;
  int64_t created = 0;  // Unix time
  uint64_t seed = 0;
  std::optional<float> budget = {};  // as in Usage
  bool include_usage = false;        // of a stream
  int64_t log_probs = -1;
  DepthDetail depth = DepthDetail::kNone;
};

class ReplyFormat {
 public:
  ReplyFormat(ReplyHead head, const ServedModel& served);
  virtual ~ReplyFormat() = default;

  // One choice after the other in `parts`, each whole.
  std::string whole(const std::vector<AnswerPart>& parts, const Usage& usage) const;
  // Server-sent events. The first of a choice, "" where there is none.
  virtual std::string opening(int64_t index) const = 0;
  std::string event(const AnswerPart& part) const;
  std::string usage_event(const Usage& usage) const;
  static std::string done() { return "data: [DONE]\n\n"; }

  const ReplyHead& head() const { return head_; }

 protected:
  using OrderedJson = nlohmann::ordered_json;
  virtual const char* object(bool chunk) const = 0;
  // A choice, as a whole or as a chunk.
  virtual void write_choice(OrderedJson& choice, const AnswerPart& part, bool chunk) const = 0;

  OrderedJson envelope(bool chunk) const;
  OrderedJson choice_of(const AnswerPart& part, bool chunk) const;
  std::string event_of(const OrderedJson& chunk) const;
  const Tokenizer& tokenizer() const { return served_.tokenizer(); }

  ReplyHead head_;
  const ServedModel& served_;
};

std::unique_ptr<ReplyFormat> chat_format(ReplyHead head, const ServedModel& served);
std::unique_ptr<ReplyFormat> completion_format(ReplyHead head, const ServedModel& served);

}  // namespace fathom
