#include "eval/answers.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "eval/harness_golden_test.h"
#include "eval/metrics.h"
#include "eval/python_text.h"

namespace fathom {
namespace {

using Texts = std::vector<std::string>;

TEST(Answers, NumbersAreReadAsTheHarnessReadsThem) {
  for (const auto& golden : harness_goldens()["answers"]["numbers"]) {
    const std::vector<Judgement> made =
        judge(AnswerRule::kNumber, golden["text"].get<std::string>(), {golden["answer"].get<std::string>()});
    SCOPED_TRACE(golden["text"].get<std::string>());
    ASSERT_EQ(made.size(), 2u);
    EXPECT_EQ(made[0].name, "exact_match");
    EXPECT_EQ(made[0].answer, golden["strict"]["answer"].get<std::string>());
    EXPECT_EQ(made[0].score, golden["strict"]["right"].get<bool>());
    EXPECT_EQ(made[1].answer, golden["flexible"]["answer"].get<std::string>());
    EXPECT_EQ(made[1].score, golden["flexible"]["right"].get<bool>());
  }
}

TEST(Answers, TextsAreComparedAsTheHarnessComparesThem) {
  for (const auto& golden : harness_goldens()["answers"]["texts"]) {
    const auto text = golden["text"].get<std::string>();
    const auto right = golden["answers"].get<Texts>();
    SCOPED_TRACE(text);
    const Judgement plain = judge(AnswerRule::kText, text, right)[0];
    EXPECT_EQ(plain.answer, golden["answer"].get<std::string>());
    EXPECT_EQ(plain.score, golden["plain"].get<bool>());
    EXPECT_EQ(judge(AnswerRule::kTextLessArticles, text, right)[0].score,
              golden["less_articles"].get<bool>());
  }
  EXPECT_TRUE(judge(AnswerRule::kNone, "text", {}).empty());
}

TEST(Answers, LettersAreReadAfterTheirMark) {
  const auto made = [](const char* text) {
    const std::vector<Judgement> both = judge(AnswerRule::kLetter, text, {"B"});
    EXPECT_EQ(both[0].score == 1, both[0].answer == "B");
    EXPECT_EQ(both[1].score == 1, both[1].answer == "B");
    return std::pair{both[0].answer, both[1].answer};
  };
  using Pair = std::pair<std::string, std::string>;
  EXPECT_EQ(made(" Fish swim.\n#### B"), Pair("B", "B"));
  EXPECT_EQ(made("#### B. then #### C"), Pair("B", "C"));
  EXPECT_EQ(made("#### Because"), Pair("[invalid]", "[invalid]"));
  EXPECT_EQ(made("####B"), Pair("[invalid]", "B"));
  EXPECT_EQ(made(" (B) a fish"), Pair("[invalid]", "B"));
  EXPECT_EQ(made("It is B. A fish swims"), Pair("[invalid]", "B"));  // an article
  EXPECT_EQ(made("B or A"), Pair("[invalid]", "A"));
  EXPECT_EQ(made("DNA, B2, ÉB, F"), Pair("[invalid]", "[invalid]"));
  EXPECT_EQ(made("#### b"), Pair("[invalid]", "[invalid]"));
  EXPECT_EQ(made(""), Pair("[invalid]", "[invalid]"));
}

TEST(Answers, EndAtTheFirstStopString) {
  for (const auto& golden : harness_goldens()["answers"]["stops"]) {
    EXPECT_EQ(before_stops(golden["text"].get<std::string>(), golden["stops"].get<Texts>()),
              golden["left"].get<std::string>());
  }
}

TEST(Answers, WordsAndSpacesAreThoseOfPython) {
  for (const auto& golden : harness_goldens()["model"]["rolling"])
    EXPECT_EQ(count_words(golden["text"].get<std::string>()), golden["words"].get<int64_t>());
  EXPECT_EQ(count_words(""), 1);
  EXPECT_EQ(count_words(" a "), 3);
  EXPECT_EQ(count_words("a\u00a0b\u3000c\x1f"
                        "d"),
            4);
  EXPECT_EQ(length_without_trailing_space("ab \n\u00a0"), 2u);
  EXPECT_EQ(length_without_trailing_space(" \t"), 0u);
  EXPECT_EQ(length_without_trailing_space("a\xff "), 2u);
}

TEST(Metrics, AreTheHarnesssOwn) {
  const auto golden = harness_goldens()["statistics"];
  const Metric mean = mean_metric("acc", golden["values"].get<std::vector<double>>());
  EXPECT_DOUBLE_EQ(mean.value, golden["mean"]);
  EXPECT_NEAR(mean.error, golden["stderr"], 1e-14);

  std::vector<double> values;
  std::vector<std::string> groups;
  for (const auto& group : golden["groups"]) {
    const std::string name = std::to_string(group.size());
    for (const double value : group) {
      values.push_back(value);
      groups.push_back(name);
    }
  }
  EXPECT_NEAR(grouped_mean_metric("acc", values, groups).error, golden["pooled_stderr"], 1e-14);
  EXPECT_NEAR(perplexity_metric(golden["logprobs"].get<std::vector<double>>()).value, golden["perplexity"],
              1e-12);
  EXPECT_NEAR(f1_score(golden["gold"].get<std::vector<int64_t>>(),
                       golden["predicted"].get<std::vector<int64_t>>(), 1),
              golden["f1"], 1e-14);
}

TEST(Metrics, ByHand) {
  const std::vector<double> values{1, 0, 0, 1};
  const Metric mean = mean_metric("acc", values);
  EXPECT_DOUBLE_EQ(mean.value, 0.5);
  EXPECT_DOUBLE_EQ(mean.error, std::sqrt(1.0 / 3) / 2);  // squares 4 · 1/4, over n − 1, over √n
  EXPECT_TRUE(std::isnan(mean_metric("acc", std::vector<double>{1}).error));
  const std::vector<double> logprobs{-1, -3};
  EXPECT_DOUBLE_EQ(perplexity_metric(logprobs).value, std::exp(2.0));
  EXPECT_DOUBLE_EQ(perplexity_metric(logprobs).error, std::exp(2.0));  // of a mean with error 1
  const std::vector<int64_t> gold{1, 1, 0, 0}, predicted{1, 0, 1, 0};
  EXPECT_DOUBLE_EQ(f1_score(gold, predicted, 1), 0.5);
  EXPECT_DOUBLE_EQ(f1_score(gold, predicted, 7), 0);
  EXPECT_EQ(index_of_largest(std::vector<double>{-2, -1, -1, -3}), 1);
  // A group of one: the error is that of all items together.
  const std::vector<std::string> groups{"a", "a", "a", "b"};
  EXPECT_DOUBLE_EQ(grouped_mean_metric("acc", values, groups).error, mean.error);
}

}  // namespace
}  // namespace fathom
