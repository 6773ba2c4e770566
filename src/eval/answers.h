// How a written answer is read and compared, as lm-evaluation-harness does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

enum class AnswerRule : uint8_t {
  kNone,              // not judged
  kText,              // case and punctuation do not count
  kTextLessArticles,  // nor do articles
  kNumber,            // the number after "####", or (flexible) the last one
  kLetter,            // the letter after "####", or (flexible) the last one that stands alone
  kSquad,             // SQuAD's: exact and F1 of the words; no answer at all where there is none
};

struct Judgement {
  std::string name;    // of the metric
  std::string answer;  // what was taken from the text; "[invalid]" when nothing was found
  double score = 0;    // 1: right
};

// Each way of reading the answer that the rule has, the strictest first. `text` is what was generated, less
// its stop string; `right`: the answers that count.
std::vector<Judgement> judge(AnswerRule rule, std::string_view text, const std::vector<std::string>& right);

// `text` up to the first of the stop strings.
std::string_view before_stops(std::string_view text, const std::vector<std::string>& stops);

}  // namespace fathom
