// SQuAD's way to compare answers, which ReCoRD shares: by their words.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

struct WordScore {
  double exact = 0;  // 1: the same words in the same order
  double f1 = 0;     // of the words that both have
};

// Against the answer that it agrees with best; against none: right is to have written nothing. Case, ASCII
// punctuation, articles and white space do not count.
WordScore best_word_score(std::string_view given, const std::vector<std::string>& right);

// Those of which anything is left when they are compared.
std::vector<std::string> answers_with_words(const std::vector<std::string>& answers);

// A question of SQuAD 2.0, some of which have no answer.
struct AnsweredQuestion {
  double score = 0;  // of what was written
  bool has_answer = false;
  bool wrote = false;   // anything at all
  float no_answer = 0;  // the probability of "unanswerable"; f32, in which SQuAD's script sorts them
};

// The mean score, if questions whose probability of having no answer is above a threshold were left without
// one, at the threshold for which it is largest.
double best_over_thresholds(std::span<const AnsweredQuestion> questions);

}  // namespace fathom
