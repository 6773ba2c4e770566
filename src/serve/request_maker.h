// From what a client asked to what the engine is asked.
#pragma once

#include "serve/api_request.h"
#include "serve/auto_budget.h"
#include "serve/served_model.h"

namespace fathom {

class RequestMaker {
 public:
  // `load` is asked where the budget follows it.
  RequestMaker(const ServedModel& served, const ApiOptions& options, std::function<Load()> load);

  // One for each prompt. Whatever cannot be served is an ApiError.
  std::vector<Request> chat(const ChatRequest& fields, const std::string& key, Moment arrived) const;
  std::vector<Request> completion(const CompletionRequest& fields, const std::string& key,
                                  Moment arrived) const;

  // The tokens of a prompt, however many.
  std::vector<int32_t> encode(const std::string& text, bool add_special = true) const;
  // `open_answer`: the assistant's next turn is opened, as it is for an answer.
  std::vector<int32_t> encode(const std::vector<ChatMessage>& messages, bool open_answer = true) const;

 private:
  Request common(const GenerationFields& fields, const std::string& key, Moment arrived) const;
  std::optional<float> budget_of(const BudgetFields& fields) const;
  float automatic(const BudgetFields& fields) const;
  std::optional<DraftOptions> drafts_of(const GenerationFields& fields) const;
  SamplerConfig sampler_of(const GenerationFields& fields) const;
  MaskMaker mask_of(const GenerationFields& fields) const;
  // `field`: the one that an error names.
  void check_bytes(const char* field, int64_t bytes) const;
  std::vector<int32_t> checked(const char* field, std::vector<int32_t> ids) const;
  int64_t scored_tokens(const Request& request, int64_t choices) const;
  // `scores`: the field that asks for log-probabilities.
  void fit(Request& request, const GenerationFields& fields, int64_t choices, const char* scores) const;

  const ServedModel& served_;
  const ApiOptions& options_;
  std::function<Load()> load_;
};

}  // namespace fathom
