#include "serve/generation_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "infer/speculative_policy.h"
#include "serve/api_error.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

std::optional<float> as_float(std::optional<double> value) {
  return value ? std::optional(static_cast<float>(*value)) : std::nullopt;
}

// Either of two names, not both with different values.
std::optional<double> either(const BodyReader& body, const char* first, const char* second, double least,
                             double most) {
  const auto a = body.number(first, least, most), b = body.number(second, least, most);
  if (a && b && *a != *b)
    refuse_field(second,
                 fmt::format("{} and {} are the same thing twice, with different values: give one of them",
                             first, second));
  return a ? a : b;
}

void read_sampling(const BodyReader& body, GenerationFields& into) {
  into.temperature = as_float(body.number("temperature", 0, 100));
  into.top_p = as_float(body.number("top_p", 0, 1));
  into.min_p = as_float(body.number("min_p", 0, 1));
  if (const auto k = body.integer("top_k", -1, INT32_MAX))
    into.top_k = static_cast<int32_t>(std::max<int64_t>(0, *k));
  into.repeat_penalty = as_float(either(body, "repeat_penalty", "repetition_penalty", 1e-3, 1e3));
  into.presence_penalty = static_cast<float>(body.number("presence_penalty", -2, 2).value_or(0));
  into.frequency_penalty = static_cast<float>(body.number("frequency_penalty", -2, 2).value_or(0));
  const std::optional<int64_t> seed = body.integer("seed", INT64_MIN, INT64_MAX);
  if (seed && *seed != -1) into.seed = static_cast<uint64_t>(*seed);  // -1: a random one
}

int32_t bias_token(const std::string& key) {
  int32_t id = 0;
  const std::errc error = std::from_chars(key.data(), key.data() + key.size(), id).ec;
  // One spelling for each: "05" beside "5" would be a second bias for the same token.
  if (error != std::errc() || id < 0 || std::to_string(id) != key)
    refuse_field("logit_bias",
                 fmt::format("logit_bias: a key must be a token id, got '{}'", printable(key, 40)));
  return id;
}

void read_bias(const BodyReader& body, const ApiLimits& limits, GenerationFields& into) {
  const Json* map = body.object("logit_bias");
  if (!map) return;
  if (std::ssize(*map) > limits.bias_entries)
    refuse_field("logit_bias",
                 fmt::format("logit_bias may have {} entries, got {}", limits.bias_entries, map->size()));
  for (const auto& [key, value] : map->items()) {
    const int32_t id = bias_token(key);
    const BodyReader entry(*map, "logit_bias.");
    const double bias = entry.number(key.c_str(), -100, 100).value_or(0);
    into.logit_bias.emplace_back(id, static_cast<float>(bias));
  }
}

void add_stop(const Json& value, const ApiLimits& limits, std::vector<std::string>& stops) {
  if (!value.is_string())
    refuse_field("stop", fmt::format("stop must be a string or a list of strings, got {}", shown(value)));
  const auto& text = value.get_ref<const std::string&>();
  if (std::ssize(text) > limits.stop_bytes)
    refuse_field("stop",
                 fmt::format("a stop string may have {} bytes, got {}", limits.stop_bytes, text.size()));
  if (!text.empty()) stops.push_back(text);  // OpenAI's clients send "" for none
}

void check_count(const char* field, std::size_t count, int64_t most) {
  if (static_cast<int64_t>(count) > most)
    refuse_field(field, fmt::format("{} may have {} entries, got {}", field, most, count));
}

void read_ends(const BodyReader& body, const ApiLimits& limits, GenerationFields& into) {
  if (const Json* stop = body.find("stop")) {
    if (stop->is_array()) {
      check_count("stop", stop->size(), limits.stops);
      for (const Json& each : *stop) add_stop(each, limits, into.stops);
    } else {
      add_stop(*stop, limits, into.stops);
    }
  }
  if (const Json* ids = body.list("stop_token_ids")) {
    check_count("stop_token_ids", ids->size(), limits.stops);
    for (const Json& id : *ids) into.stop_ids.push_back(token_id(id, "stop_token_ids"));
  }
  into.ignore_eos = body.boolean("ignore_eos").value_or(false);
  into.min_tokens = body.integer("min_tokens", 0, limits.tokens).value_or(0);
}

void read_stream(const BodyReader& body, GenerationFields& into) {
  into.stream = body.boolean("stream").value_or(false);
  const Json* options = body.object("stream_options");
  if (!options) return;
  if (!into.stream) refuse_field("stream_options", "stream_options goes with stream: true");
  into.include_usage = BodyReader(*options, "stream_options.").boolean("include_usage").value_or(false);
}

void read_quality(const BodyReader& body, BudgetFields& into) {
  const std::optional<std::string> text = body.text("quality");
  if (!text) return;
  try {
    into.quality = parse_quality(*text);
  } catch (const UserError& error) {
    refuse_field("quality", fmt::format("quality: {}", error.what()));
  }
  into.named = "quality";
}

