// What a client asks for, read from a body's JSON and checked; no model has seen it yet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "infer/quality.h"
#include "serve/api_options.h"
#include "text/chat_template.h"

namespace fathom {

enum class DepthDetail : uint8_t { kNone, kDepth, kUnits };

struct ResponseFormat {
  enum class Kind : uint8_t { kText, kObject, kSchema };
  Kind kind = Kind::kText;
  std::string schema = {};  // JSON
};

// How much of the model runs.
struct BudgetFields {
  std::optional<double> budget = {};  // of these three at most one
  std::optional<QualityLimit> quality = {};
  bool automatic = false;
  std::optional<double> floor = {};  // with `automatic`, or with none of the three
  std::string named = "budget";      // the field that chose
};

// What both kinds of requests have. Where a value is absent, the model's default is taken.
struct GenerationFields {
  std::string model = {};  // "": any
  std::optional<float> temperature = {}, top_p = {}, min_p = {}, repeat_penalty = {};
  std::optional<int32_t> top_k = {};
  float presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias = {};
  std::optional<uint64_t> seed = {};
  int64_t answers = 1;
  std::optional<int64_t> max_tokens = {};
  int64_t min_tokens = 0;
  std::vector<std::string> stops = {};
  std::vector<int32_t> stop_ids = {};
  bool ignore_eos = false;
  bool stream = false, include_usage = false;
  int64_t log_probs = -1;  // Request::log_probs
  std::optional<double> timeout = {};
  BudgetFields budget = {};
  std::optional<DraftOptions> speculate = {};
  bool has_draft_budget = false;  // the drafts' budget was given, too
  DepthDetail depth = DepthDetail::kNone;
  ResponseFormat format = {};
};

struct ChatRequest : GenerationFields {
  std::vector<ChatMessage> messages = {};
};

using Prompt = std::variant<std::string, std::vector<int32_t>>;  // text or tokens
struct CompletionRequest : GenerationFields {
  std::vector<Prompt> prompts = {};
  bool echo = false;
};

// The body of a POST. Anything that cannot be served is an ApiError with the field's name.
ChatRequest parse_chat_request(const std::string& body, const ApiLimits& limits);
CompletionRequest parse_completion_request(const std::string& body, const ApiLimits& limits);

}  // namespace fathom
