#include "infer/batch_source.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json_depth.h"
#include "base/sha256.h"
#include "infer/batcher.h"
#include "infer/chat_encoding.h"
#include "infer/sampler.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

const std::array<std::string, 7> kKeys{"prompt", "messages", "id",         "max_tokens",
                                       "seed",   "budget",   "temperature"};

void check_keys(const Json& line) {
  if (!line.is_object()) fail("expected an object, got {}", line.type_name());
  for (const auto& [key, value] : line.items()) {
    if (std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end()) continue;
    const std::string near = nearest_name(key, kKeys.data(), kKeys.size());
    fail("unknown key '{}'{}", printable(key), near.empty() ? "" : ", did you mean '" + near + "'?");
  }
  if (line.contains("prompt") == line.contains("messages"))
    fail("expected either 'prompt' or 'messages', got {}", line.contains("prompt") ? "both" : "neither");
}

std::string text_at(const Json& object, const char* key, const std::string& where = "") {
  if (!object.is_object() || !object.contains(key) || !object[key].is_string())
    fail("{}'{}' must be a text", where, key);
  return object[key];
}

double number_at(const Json& line, const char* key) {
  const Json& value = line[key];
  if (!value.is_number() || !std::isfinite(value.get<double>()))
    fail("'{}' must be a number, got {}", key, printable(value.dump(), 40));
  return value.get<double>();
}

int64_t whole_at(const Json& line, const char* key, int64_t least) {
  const Json& value = line[key];
  const bool fits =
      value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{INT64_MAX} : value.is_number_integer();
  if (!fits || value.get<int64_t>() < least)
    fail("'{}' must be a whole number of at least {}, got {}", key, least, printable(value.dump(), 40));
  return value.get<int64_t>();
}

void take_settings(const Json& line, Request& request) {
  if (line.contains("max_tokens")) request.max_tokens = whole_at(line, "max_tokens", -1);
  if (line.contains("seed")) request.sampler.seed = static_cast<uint64_t>(whole_at(line, "seed", 0));
  if (line.contains("temperature"))
    request.sampler.temperature = static_cast<float>(number_at(line, "temperature"));
  if (line.contains("budget")) request.budget = static_cast<float>(number_at(line, "budget"));
}

std::string id_of(const Json& line) {
  if (!line.contains("id")) return "";
  const Json& id = line["id"];
  if (!id.is_string() && !id.is_number_integer()) fail("'id' must be a text or a whole number");
  return id.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::vector<ChatMessage> chat_messages_of(const Json& list) {
  if (!list.is_array()) fail("'messages' must be a list, got {}", list.type_name());
  std::vector<ChatMessage> messages;
  for (const Json& message : list) {
    const std::string where = fmt::format("messages[{}]: ", messages.size());
    messages.push_back({text_at(message, "role", where), text_at(message, "content", where)});
    const std::string& role = messages.back().role;
    if (role != "system" && role != "user" && role != "assistant")
      fail("{}'role' must be system, user or assistant, got '{}'", where, printable(role));
  }
  return messages;
}

uint64_t batch_seed(uint64_t seed, int64_t index) {
  constexpr int kShift = 11;  // what is left is exact in every reader of JSON
  return index == 0 ? seed : answer_seed(seed, index) >> kShift;
}

BatchSource::BatchSource(const Model& model, BatchSourceOptions options)
    : model_(model), options_(std::move(options)) {
  if (options_.file.empty()) return;
  file_ = MappedFile::open(options_.file);
  find_lines();
}

std::string_view BatchSource::text() const {
  return {reinterpret_cast<const char*>(file_->bytes().data()), file_->bytes().size()};
}

void BatchSource::find_lines() {
  const std::string_view all = text();
  int64_t number = 0;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find('\n', begin), all.size());
    ++number;
    if (all.substr(begin, end - begin).find_first_not_of(" \t\r") != std::string_view::npos)
      lines_.push_back({begin, end - begin, number});
    begin = end + 1;
  }
}

std::string BatchSource::identity() const {
  if (!file_) return "none";
  Sha256 hash;
  hash.add(file_->bytes());
  return hash.hex();
}

BatchItem BatchSource::at(int64_t index) const {
  BatchItem item{.id = "", .request = options_.defaults};
  item.request.sampler.seed = batch_seed(options_.defaults.sampler.seed, index);
  if (index < std::ssize(lines_))
    parse(lines_[static_cast<size_t>(index)], item);
  else
    item.request.prompt = start();
  return item;
}

void BatchSource::parse(const Line& line, BatchItem& item) const try {
  const std::string_view words = text().substr(line.begin, line.size);
  check_json_depth(words, "the JSON");
  const Json json = Json::parse(words);
  check_keys(json);
  item.id = id_of(json);
  take_settings(json, item.request);
  check_sampler(item.request.sampler);
  if (json.contains("prompt")) {
    item.request.prompt = encode(text_at(json, "prompt"));
    return;
  }
  const std::vector<ChatMessage> messages = chat_messages_of(json["messages"]);
  if (messages.empty()) fail("'messages' must be a list with at least one message");
  item.request.prompt =
      encode_chat(*model_.tokenizer, chat_template_of(model_, options_.chat_template), messages);
} catch (const Json::exception& error) {
  const std::string_view what = error.what();  // "[json.exception.…] parse error at line 1, …"
  fail("this is no JSON: {}", printable(std::string(what.substr(what.find("] ") + 2))));
}

std::string BatchSource::where(int64_t index) const {
  const int64_t lines = std::ssize(lines_);
  return index < lines ? fmt::format("line {}", lines_[static_cast<size_t>(index)].number)
                       : fmt::format("text {} from nothing", index - lines + 1);
}

std::vector<int32_t> BatchSource::encode(const std::string& prompt) const {
  if (options_.chat_template.empty()) return model_.tokenizer->encode(prompt);
  std::vector<ChatMessage> messages;
  if (!options_.system.empty()) messages.push_back({"system", options_.system});
  messages.push_back({"user", prompt});
  return encode_chat(*model_.tokenizer, chat_template_of(model_, options_.chat_template), messages);
}

std::vector<int32_t> BatchSource::start() const {
  const Tokenizer& tokenizer = *model_.tokenizer;
  const std::vector<int32_t> ids = tokenizer.encode(options_.start);
  if (!ids.empty()) return ids;
  const int32_t first = tokenizer.bos() >= 0 ? tokenizer.bos() : tokenizer.eos();
  if (first < 0) fail("the vocabulary has neither BOS nor EOS: name a text to begin with");
  return {first};
}

}  // namespace fathom
