#include "infer/writer.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "infer/story_model_test.h"

namespace fathom {
namespace {

std::vector<float> only(int32_t id) {
  std::vector<float> logits(512, 0.0f);
  logits[static_cast<size_t>(id)] = 9;
  return logits;
}

AnswerOptions greedy_writer() {
  AnswerOptions options;
  options.sampler.temperature = 0;
  return options;
}

TEST(Writer, NothingEndsItBeforeMinTokens) {
  const StoryModel story;
  const std::vector<int32_t> word = story.encode("dog");
  const int32_t last = word.back();
  AnswerOptions options = greedy_writer();
  options.min_tokens = 2;
  options.end_ids = {2};
  options.stops = {story.model.tokenizer->piece(last)};
  const std::vector<int32_t> prompt{1, 403};
  Writer writer(story.model, options, prompt);
  std::vector<float> end = only(2);
  end[static_cast<size_t>(last)] = 5;
  EXPECT_EQ(writer.take(writer.draw(end)).id, last);  // the end cannot be drawn, and the stop string is text
  EXPECT_EQ(writer.take(writer.draw(end)).finish, std::nullopt);
  EXPECT_EQ(writer.generated(), 2);
  end = only(2);
  const Writer::Written& written = writer.take(writer.draw(end));
  EXPECT_EQ(written.id, 2);
  EXPECT_EQ(written.finish, FinishReason::kStop);
  EXPECT_EQ(writer.generated(), 2);  // the end is no part of it
  EXPECT_EQ(writer.history(), (std::vector<int32_t>{1, 403, last, last}));
}

TEST(Writer, AStopStringEndsItAfterMinTokens) {
  const StoryModel story;
  const int32_t last = story.encode("dog").back();
  AnswerOptions options = greedy_writer();
  options.min_tokens = 1;
  options.stops = {story.model.tokenizer->piece(last)};
  Writer writer(story.model, options, std::vector<int32_t>{1, 403});
  std::vector<float> logits = only(last);
  EXPECT_EQ(writer.take(writer.draw(logits)).text, story.model.tokenizer->piece(last));
  const Writer::Written& written = writer.take(writer.draw(logits));
  EXPECT_EQ(written.finish, FinishReason::kStop);
  EXPECT_EQ(written.text, "");
  EXPECT_EQ(writer.flush(), "");
}

TEST(Writer, ExactlyMaxTokens) {
  const StoryModel story;
  AnswerOptions options = greedy_writer();
  options.max_tokens = 2;
  Writer writer(story.model, options, std::vector<int32_t>{1});
  std::vector<float> logits = only(300);
  EXPECT_EQ(writer.take(writer.draw(logits)).finish, std::nullopt);
  EXPECT_EQ(writer.take(writer.draw(logits)).finish, FinishReason::kLength);
}

TEST(Writer, RefusesWhatMakesNoSense) {
  const StoryModel story;
  const auto make = [&](int64_t least, int64_t most) {
    AnswerOptions options = greedy_writer();
    options.min_tokens = least;
    options.max_tokens = most;
    Writer(story.model, options, std::vector<int32_t>{1});
  };
  EXPECT_NO_THROW(make(3, 3));
  EXPECT_NO_THROW(make(3, -1));
  EXPECT_THROW(make(4, 3), UsageError);
  EXPECT_THROW(make(-1, 3), UsageError);
  EXPECT_THROW(make(0, -2), UsageError);
}

}  // namespace
}  // namespace fathom
