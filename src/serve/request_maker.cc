#include "serve/request_maker.h"

#include <algorithm>
#include <random>

#include "base/format.h"
#include "infer/sampler.h"
#include "serve/api_error.h"

namespace fathom {
namespace {

// Small enough for clients whose numbers are doubles.
uint64_t random_seed() {
  std::random_device device;
  return device() >> 1;
}

// "this model's maximum context length is" is what clients know this error by (LiteLLM looks for the words).
[[noreturn]] void too_long(const char* field, const std::string& tokens, int64_t context) {
  throw ApiError(
      400,
      fmt::format(
          "the prompt has {} tokens, and this model's maximum context length is {}: shorten the prompt",
          tokens, context),
      field, "context_length_exceeded");
}

}  // namespace

RequestMaker::RequestMaker(const ServedModel& served, const ApiOptions& options, std::function<Load()> load)
    : served_(served), options_(options), load_(std::move(load)) {}

SamplerConfig RequestMaker::sampler_of(const GenerationFields& fields) const {
  const SamplerConfig openai{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0};
  SamplerConfig sampler = with_defaults(openai, served_.model->generation);
  const auto take = [](auto& into, const auto& value) {
    if (value) into = *value;
  };
  take(sampler.temperature, fields.temperature);
  take(sampler.top_k, fields.top_k);
  take(sampler.top_p, fields.top_p);
  take(sampler.min_p, fields.min_p);
  take(sampler.repeat_penalty, fields.repeat_penalty);
  sampler.presence_penalty = fields.presence_penalty;
  sampler.frequency_penalty = fields.frequency_penalty;
  sampler.penalise_prompt = false;
  sampler.logit_bias = fields.logit_bias;
  sampler.seed = fields.seed ? *fields.seed : random_seed();
  const int64_t vocab = served_.model->config.vocab;
  for (const auto& [id, bias] : sampler.logit_bias) {
    if (id >= vocab)
      refuse_field("logit_bias",
                   fmt::format("logit_bias: token {} is not in the vocabulary of {}", id, vocab));
  }
  return sampler;
}

float RequestMaker::automatic(const BudgetFields& fields) const {
  const float smallest = served_.grid.empty() ? 1.0f : served_.grid.back();
  float floor = std::max(smallest, options_.budget_floor.value_or(smallest));
  if (fields.floor) floor = std::max(floor, static_cast<float>(*fields.floor));
  return auto_budget(served_.grid, floor, options_.target_latency, load_());
}

std::optional<float> RequestMaker::budget_of(const BudgetFields& fields) const {
  const bool named = fields.budget || fields.quality;
  if (fields.automatic || (options_.auto_budget && !named)) return automatic(fields);
  if (fields.floor) refuse_field("budget_floor", "budget_floor goes with budget: \"auto\"");
  if (!named) return std::nullopt;
  try {
    const double budget = fields.quality ? served_.budgets->budget_for(*fields.quality) : *fields.budget;
    served_.budgets->thresholds(double{static_cast<float>(budget)});
    return static_cast<float>(budget);
  } catch (const UserError& error) {
    const std::vector<float>& grid = served_.grid;
    const std::string range = grid.empty() || served_.budgets->empty()
                                  ? ""
                                  : fmt::format("; budgets are from {:g} to {:g}", grid.back(), grid.front());
    refuse_field(fields.named, fmt::format("{}: {}{}", fields.named, error.what(), range));
  }
}

// Where no budget is given for drafts by the method, the default one, or the smallest that is calibrated.
std::optional<DraftOptions> RequestMaker::drafts_of(const GenerationFields& fields) const {
  std::optional<DraftOptions> drafts = fields.speculate;
  const bool by_method = drafts && drafts->kind.value_or(DraftKind::kMethod) == DraftKind::kMethod;
  if (by_method && !fields.has_draft_budget && !served_.budgets->empty() && !served_.grid.empty())
    drafts->budget = std::max(drafts->budget, double{served_.grid.back()});
  return drafts;
}

MaskMaker RequestMaker::mask_of(const GenerationFields& fields) const {
  const ResponseFormat& format = fields.format;
  if (format.kind == ResponseFormat::Kind::kText) return {};
  if (fields.ignore_eos || fields.min_tokens > 0 || !fields.stops.empty() || !fields.stop_ids.empty())
    refuse_field("response_format",
                 "response_format does not go with ignore_eos, min_tokens, stop and stop_token_ids: JSON has "
                 "its own end");
  const bool schema = format.kind == ResponseFormat::Kind::kSchema;
  const bool served = schema ? served_.masks.schema != nullptr : served_.masks.any_object != nullptr;
  if (!served)
    throw ApiError(400, "response_format: JSON is not served here", "response_format",
                   "unsupported_parameter");
  try {
    return schema ? served_.masks.schema(format.schema) : served_.masks.any_object();
  } catch (const UserError& error) {
    refuse_field("response_format", fmt::format("response_format: {}", error.what()));
  }
}

Request RequestMaker::common(const GenerationFields& fields, const std::string& key, Moment arrived) const {
  Request request;
  const int64_t vocab = served_.model->config.vocab;
  for (const int32_t id : fields.stop_ids) {
    if (id >= vocab)
      refuse_field("stop_token_ids",
                   fmt::format("stop_token_ids: token {} is not in the vocabulary of {}", id, vocab));
  }
  request.sampler = sampler_of(fields);
  request.answers = fields.answers;
  request.stops = fields.stops;
  request.end_ids = fields.stop_ids;
  request.ignore_eos = fields.ignore_eos;
  request.context_shift = options_.context_shift;
  request.log_probs = fields.log_probs;
  request.units = fields.depth == DepthDetail::kUnits;
  request.speculate = drafts_of(fields);
  request.mask = mask_of(fields);
  request.budget = budget_of(fields.budget);
  if (!options_.share_prefixes) request.salt = key;
  double seconds = options_.limits.timeout_seconds;
  if (fields.timeout) seconds = seconds > 0 ? std::min(seconds, *fields.timeout) : *fields.timeout;
  if (seconds > 0) {
    const std::chrono::duration<double> time(std::min(seconds, kMostTimeout));
    request.deadline = arrived + std::chrono::duration_cast<Moment::duration>(time);
  }
  return request;
}

std::vector<int32_t> RequestMaker::checked(const char* field, std::vector<int32_t> ids) const {
  if (ids.empty()) refuse_field(field, "the prompt has no tokens: give it at least one");
  if (std::ssize(ids) > served_.context) too_long(field, std::to_string(ids.size()), served_.context);
  const int64_t vocab = served_.model->config.vocab;
  for (const int32_t id : ids) {
    if (id >= vocab)
      refuse_field(field, fmt::format("token {} is not in the model's vocabulary of {}", id, vocab));
  }
  return ids;
}

// A text that is far too long is refused before the tokenizer takes seconds for it.
void RequestMaker::check_bytes(const char* field, int64_t bytes) const {
  const int64_t least = bytes / served_.longest_token;
  if (least > served_.context) too_long(field, fmt::format("at least {}", least), served_.context);
}

std::vector<int32_t> RequestMaker::encode(const std::string& text, bool add_special) const {
  EncodeOptions how;
  how.add_special = add_special;
  return served_.tokenizer().encode(text, how);
}

std::vector<int32_t> RequestMaker::encode(const std::vector<ChatMessage>& messages, bool open_answer) const {
  if (!served_.chat) refuse_field("messages", fmt::format("this model does not chat: {}", served_.no_chat));
  try {
    return served_.chat->encode(served_.tokenizer(), messages, open_answer);
  } catch (const UserError& error) {  // such as two user's turns one after the other
    refuse_field("messages", fmt::format("messages: {}", error.what()));
  }
}

// The tokens of an answer whose log-probabilities the limit has room for. Each token of the reply, an echoed
// prompt's included, has its own entry and one for each likely token.
int64_t RequestMaker::scored_tokens(const Request& request, int64_t choices) const {
  if (request.log_probs < 0) return INT64_MAX;
  const int64_t each = options_.limits.log_probs / choices / (request.log_probs + 1);
  return request.score_prompt ? each - std::ssize(request.prompt) : each;
}

// The limits hold for all prompts and answers of a request together.
void RequestMaker::fit(Request& request, const GenerationFields& fields, int64_t choices,
                       const char* scores) const {
  const auto prompt = std::ssize(request.prompt);
  const int64_t room = served_.context - prompt + 1;  // the last token is written and not fed
  const int64_t each = options_.limits.tokens / choices;
  const int64_t scored = scored_tokens(request, choices);
  int64_t tokens = fields.max_tokens.value_or(std::min({room, each - prompt, std::max<int64_t>(1, scored)}));
  if (!options_.context_shift) tokens = std::min(tokens, room);
  if (tokens < 0 || prompt + tokens > each)
    refuse_field("max_tokens",
                 fmt::format("{} choices of {} tokens, prompts included, are more than the limit of {}",
                             choices, prompt + std::max<int64_t>(0, tokens), options_.limits.tokens));
  if (tokens > scored)
    refuse_field(scores,
                 fmt::format("{}: {} choices of {} tokens with {} entries each are more than the limit "
                             "of {} log-probabilities",
                             scores, choices, tokens + (request.score_prompt ? prompt : 0),
                             request.log_probs + 1, options_.limits.log_probs));
  if (fields.max_tokens && fields.min_tokens > *fields.max_tokens)
    refuse_field("min_tokens", fmt::format("min_tokens ({}) must not be above max_tokens ({})",
                                           fields.min_tokens, *fields.max_tokens));
  request.max_tokens = tokens;
  request.min_tokens = std::min(fields.min_tokens, tokens);
}

std::vector<Request> RequestMaker::chat(const ChatRequest& fields, const std::string& key,
                                        Moment arrived) const {
  Request request = common(fields, key, arrived);
  int64_t bytes = 0;
  for (const ChatMessage& message : fields.messages) bytes += std::ssize(message.content);
  check_bytes("messages", bytes);
  request.prompt = checked("messages", encode(fields.messages));
  fit(request, fields, fields.answers, fields.log_probs > 0 ? "top_logprobs" : "logprobs");
  std::vector<Request> all;
  all.push_back(std::move(request));
  return all;
}

std::vector<Request> RequestMaker::completion(const CompletionRequest& fields, const std::string& key,
                                              Moment arrived) const {
  const Request shared = common(fields, key, arrived);
  std::vector<Request> all;
  for (const Prompt& prompt : fields.prompts) {
    Request request = shared;
    const auto* ids = std::get_if<std::vector<int32_t>>(&prompt);
    if (!ids) check_bytes("prompt", std::ssize(std::get<std::string>(prompt)));
    request.prompt = checked("prompt", ids ? *ids : encode(std::get<std::string>(prompt)));
    request.score_prompt = fields.echo && fields.log_probs >= 0;
    fit(request, fields, fields.answers * std::ssize(fields.prompts), "logprobs");
    all.push_back(std::move(request));
  }
  return all;
}

}  // namespace fathom