void read_budget(const BodyReader& body, BudgetFields& into) {
  const Json* budget = body.find("budget");
  if (budget && budget->is_string()) {
    if (*budget != "auto")
      refuse_field("budget", fmt::format("budget must be a number or \"auto\", got {}", shown(*budget)));
    into.automatic = true;
  } else {
    into.budget = body.number("budget", 0, 1);
  }
  if (const auto saved = body.number("saved", 0, 1)) {
    if (budget) refuse_field("saved", "budget and saved are the same thing twice: give one of them");
    into.budget = 1 - *saved;
    into.named = "saved";
  }
  read_quality(body, into);
  if (into.quality && (into.budget || into.automatic))
    refuse_field("quality", "quality chooses the budget: leave budget and saved out");
  into.floor = body.number("budget_floor", 0, 1);
  // Without a budget the server may choose one: RequestMaker knows.
  if (into.floor && (into.budget || into.quality))
    refuse_field("budget_floor", "budget_floor goes with budget: \"auto\"");
}

void read_draft_kind(const BodyReader& body, const char* field, DraftOptions& drafts) {
  const std::optional<std::string> kind = body.text(field);
  if (!kind) return;
  const auto names = enum_names(DraftKind{});
  const auto at = std::find(names.begin(), names.end(), *kind);
  if (at == names.end())
    refuse_field(body.name(field), fmt::format("{} must be one of {}, got '{}'", body.name(field),
                                               fmt::join(names, ", "), printable(*kind, 40)));
  drafts.kind = static_cast<DraftKind>(at - names.begin());
}

// true, a number of tokens, or {"drafts", "draft", "budget"}.
void read_drafts(const BodyReader& body, GenerationFields& into) {
  const Json* value = body.find("speculate");
  DraftOptions drafts;
  bool wanted = false;
  if (value && value->is_object()) {
    const BodyReader inner(*value, "speculate.");
    drafts.drafts = inner.integer("drafts", 0, kMostDrafts).value_or(0);
    const std::optional<double> budget = inner.number("budget", 0.01, 0.99);
    into.has_draft_budget = budget.has_value();
    drafts.budget = budget.value_or(drafts.budget);
    read_draft_kind(inner, "draft", drafts);
    wanted = true;
  } else if (value && value->is_number()) {
    drafts.drafts = *body.integer("speculate", 0, kMostDrafts);
    wanted = drafts.drafts > 0;
  } else {
    wanted = body.boolean("speculate").value_or(false);
  }
  read_draft_kind(body, "draft", drafts);
  if (wanted) into.speculate = drafts;
  if (!wanted && body.find("draft")) refuse_field("draft", "draft goes with speculate");
}

void read_depth(const BodyReader& body, GenerationFields& into) {
  const Json* value = body.find("return_depth");
  if (value && *value == "units") {
    into.depth = DepthDetail::kUnits;
  } else if (value && value->is_string()) {
    refuse_field("return_depth",
                 fmt::format("return_depth must be true, false or \"units\", got {}", shown(*value)));
  } else if (body.boolean("return_depth").value_or(false)) {
    into.depth = DepthDetail::kDepth;
  }
}

void read_format(const BodyReader& body, ResponseFormat& into) {
  const Json* format = body.object("response_format");
  if (!format) return;
  const BodyReader inner(*format, "response_format.");
  const std::string type = inner.text("type").value_or("");
  if (type == "text") return;
  if (type == "json_object") {
    if (inner.find("schema"))
      refuse_field("response_format.schema",
                   "response_format.schema is not served beside json_object: write type json_schema and "
                   "json_schema.schema");
    into.kind = ResponseFormat::Kind::kObject;
    return;
  }
  if (type != "json_schema")
    refuse_field("response_format.type",
                 fmt::format("response_format.type must be text, json_object or json_schema, got '{}'",
                             printable(type, 40)));
  const Json* named = inner.object("json_schema");
  const Json* schema = named ? BodyReader(*named, "response_format.json_schema.").find("schema") : nullptr;
  if (!schema)
    refuse_field("response_format.json_schema", "response_format.json_schema.schema is missing: the schema");
  into.kind = ResponseFormat::Kind::kSchema;
  into.schema = schema->dump();
}

// Fields of OpenAI's, vLLM's and llama.cpp's servers that change an answer, and that are not served.
void refuse_unserved(const BodyReader& body) {
  for (const char* field :
       {"tools", "functions", "suffix", "audio", "use_beam_search", "prediction", "web_search_options",
        "prompt_logprobs", "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex",
        "json_schema", "structured_outputs"})
    body.unserved(field);
  for (const char* field : {"tool_choice", "function_call"}) {
    const Json* choice = body.find(field);
    if (choice && *choice != "none") body.unserved(field);
  }
  if (body.integer("best_of", 0, INT64_MAX).value_or(1) > 1)
    throw ApiError(400, "best_of above 1 is not served here: ask for n answers", "best_of",
                   "unsupported_parameter");
  const Json* modalities = body.list("modalities");
  if (modalities && *modalities != Json::array({"text"})) body.unserved("modalities");
}

}  // namespace

void read_generation_fields(const BodyReader& body, const ApiLimits& limits, GenerationFields& into) {
  refuse_unserved(body);
  into.model = body.text("model").value_or("");
  into.answers = body.integer("n", 1, limits.choices).value_or(1);
  into.timeout = body.number("timeout", 1e-3, kMostTimeout);
  read_sampling(body, into);
  read_bias(body, limits, into);
  read_ends(body, limits, into);
  read_stream(body, into);
  read_budget(body, into.budget);
  read_drafts(body, into);
  read_depth(body, into);
  read_format(body, into.format);
}

}  // namespace fathom
