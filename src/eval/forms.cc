#include "eval/forms.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "eval/form_parts.h"
#include "eval/python_text.h"

namespace fathom {

using Json = nlohmann::json;
using Texts = std::vector<std::string>;

namespace {

EvalItem continuation_item(const Json& line, const char* delimiter) {
  EvalItem item;
  const std::string context = text_of(line, "context"), rest = filled_text_of(line, "continuation");
  item.options.push_back({context, delimiter + rest});
  item.example = context + delimiter + rest;
  return item;
}

// A question with lettered choices by GateSkip's template (appendix I.2): "Question: …\nAnswer: steps\n####
// letter". `question`: also in the frame that the files of choices have.
EvalItem lettered_item(std::string_view question, const Texts& choices, int64_t gold) {
  constexpr std::string_view kAnswer = "\nAnswer:";
  for (const std::string_view frame : {"Question: ", "Goal: "}) {
    if (question.starts_with(frame) && question.ends_with(kAnswer))
      question = question.substr(frame.size(), question.size() - frame.size() - kAnswer.size());
  }
  const auto [text, letters] = lettered(choices);
  EvalItem item;
  item.prompt = fmt::format("Question: {}\n{}Answer:", stripped(question), text);
  item.answers = {letters[static_cast<size_t>(gold)]};
  return item;
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
  const std::string rest(stripped(std::string_view(sentence).substr(blank + 1)));
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
  const auto [text, letters] = lettered(choices);
  EvalItem item = choice_item(fmt::format("{}\n{}Answer:", stripped(text_of(line, "ctx")), text), letters,
                              index_of(line, "gold", choices.size()));
  item.group = text_of(line, "subject");
  std::string subject = item.group;
  std::replace(subject.begin(), subject.end(), '_', ' ');
  item.description =
      fmt::format("The following are multiple choice questions (with answers) about {}.\n\n", subject);
  return item;
}

EvalItem read_lettered(const Json& line) {
  const Texts choices = texts_of(line, "choices", 2);
  EvalItem item = lettered_item(filled_text_of(line, "ctx"), choices, index_of(line, "gold", choices.size()));
  if (line.contains("subject")) item.group = text_of(line, "subject");
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
  const std::string answer = filled_text_of(line, "answer");
  return question_item(fmt::format("Question: {}\nAnswer:", filled_text_of(line, "question")), {answer},
                       answer);
}

EvalItem read_nq_open(const Json& line) {
  const Texts answers = texts_of(line, "answer", 1);
  EvalItem item =
      question_item(fmt::format("Q: {}?\nA:", filled_text_of(line, "question")), answers, answers.front());
  item.description = "Answer these questions:\n\n";
  return item;
}

EvalItem read_trivia(const Json& line) {
  Texts answers{filled_text_of(line, "answer")};
  if (line.contains("aliases")) answers = texts_of(line, "aliases", 1);
  return question_item(filled_text_of(line, "context"), answers, answers.front());
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
