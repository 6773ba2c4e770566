#include "eval/encode.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "eval/harness_golden_test.h"
#include "eval/plan.h"
#include "infer/slots.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

using Ids = std::vector<int32_t>;

std::shared_ptr<const Tokenizer> tiny_tokenizer() {
  return load_tokenizer(FATHOM_TEST_DATA "/models/smollm2");
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(Encode, PairsAreTheHarnesss) {
  const auto tokenizer = tiny_tokenizer();
  const RequestEncoder encoder(*tokenizer, 64);
  for (const auto& golden : harness_goldens()["model"]["pairs"]) {
    if (!golden.contains("context_ids")) continue;
    const TokenRequest made =
        encoder.pair(golden["context"].get<std::string>(), golden["continuation"].get<std::string>());
    Ids all = joined(golden["context_ids"], golden["continuation_ids"]);
    EXPECT_EQ(made.scored, golden["continuation_ids"].size());
    EXPECT_EQ(made.cut, std::max<int64_t>(0, static_cast<int64_t>(all.size()) - 65));
    all.erase(all.begin(), all.begin() + made.cut);
    EXPECT_EQ(made.tokens, all) << golden["context"];
  }
}

TEST(Encode, AnEmptyContextIsThePrefixToken) {
  const auto tokenizer = tiny_tokenizer();  // no BOS: its EOS, 63
  const RequestEncoder encoder(*tokenizer, 64);
  const Ids the_cat{62, 58, 34, 32, 51};
  for (const char* context : {"", " "}) {  // white space moves to the continuation, which leaves nothing
    const TokenRequest made = encoder.pair(context, *context ? "the cat" : " the cat");
    EXPECT_EQ(made.tokens, joined({63}, the_cat));
    EXPECT_EQ(made.scored, 5);
  }
  const TokenRequest own = encoder.pair("", "<|endoftext|> the cat");
  EXPECT_EQ(own.tokens, joined({63}, the_cat));
  EXPECT_EQ(own.scored, 5);
}

TEST(Encode, ATokenizersOwnBosIsAddedOnce) {
  const auto tokenizer = load_tokenizer(FATHOM_TEST_DATA "/stories260k/tokenizer.bin");
  const RequestEncoder encoder(*tokenizer, 64);
  const TokenRequest made = encoder.pair("Once upon", " a time");
  EXPECT_EQ(made.tokens, tokenizer->encode("Once upon a time"));
  EXPECT_EQ(made.tokens.front(), 1);
  const TokenRequest empty = encoder.pair("", "Once");
  EXPECT_EQ(empty.tokens, tokenizer->encode("Once"));
  EXPECT_EQ(empty.scored, static_cast<int64_t>(empty.tokens.size()) - 1);
}

TEST(Encode, RefusesWhatCannotBeScored) {
  const auto tokenizer = tiny_tokenizer();
  const RequestEncoder encoder(*tokenizer, 8);
  EXPECT_THROW(encoder.pair("a", "bcdefghij"), UserError);
  EXPECT_NO_THROW(encoder.pair("a", "bcdefghi"));
  EXPECT_THROW(encoder.pair("th", "e"), UserError);  // "the" is one token, and so is "th"
  EXPECT_THROW(encoder.prompt("a", 8), UserError);
  EXPECT_EQ(encoder.prompt("abc", 6).tokens, (Ids{33, 34}));
  EXPECT_EQ(encoder.prompt("abc", 6).cut, 1);
}

TEST(Encode, RollingWindowsScoreEachTokenOnce) {
  const auto tokenizer = tiny_tokenizer();
  for (const int64_t context : {1, 2, 5, 7, 13, 14, 50}) {
    const RequestEncoder encoder(*tokenizer, context);
    const Ids all = joined({63}, tokenizer->encode("abcdefghijklm"));
    Ids seen;
    for (const TokenRequest& window : encoder.rolling("abcdefghijklm")) {
      ASSERT_GT(window.scored, 0);
      ASSERT_LE(window.tokens.size(), static_cast<size_t>(context) + 1);
      // As much context as there is room for, and in its place in the text.
      const size_t end = seen.size() + static_cast<size_t>(window.scored) + 1;
      const size_t begin = std::max<int64_t>(0, static_cast<int64_t>(end) - (context + 1));
      EXPECT_EQ(window.tokens,
                Ids(all.begin() + static_cast<ptrdiff_t>(begin), all.begin() + static_cast<ptrdiff_t>(end)));
      seen.insert(seen.end(), window.tokens.end() - window.scored, window.tokens.end());
    }
    EXPECT_EQ(seen, Ids(all.begin() + 1, all.end())) << context;
  }
}

// Walks the paths as a sequence does. -> log of (request, row, token) asked for, and how often a row was fed
struct Walked {
  std::map<std::pair<size_t, int64_t>, int32_t> asked;
  int64_t rows = 0;
};

Walked walk(const std::vector<Path>& paths) {
  Walked walked;
  Ids held;
  for (const Path& path : paths) {
    const int64_t at = std::min(common_prefix(held, path.tokens), path.targets.front().row);
    walked.rows += static_cast<int64_t>(path.tokens.size()) - at;
    held = path.tokens;
    for (const Target& target : path.targets) {
      EXPECT_GE(target.row, at);
      EXPECT_LT(target.row, static_cast<int64_t>(path.tokens.size()));
      const bool fresh = walked.asked.emplace(std::pair{target.request, target.row}, target.token).second;
      EXPECT_TRUE(fresh);
    }
  }
  return walked;
}

TEST(Plan, FeedsWhatRequestsShareOnce) {
  const std::vector<TokenRequest> requests{
      {{1, 2, 3, 7, 8}, 2, 0},                                                    // context 1 2 3
      {{1, 2, 3, 9}, 1, 0},    {{1, 2, 3, 7, 5, 6}, 3, 0}, {{1, 2, 4, 7}, 1, 0},  // another context
      {{1, 2, 3, 7, 8}, 2, 0},
  };
  const Walked walked = walk(plan_paths(requests));
  EXPECT_EQ(walked.rows, 3 + 1 + 1 + 1);  // 1 2 3, 7, 5, 4
  size_t scored = 0;
  for (size_t r = 0; r < requests.size(); ++r) {
    const auto& tokens = requests[r].tokens;
    for (int64_t i = 0; i < requests[r].scored; ++i, ++scored) {
      const auto row = static_cast<int64_t>(tokens.size()) - 1 - requests[r].scored + i;
      EXPECT_EQ(walked.asked.at({r, row}), tokens[static_cast<size_t>(row) + 1]);
    }
  }
  EXPECT_EQ(walked.asked.size(), scored);
  EXPECT_EQ(plan_paths(requests, true).size(), requests.size());
}

TEST(Plan, OneTokenChoicesAreOnePath) {
  const std::vector<TokenRequest> requests{{{1, 2, 3}, 1, 0}, {{1, 2, 4}, 1, 0}, {{1, 2, 5}, 1, 0}};
  const std::vector<Path> paths = plan_paths(requests);
  ASSERT_EQ(paths.size(), 1u);
  EXPECT_EQ(paths[0].targets.size(), 3u);
}

}  // namespace
}  // namespace fathom
