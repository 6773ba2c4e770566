#include "eval/forms.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "text/unicode.h"

namespace fathom {
namespace {

using Json = nlohmann::json;
using Texts = std::vector<std::string>;

const Json& value_of(const Json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end()) fail("expected the key \"{}\", there is none", key);
  return *found;
}

std::string text_of(const Json& line, const char* key) {
  const Json& value = value_of(line, key);
  if (!value.is_string()) fail("expected \"{}\" to be a string, got {}", key, value.type_name());
  return value.get<std::string>();
}

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
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

int64_t index_of(const Json& line, const char* key, size_t count) {
  const Json& value = value_of(line, key);
  if (!value.is_number_integer())
    fail("expected \"{}\" to be a whole number, got {}", key, value.type_name());
  const bool fits = value >= 0 && value < count;
  if (!fits) fail("expected \"{}\" to be from 0 to {}, got {}", key, count - 1, value.dump());
  return value.get<int64_t>();
}

// Characters, as Python counts them. The parser has made sure that the text is UTF-8.
int64_t characters_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

// lm-evaluation-harness's target_delimiter.
constexpr const char* kSpace = " ";

EvalItem choice_item(const std::string& context, const Texts& choices, int64_t gold,
                     const char* delimiter = kSpace) {
  EvalItem item;
  item.gold = gold;
  for (const std::string& choice : choices) {
    item.options.push_back({context, delimiter + choice});
    item.characters.push_back(characters_of(choice));
  }
  item.example = context + delimiter + choices[static_cast<size_t>(gold)];
  return item;
}

// The choices are contexts, and what follows is the same for all ("partial evaluation").
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

EvalItem continuation_item(const Json& line, const char* delimiter) {
  EvalItem item;
  const std::string context = text_of(line, "context"), rest = filled_text_of(line, "continuation");
  item.options.push_back({context, delimiter + rest});
  item.example = context + delimiter + rest;
  return item;
}

EvalItem question_item(std::string prompt, Texts answers) {
  EvalItem item;
  item.example = prompt + kSpace + answers.front();
  item.prompt = std::move(prompt);
  item.answers = std::move(answers);
  return item;
}

// What is left of `text` without white space at its ends.
std::string stripped(const std::string& text) {
  const char* const space = " \t\r\n";
  const size_t begin = text.find_first_not_of(space);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(space) + 1 - begin);
}

}  // namespace

EvalItem read_choices(const Json& line) {
  const Texts choices = texts_of(line, "choices", 2);
  return choice_item(text_of(line, "ctx"), choices, index_of(line, "gold", choices.size()));
}

EvalItem read_blank(const Json& line) {
  const std::string sentence = text_of(line, "ctx");
  const size_t blank = sentence.find('_');
  if (blank == std::string::npos) fail("expected \"ctx\" to hold a blank (_), it has none");
  Texts contexts = texts_of(line, "choices", 2);
  const int64_t gold = index_of(line, "gold", contexts.size());
  for (std::string& choice : contexts) choice.insert(0, sentence, 0, blank);
  const std::string rest = stripped(sentence.substr(blank + 1));
  if (rest.empty()) fail("expected \"ctx\" to go on after its blank (_), nothing follows");
  return context_item(contexts, rest, gold);
}

EvalItem read_pair(const Json& line) {
  EvalItem item = choice_item("", {filled_text_of(line, "good"), filled_text_of(line, "bad")}, 0);
  const auto paradigm = line.find("uid");
  if (paradigm != line.end()) item.group = text_of(line, "uid");
  return item;
}

EvalItem read_contexts(const Json& line) {
  const Texts contexts = texts_of(line, "context_options", 2);
  return context_item(contexts, filled_text_of(line, "continuation"),
                      index_of(line, "gold", contexts.size()));
}

EvalItem read_last_word(const Json& line) {
  return continuation_item(line, kSpace);
}

EvalItem read_sum(const Json& line) {
  return continuation_item(line, "");
}

