// Public datasets line by line as they are published, asked as lm-evaluation-harness's tasks ask them.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/format.h"
#include "eval/form_parts.h"
#include "eval/forms.h"
#include "eval/python_literal.h"
#include "eval/python_text.h"
#include "eval/squad.h"
#include "text/unicode.h"

namespace fathom {

using Json = nlohmann::json;
using Texts = std::vector<std::string>;

namespace {

// The first letter small, and a space before it: the harness adds another.
std::string copa_choice(const Json& line, const char* key) {
  const std::string text = filled_text_of(line, key);
  const size_t first = decode_utf8(text, 0).size;
  return kSpace + lower_case(text.substr(0, first)) + text.substr(first);
}

std::string without_last_character(std::string_view text) {
  const std::string whole(text);
  return characters_from(whole, 0, characters_of(whole) - 1);
}

struct Problem {
  std::string question;
  Texts options;
  size_t answer = 0;
};

Problem problem_of(const Json& json) {
  if (!json.is_object()) fail("expected \"problems\" to be a list of objects, got {}", json.type_name());
  Problem problem{text_of(json, "question"), texts_of(json, "options", 4), 0};
  if (problem.options.size() != 4) fail("expected 4 \"options\", got {}", problem.options.size());
  const std::string letter = text_of(json, "answer");
  if (letter.size() != 1 || letter[0] < 'A' || letter[0] > 'D')
    fail("expected \"answer\" to be a letter from A to D, got '{}'", printable(letter, 20));
  problem.answer = static_cast<size_t>(letter[0] - 'A');
  return problem;
}

// A list, or the text that Python prints for it, in which form the dataset has it.
std::vector<Problem> problems_of(const Json& line) {
  Json list = value_of(line, "problems");
  if (list.is_string()) {
    const std::string text = list.get<std::string>();
    try {
      list = parse_python_literal(text);
    } catch (const UserError& error) {
      fail("\"problems\": {}", error.what());
    }
  }
  if (!list.is_array() || list.empty())
    fail("expected \"problems\" to be a list of at least 1, got {}",
         list.is_array() ? "none" : list.type_name());
  std::vector<Problem> problems;
  for (const Json& json : list) problems.push_back(problem_of(json));
  return problems;
}

// A problem before the last, with its answer, in its blank ("… _  .") or after the question.
std::string solved(const Problem& problem) {
  const std::string &question = problem.question, &answer = problem.options[problem.answer];
  constexpr std::string_view kBlank = "  _  .";
  if (question.ends_with(kBlank)) return question.substr(0, question.size() - 5) + answer + "\n";
  return fmt::format("Question: {}\nAnswer: {}\n", question, answer);
}

Texts sorted_once(Texts texts) {
  const std::set<std::string> once(texts.begin(), texts.end());
  return {once.begin(), once.end()};
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

// The summary's lines, which follow the text, become a list; the query is one more of them.
std::string record_passage(std::string_view passage) {
  constexpr std::string_view kMark = "\n@highlight\n";
  passage = stripped(passage);
  size_t end = passage.find(kMark);
  std::string text = std::string(passage.substr(0, end)) + "\n\n";
  while (end != std::string_view::npos) {
    passage.remove_prefix(end + kMark.size());
    end = passage.find(kMark);
    text += fmt::format("  - {}.\n", passage.substr(0, end));
  }
  return text;
}

}  // namespace

EvalItem read_anli(const Json& line) {
  return choice_item(fmt::format("{}\nQuestion: {} True, False, or Neither?\nAnswer:",
                                 text_of(line, "premise"), text_of(line, "hypothesis")),
                     {"True", "Neither", "False"}, index_of(line, "label", 3));
}

EvalItem read_arc(const Json& line) {
  const Json& choices = object_of(line, "choices");
  const Texts texts = texts_of(choices, "text", 2), labels = texts_of(choices, "label", 2);
  if (texts.size() != labels.size())
    fail("expected as many \"label\" as \"text\", got {} and {}", labels.size(), texts.size());
  const std::string key = text_of(line, "answerKey");
  const auto found = std::find(labels.begin(), labels.end(), key);
  if (found == labels.end())
    fail("expected \"answerKey\" to be one of {}, got '{}'",
         printable(fmt::format("{}", fmt::join(labels, ", "))), printable(key, 20));
  return choice_item(fmt::format("Question: {}\nAnswer:", text_of(line, "question")), texts,
                     found - labels.begin());
}

EvalItem read_copa(const Json& line) {
  const std::string asked = text_of(line, "question");
  if (asked != "cause" && asked != "effect")
    fail("expected \"question\" to be cause or effect, got '{}'", printable(asked, 20));
  const std::string premise =
      without_last_character(stripped(filled_text_of(line, "premise")));  // no full stop
  return choice_item(premise + (asked == "cause" ? " because" : " therefore"),
                     {copa_choice(line, "choice1"), copa_choice(line, "choice2")},
                     index_of(line, "label", 2));
}

EvalItem read_race(const Json& line) {
  const std::vector<Problem> problems = problems_of(line);
  std::string context = fmt::format("Article: {}\n\n", text_of(line, "article"));
  for (size_t i = 0; i + 1 < problems.size(); ++i) context += solved(problems[i]);
  const Problem& last = problems.back();
  return choice_item(context + last.question, last.options, static_cast<int64_t>(last.answer));
}

EvalItem read_record(const Json& line) {
  const std::string context = record_passage(text_of(line, "passage")), query = text_of(line, "query");
  const Texts entities = sorted_once(texts_of(line, "entities", 1));
  Texts answers = sorted_once(texts_of(line, "answers", 1));
  const auto filled = [&](const std::string& entity) {
    return replaced("  - " + query, "@placeholder", entity);
  };
  Texts choices;
  for (const std::string& entity : entities) choices.push_back(filled(entity));
  const auto gold = std::find(entities.begin(), entities.end(), answers.front());
  EvalItem item = choice_item(context, choices, gold == entities.end() ? -1 : gold - entities.begin());
  for (const std::string& entity : entities) item.credit.push_back(best_word_score(entity, answers));
  item.example = context + kSpace + filled(answers.front());
  item.answers = std::move(answers);
  return item;
}

EvalItem read_squad(const Json& line) {
  const Texts answers = texts_of(object_of(line, "answers"), "text", 0);
  return question_item(
      fmt::format("Title: {}\n\nBackground: {}\n\nQuestion: {}\n\nAnswer:", text_of(line, "title"),
                  text_of(line, "context"), text_of(line, "question")),
      answers, kSpace + (answers.empty() ? "unanswerable" : answers.front()));
}

EvalItem read_storycloze(const Json& line) {
  std::string story;
  for (const char* key : {"input_sentence_1", "input_sentence_2", "input_sentence_3", "input_sentence_4"})
    story += (story.empty() ? "" : " ") + filled_text_of(line, key);
  return choice_item(story, {filled_text_of(line, "sentence_quiz1"), filled_text_of(line, "sentence_quiz2")},
                     whole_of(line, "answer_right_ending", 1, 2) - 1);
}

// Answers that begin with another are left out: whoever writes them writes that one, too.
EvalItem read_webqs(const Json& line) {
  Texts answers = texts_of(line, "answers", 1), kept;
  std::sort(answers.begin(), answers.end());
  for (const std::string& answer : answers) {
    if (kept.empty() || !answer.starts_with(kept.back())) kept.push_back(answer);
  }
  return choice_item(fmt::format("Question: {}\nAnswer:", text_of(line, "question")), kept, 0);
}

EvalItem read_wic(const Json& line) {
  const std::string first = text_of(line, "sentence1");
  const int64_t begin = whole_of(line, "start1", 0, characters_of(first));
  const int64_t end = whole_of(line, "end1", begin, characters_of(first));
  return choice_item(
      fmt::format("Sentence 1: {}\nSentence 2: {}\nQuestion: Is the word '{}' used in the same "
                  "way in the two sentences above?\nAnswer:",
                  first, text_of(line, "sentence2"), characters_from(first, begin, end - begin)),
      {"no", "yes"}, index_of(line, "label", 2));
}

}  // namespace fathom
