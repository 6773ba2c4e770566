#include "eval/answers.h"

#include <algorithm>

#include "eval/python_text.h"
#include "eval/squad.h"
#include "text/regex.h"

namespace fathom {
namespace {

constexpr const char* kInvalid = "[invalid]";

std::string removed(const Regex& pattern, const std::string& text) {
  std::vector<TextSpan> spans;
  pattern.split(text, spans);
  std::string out;
  for (const TextSpan& span : spans) {
    if (!span.match) out.append(text, span.begin, span.end - span.begin);
  }
  return out;
}

std::vector<std::string> matches(const Regex& pattern, const std::string& text) {
  std::vector<TextSpan> spans;
  pattern.split(text, spans);
  std::vector<std::string> out;
  for (const TextSpan& span : spans) {
    if (span.match) out.push_back(text.substr(span.begin, span.end - span.begin));
  }
  return out;
}

std::string normal_text(const std::string& text, bool less_articles) {
  static const Regex kArticles("\\b(?:The |the |An |A |a |an )");
  return without_punctuation(lower_case(less_articles ? removed(kArticles, text) : text));
}

// The number of a worked answer ("… #### 18"), or of what was taken from one.
std::string normal_number(std::string text) {
  static const Regex kSteps("[\\s\\S]*#### "), kEnd("\\.\\Z");
  std::erase_if(text, [](char c) { return c == ',' || c == '$'; });
  return lower_case(removed(kEnd, removed(kSteps, text)));
}

std::string marked_number(const std::string& text) {
  static const Regex kMarked("#### -?[0-9.,]+");
  const std::vector<std::string> found = matches(kMarked, text);
  return found.empty() ? kInvalid : found.front().substr(5);
}

std::string last_number(const std::string& text) {
  static const Regex kNumber("-?[$0-9.,]{2,}|-?[0-9]+");
  const std::vector<std::string> found = matches(kNumber, text);
  return found.empty() ? kInvalid : found.back();
}

// What GateSkip's template ends with: "#### B".
std::string marked_letter(const std::string& text) {
  static const Regex kMarked("#### [A-Z](?![\\p{L}\\p{N}])");
  const std::vector<std::string> found = matches(kMarked, text);
  return found.empty() ? kInvalid : found.front().substr(5);
}

// No task has more than five choices. "A" before a word in small letters is the article.
std::string last_letter(const std::string& text) {
  static const Regex kLetter("(?<![\\p{L}\\p{N}])(?:[B-E]|A(?! +\\p{Ll}))(?![\\p{L}\\p{N}])");
  const std::vector<std::string> found = matches(kLetter, text);
  return found.empty() ? kInvalid : found.back();
}

template <class Normal>
Judgement compare(const char* name, std::string answer, const std::vector<std::string>& right,
                  Normal&& normal) {
  const std::string given = normal(answer);
  const bool any =
      std::any_of(right.begin(), right.end(), [&](const std::string& one) { return normal(one) == given; });
  return {name, std::move(answer), any ? 1.0 : 0.0};
}

}  // namespace

std::vector<Judgement> judge(AnswerRule rule, std::string_view text, const std::vector<std::string>& right) {
  const std::string whole(text);
  const auto as_text = [&](bool less_articles) {
    return compare("exact_match", std::string(stripped(text)), right,
                   [&](const std::string& one) { return normal_text(one, less_articles); });
  };
  const auto as_is = [](const std::string& one) { return one; };
  switch (rule) {
    case AnswerRule::kNone:
      return {};
    case AnswerRule::kText:
      return {as_text(false)};
    case AnswerRule::kTextLessArticles:
      return {as_text(true)};
    case AnswerRule::kNumber:
      return {compare("exact_match", marked_number(whole), right, normal_number),
              compare("exact_match_flexible", last_number(whole), right, normal_number)};
    case AnswerRule::kLetter:
      return {compare("exact_match", marked_letter(whole), right, as_is),
              compare("exact_match_flexible", last_letter(whole), right, as_is)};
    case AnswerRule::kSquad: {
      const WordScore score = best_word_score(whole, answers_with_words(right));
      return {{"exact", whole, score.exact}, {"f1", whole, score.f1}};
    }
  }
  return {};
}

std::string_view before_stops(std::string_view text, const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) text = text.substr(0, text.find(stop));
  return text;
}

}  // namespace fathom