EvalItem read_mmlu(const Json& line) {
  const Texts choices = texts_of(line, "choices", 2);
  if (choices.size() > 26) fail("expected at most 26 choices, got {}", choices.size());
  std::string question = stripped(text_of(line, "ctx")) + "\n";
  Texts letters;
  for (const std::string& choice : choices) {
    letters.emplace_back(1, static_cast<char>('A' + letters.size()));
    question += letters.back() + ". " + choice + "\n";
  }
  EvalItem item = choice_item(question + "Answer:", letters, index_of(line, "gold", choices.size()));
  item.group = text_of(line, "subject");
  std::string subject = item.group;
  std::replace(subject.begin(), subject.end(), '_', ' ');
  item.description =
      fmt::format("The following are multiple choice questions (with answers) about {}.\n\n", subject);
  return item;
}

EvalItem read_logiqa(const Json& line) {
  const Texts choices = texts_of(line, "choices", 2);
  return choice_item(filled_text_of(line, "query") + "Answer:", choices,
                     index_of(line, "gold", choices.size()));
}

EvalItem read_mrpc(const Json& line) {
  return choice_item(
      fmt::format("Sentence 1: {}\nSentence 2: {}\nQuestion: Do both sentences mean the same thing?\nAnswer:",
                  text_of(line, "sentence1"), text_of(line, "sentence2")),
      {"no", "yes"}, index_of(line, "label", 2));
}

EvalItem read_rte(const Json& line) {
  return choice_item(fmt::format("{}\nQuestion: {} True or False?\nAnswer:", text_of(line, "sentence1"),
                                 text_of(line, "sentence2")),
                     {"True", "False"}, index_of(line, "label", 2));
}

EvalItem read_sst2(const Json& line) {
  return choice_item(
      fmt::format("{}\nQuestion: Is this sentence positive or negative?\nAnswer:", text_of(line, "sentence")),
      {"negative", "positive"}, index_of(line, "label", 2));
}

EvalItem read_cb(const Json& line) {
  return choice_item(fmt::format("{}\nQuestion: {}. True, False, or Neither?\nAnswer:",
                                 text_of(line, "premise"), text_of(line, "hypothesis")),
                     {"True", "False", "Neither"}, index_of(line, "label", 3));
}

EvalItem read_gsm8k(const Json& line) {
  return question_item(fmt::format("Question: {}\nAnswer:", filled_text_of(line, "question")),
                       {filled_text_of(line, "answer")});
}

EvalItem read_nq_open(const Json& line) {
  EvalItem item =
      question_item(fmt::format("Q: {}?\nA:", filled_text_of(line, "question")), texts_of(line, "answer", 1));
  item.description = "Answer these questions:\n\n";
  return item;
}

EvalItem read_trivia(const Json& line) {
  Texts answers{filled_text_of(line, "answer")};
  if (line.contains("aliases")) answers = texts_of(line, "aliases", 1);
  return question_item(filled_text_of(line, "context"), std::move(answers));
}

EvalItem read_humaneval(const Json& line) {
  EvalItem item;
  item.id = text_of(line, "task_id");
  item.prompt = filled_text_of(line, "prompt");
  return item;
}

EvalItem read_text(const Json& line) {
  EvalItem item;
  item.text = filled_text_of(line, "text");
  return item;
}

FileForm form_of(const Json& line) {
  const auto has = [&](std::initializer_list<const char*> keys) {
    return std::all_of(keys.begin(), keys.end(), [&](const char* key) { return line.contains(key); });
  };
  if (has({"ctx", "choices", "gold"})) return {TaskKind::kChoice, read_choices};
  if (has({"good", "bad"})) return {TaskKind::kChoice, read_pair};
  if (has({"context_options", "continuation", "gold"})) return {TaskKind::kChoice, read_contexts};
  if (has({"context", "continuation"})) return {TaskKind::kContinue, read_last_word};
  if (has({"context", "answer"})) return {TaskKind::kGenerate, read_trivia};
  if (has({"text"})) return {TaskKind::kRolling, read_text};
  std::string keys;
  for (const auto& item : line.items()) keys += (keys.empty() ? "" : ", ") + item.key();
  fail(
      "expected the keys ctx, choices and gold; good and bad; context_options, continuation and gold; "
      "context and continuation; context and answer; or text; got {}",
      keys.empty() ? "none" : printable(keys));
}

}  // namespace fathom
