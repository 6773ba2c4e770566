#include "eval/form_parts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "text/unicode.h"

namespace fathom {

using Json = nlohmann::json;
using Texts = std::vector<std::string>;

namespace {

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

}  // namespace

const Json& value_of(const Json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end()) fail("expected the key \"{}\", there is none", key);
  return *found;
}

const Json& object_of(const Json& line, const char* key) {
  const Json& value = value_of(line, key);
  if (!value.is_object()) fail("expected \"{}\" to be an object, got {}", key, value.type_name());
  return value;
}

std::string text_of(const Json& line, const char* key) {
  const Json& value = value_of(line, key);
  if (!value.is_string()) fail("expected \"{}\" to be a string, got {}", key, value.type_name());
  return value.get<std::string>();
}

std::string filled_text_of(const Json& line, const char* key) {
  std::string text = text_of(line, key);
  if (is_blank(text)) fail("expected \"{}\" to hold a text, it is empty", key);
  return text;
}

Texts texts_of(const Json& line, const char* key, size_t least) {
  const Json& list = value_of(line, key);
  if (!list.is_array()) fail("expected \"{}\" to be a list of strings, got {}", key, list.type_name());
  if (list.size() < least) fail("expected \"{}\" to hold at least {}, got {}", key, least, list.size());
  Texts texts;
  for (const Json& entry : list) {
    if (!entry.is_string())
      fail("expected \"{}\" to be a list of strings, entry {} is {}", key, texts.size(), entry.type_name());
    texts.push_back(entry.get<std::string>());
    if (is_blank(texts.back())) fail("entry {} of \"{}\" is empty", texts.size() - 1, key);
  }
  return texts;
}

int64_t whole_of(const Json& line, const char* key, int64_t from, int64_t to) {
  const Json& value = value_of(line, key);
  if (!value.is_number_integer())
    fail("expected \"{}\" to be a whole number, got {}", key, value.type_name());
  const bool fits = value >= from && value <= to;
  if (!fits) fail("expected \"{}\" to be from {} to {}, got {}", key, from, to, value.dump());
  return value.get<int64_t>();
}

int64_t index_of(const Json& line, const char* key, size_t count) {
  return whole_of(line, key, 0, static_cast<int64_t>(count) - 1);
}

int64_t characters_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::string characters_from(const std::string& text, int64_t begin, int64_t count) {
  size_t at = 0;
  const auto skip = [&](int64_t characters) {
    for (int64_t i = 0; i < characters; ++i) at += decode_utf8(text, at).size;
    return at;
  };
  const size_t first = skip(begin);
  return text.substr(first, skip(count) - first);
}

EvalItem choice_item(const std::string& context, const Texts& choices, int64_t gold, const char* delimiter) {
  EvalItem item;
  item.gold = gold;
  for (const std::string& choice : choices) {
    item.options.push_back({context, delimiter + choice});
    item.characters.push_back(characters_of(choice));
  }
  if (gold >= 0) item.example = context + delimiter + choices[static_cast<size_t>(gold)];
  return item;
}

EvalItem context_item(const Texts& contexts, const std::string& continuation, int64_t gold) {
  EvalItem item;
  item.gold = gold;
  for (const std::string& context : contexts) {
    item.options.push_back({context, kSpace + continuation});
    item.characters.push_back(characters_of(continuation));
  }
  item.example = contexts[static_cast<size_t>(gold)] + kSpace + continuation;
  return item;
}

EvalItem question_item(std::string prompt, Texts answers, const std::string& shown) {
  EvalItem item;
  item.example = prompt + kSpace + shown;
  item.prompt = std::move(prompt);
  item.answers = std::move(answers);
  return item;
}

Lettered lettered(const Texts& choices) {
  if (choices.size() > 26) fail("expected at most 26 choices, got {}", choices.size());
  Lettered out;
  for (const std::string& choice : choices) {
    out.letters.emplace_back(1, static_cast<char>('A' + out.letters.size()));
    out.text += out.letters.back() + ". " + choice + "\n";
  }
  return out;
}

}  // namespace fathom
