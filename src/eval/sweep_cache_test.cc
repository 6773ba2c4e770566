#include "eval/sweep_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

SweepChunk some_chunk(double logprob) {
  SweepChunk chunk;
  chunk.items.resize(2);
  chunk.items[0].scores = {{logprob, true}, {-1e-300, false}};
  chunk.items[0].predicted = 1;
  chunk.items[0].predicted_norm = 2;
  chunk.items[0].predicted_token = 3;
  chunk.items[1].text = "an \"answer\"\n\xc3\xa4";
  chunk.items[1].judgements = {{"exact_match", "ä", 1}, {"f1", "[invalid]", 0.25}};
  chunk.books = {{1, 2, 3, 4, 5}, {6, 7, 8, 9, 10}, UINT64_MAX};
  chunk.seconds = 0.1;
  return chunk;
}

void expect_same(const SweepChunk& a, const SweepChunk& b) {
  ASSERT_EQ(a.items.size(), b.items.size());
  for (size_t i = 0; i < a.items.size(); ++i) {
    const ItemResult &x = a.items[i], &y = b.items[i];
    ASSERT_EQ(x.scores.size(), y.scores.size());
    for (size_t s = 0; s < x.scores.size(); ++s) {
      EXPECT_EQ(x.scores[s].logprob, y.scores[s].logprob);
      EXPECT_EQ(x.scores[s].greedy, y.scores[s].greedy);
    }
    EXPECT_EQ(x.predicted, y.predicted);
    EXPECT_EQ(x.predicted_norm, y.predicted_norm);
    EXPECT_EQ(x.predicted_token, y.predicted_token);
    EXPECT_EQ(x.text, y.text);
    ASSERT_EQ(x.judgements.size(), y.judgements.size());
    for (size_t j = 0; j < x.judgements.size(); ++j) {
      EXPECT_EQ(x.judgements[j].name, y.judgements[j].name);
      EXPECT_EQ(x.judgements[j].answer, y.judgements[j].answer);
      EXPECT_EQ(x.judgements[j].score, y.judgements[j].score);
    }
  }
  EXPECT_EQ(a.books.ran.policy_madds, b.books.ran.policy_madds);
  EXPECT_EQ(a.books.dense.cache_bytes, b.books.dense.cache_bytes);
  EXPECT_EQ(a.books.dense_output_madds, b.books.dense_output_madds);
  EXPECT_EQ(a.seconds, b.seconds);
}

TEST(SweepCache, GivesBackWhatItWasGiven) {
  const TemporaryFolder folder;
  const SweepSpeed speed{{{1, 2, 3, 4, 5}, {}, 3}, 1.0 / 3, 7};
  {
    SweepCache cache(folder.path());
    EXPECT_EQ(cache.chunk("a"), nullptr);
    cache.add("a", some_chunk(-0.1));
    cache.add("a", speed);
    expect_same(*cache.chunk("a"), some_chunk(-0.1));
  }
  SweepCache cache(folder.path());
  ASSERT_NE(cache.chunk("a"), nullptr);
  expect_same(*cache.chunk("a"), some_chunk(-0.1));
  ASSERT_NE(cache.speed("a"), nullptr);
  EXPECT_EQ(cache.speed("a")->tokens_per_s, 1.0 / 3);
  EXPECT_EQ(cache.speed("a")->books.ran.unit_rows, 4u);
  EXPECT_EQ(cache.speed("b"), nullptr);
}

// Wherever a crash cut the file, the lines before it hold and new ones follow them.
TEST(SweepCache, ATornLineIsCutOff) {
  const TemporaryFolder folder;
  {
    SweepCache cache(folder.path());
    cache.add("a", some_chunk(-1));
    cache.add("b", some_chunk(-2));
  }
  const std::string whole = file_text(folder.at("items.jsonl"));
  const size_t first = whole.find('\n') + 1;
  for (const size_t size :
       {size_t{0}, size_t{1}, first - 1, first, first + 1, first + 100, whole.size() - 1}) {
    folder.write("items.jsonl", whole.substr(0, size));
    {
      SweepCache cache(folder.path());
      EXPECT_EQ(cache.chunk("a") != nullptr, size >= first) << size;
      EXPECT_EQ(cache.chunk("b"), nullptr) << size;
      cache.add("c", some_chunk(-3));
    }
    SweepCache again(folder.path());
    ASSERT_NE(again.chunk("c"), nullptr) << size;
    expect_same(*again.chunk("c"), some_chunk(-3));
  }
}

TEST(SweepCache, ADamagedLineIsAsIfItWereNotThere) {
  const TemporaryFolder folder;
  {
    SweepCache cache(folder.path());
    for (const char* key : {"a", "b", "c"}) cache.add(key, some_chunk(-1));
  }
  std::string text = file_text(folder.at("items.jsonl"));
  const size_t second = text.find('\n') + 1;
  text[text.find("0.1", second)] = '7';  // still JSON, of another number
  folder.write("items.jsonl", text);
  testing::internal::CaptureStderr();
  SweepCache cache(folder.path());
  EXPECT_NE(testing::internal::GetCapturedStderr().find("1 lines are damaged"), std::string::npos);
  EXPECT_NE(cache.chunk("a"), nullptr);
  EXPECT_EQ(cache.chunk("b"), nullptr);
  EXPECT_NE(cache.chunk("c"), nullptr);
}

TEST(SweepCache, RefusesWhatBelongsToSomethingElse) {
  const TemporaryFolder folder;
  {
    SweepCache cache(folder.path());
    cache.claim("model", "one");
    cache.claim("model", "one");
    EXPECT_NE(error_of([&] { SweepCache(folder.path()); }).find("another sweep is writing"),
              std::string::npos);
  }
  SweepCache cache(folder.path());
  cache.claim("model", "one");
  cache.claim("task", "new");
  const std::string error = error_of([&] { cache.claim("model", "two"); });
  EXPECT_NE(error.find("made with another model (one; now two): use a new folder"), std::string::npos)
      << error;
  EXPECT_NE(error_of([] { SweepCache("/dev/null"); }).find("cannot write"), std::string::npos);
}

// A file that may not grow further, as on a full disk: one line says so, what was there stays whole.
TEST(SweepCache, AFullDiskLosesNothing) {
  const TemporaryFolder folder;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  {
    SweepCache cache(folder.path());
    cache.add("a", some_chunk(-1));
    const auto size = file_text(folder.at("items.jsonl")).size();
    rlimit limit = before;
    limit.rlim_cur = size + 40;
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string error = error_of([&] { cache.add("b", some_chunk(-2)); });
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_NE(error.find("cannot write " + folder.at("items.jsonl")), std::string::npos) << error;
    EXPECT_NE(error.find("what was done before is kept"), std::string::npos) << error;
    EXPECT_EQ(file_text(folder.at("items.jsonl")).size(), size);
    EXPECT_EQ(cache.chunk("b"), nullptr);
    cache.add("c", some_chunk(-3));
  }
  std::signal(SIGXFSZ, handler);
  SweepCache cache(folder.path());
  EXPECT_NE(cache.chunk("a"), nullptr);
  EXPECT_NE(cache.chunk("c"), nullptr);
}

}  // namespace
}  // namespace fathom
