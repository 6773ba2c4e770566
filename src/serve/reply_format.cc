#include "serve/reply_format.h"

#include <nlohmann/json.hpp>

#include "base/build_info.h"
#include "serve/token_text.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson usage_json(const Usage& usage) {
  OrderedJson json;
  json["prompt_tokens"] = usage.prompt_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  json["prompt_tokens_details"] = {{"cached_tokens", usage.cached_tokens}};
  json["skip_ratio"] = usage.skip_ratio();
  json["block_flops"] = usage.block_flops();
  if (usage.budget) json["budget"] = shortest_decimal(*usage.budget);
  if (usage.speculation.drafted > 0)
    json["completion_tokens_details"] = {{"drafted_tokens", usage.speculation.drafted},
                                         {"accepted_prediction_tokens", usage.speculation.accepted}};
  return json;
}

// What each token ran: layers, and on request a digit for each unit.
OrderedJson depth_json(const std::vector<Token>& tokens, DepthDetail detail) {
  OrderedJson list = OrderedJson::array();
  for (const Token& token : tokens) {
    if (token.ends) continue;
    OrderedJson entry;
    entry["text"] = token.text;
    entry["depth"] = token.depth;
    if (detail == DepthDetail::kUnits) {
      std::string bits;
      for (const uint8_t unit : token.units) bits += unit ? '1' : '0';
      entry["units"] = bits;
    }
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace

void Usage::add(const AnswerStats& stats) {
  cached_tokens += stats.reused_tokens;
  block_madds += stats.block_madds;
  dense_block_madds += stats.dense_block_madds;
  skipped += stats.skip_ratio * stats.dense_block_madds;
  speculation += stats.speculation;
}

ReplyFormat::ReplyFormat(ReplyHead head, const ServedModel& served)
    : head_(std::move(head)), served_(served) {}

OrderedJson ReplyFormat::envelope(bool chunk) const {
  OrderedJson json;
  json["id"] = head_.id;
  json["object"] = object(chunk);
  json["created"] = head_.created;
  json["model"] = head_.model;
  json["system_fingerprint"] = std::string("fathom-") + build_info().version;
  json["seed"] = static_cast<int64_t>(head_.seed);  // as it was asked for, negative ones too
  if (head_.budget) json["budget"] = shortest_decimal(*head_.budget);
  if (chunk && head_.include_usage) json["usage"] = nullptr;  // but in the last one
  return json;
}

OrderedJson ReplyFormat::choice_of(const AnswerPart& part, bool chunk) const {
  OrderedJson choice;
  choice["index"] = part.index;
  write_choice(choice, part, chunk);
  choice["finish_reason"] = part.finish ? OrderedJson(name_of(*part.finish)) : OrderedJson();
  if (head_.depth != DepthDetail::kNone) choice["depth"] = depth_json(part.tokens, head_.depth);
  return choice;
}

std::string ReplyFormat::event_of(const OrderedJson& chunk) const {
  return "data: " + to_line(chunk) + "\n\n";
}

std::string ReplyFormat::whole(const std::vector<AnswerPart>& parts, const Usage& usage) const {
  OrderedJson json = envelope(false);
  json["choices"] = OrderedJson::array();
  for (const AnswerPart& part : parts) json["choices"].push_back(choice_of(part, false));
  json["usage"] = usage_json(usage);
  return to_line(json);
}

std::string ReplyFormat::event(const AnswerPart& part) const {
  OrderedJson json = envelope(true);
  json["choices"] = OrderedJson::array({choice_of(part, true)});
  return event_of(json);
}

std::string ReplyFormat::usage_event(const Usage& usage) const {
  OrderedJson json = envelope(true);
  json["choices"] = OrderedJson::array();
  json["usage"] = usage_json(usage);
  return event_of(json);
}

}  // namespace fathom
