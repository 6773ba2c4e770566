#include "eval/squad.h"

#include <algorithm>
#include <map>

#include "eval/python_text.h"
#include "text/regex.h"

namespace fathom {
namespace {

using Words = std::vector<std::string>;

// In small letters, without punctuation, cut at articles and white space.
Words words_of(std::string_view text) {
  static const Regex kArticles("\\b(?:a|an|the)\\b");
  const std::string plain = without_punctuation(lower_case(text));
  std::vector<TextSpan> spans;
  kArticles.split(plain, spans);
  std::string less_articles;
  for (const TextSpan& span : spans)
    less_articles += span.match ? " " : plain.substr(span.begin, span.end - span.begin);
  return split_words(less_articles);
}

double f1_of(const Words& given, const Words& right) {
  if (given.empty() || right.empty()) return given == right ? 1 : 0;
  std::map<std::string, int64_t> left;
  for (const std::string& word : right) ++left[word];
  const auto same = static_cast<double>(
      std::count_if(given.begin(), given.end(), [&](const std::string& word) { return left[word]-- > 0; }));
  if (same == 0) return 0;
  const double precision = same / static_cast<double>(given.size());
  const double recall = same / static_cast<double>(right.size());
  return 2 * precision * recall / (precision + recall);
}

}  // namespace

WordScore best_word_score(std::string_view given, const std::vector<std::string>& right) {
  const Words own = words_of(given);
  if (right.empty()) return {own.empty() ? 1.0 : 0.0, own.empty() ? 1.0 : 0.0};
  WordScore best;
  for (const std::string& one : right) {
    const Words words = words_of(one);
    best.exact = std::max(best.exact, own == words ? 1.0 : 0.0);
    best.f1 = std::max(best.f1, f1_of(own, words));
  }
  return best;
}

std::vector<std::string> answers_with_words(const std::vector<std::string>& answers) {
  std::vector<std::string> kept = answers;
  std::erase_if(kept, [](const std::string& answer) { return words_of(answer).empty(); });
  return kept;
}

double best_over_thresholds(std::span<const AnsweredQuestion> questions) {
  std::vector<AnsweredQuestion> sorted(questions.begin(), questions.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.no_answer < b.no_answer; });
  // None is answered at first; then one after another is.
  auto sum = static_cast<double>(
      std::count_if(sorted.begin(), sorted.end(), [](const auto& one) { return !one.has_answer; }));
  double best = sum;
  for (const AnsweredQuestion& one : sorted) {
    if (one.has_answer) sum += one.score;
    if (!one.has_answer && one.wrote) sum -= 1;
    best = std::max(best, sum);
  }
  return best / static_cast<double>(sorted.size());
}

}  // namespace fathom
