// fathom eval, as a person's shell runs it.
#include <gtest/gtest.h>

#include "program.h"

namespace fathom {
namespace {

const char* const kItems =
    "{\"id\": \"a\", \"ctx\": \"Once upon a time, there was a\", \"choices\": [\"little girl.\", \"xq zj\"], "
    "\"gold\": 0}\n"
    "{\"id\": \"b\", \"ctx\": \"She loved to\", \"choices\": [\"vkq\", \"play outside.\"], \"gold\": 1}\n"
    "{\"id\": \"c\", \"ctx\": \"Tim was\", \"choices\": [\"happy\", \"qqq\"], \"gold\": 1}\n";

TEST(CliEval, ScoresAUsersFile) {
  const TemporaryFolder folder;
  const std::string file = folder.write("mine.jsonl", kItems);
  const ProgramResult r =
      run_fathom({"eval", "-m", "builtin", "--tasks", file, "--samples", folder / "samples.jsonl", "--json"});
  const nlohmann::json out = r.json();
  const nlohmann::json& task = out["tasks"][file];
  EXPECT_EQ(task["n"], 3);
  EXPECT_NEAR(task["acc"], 2.0 / 3, 1e-12);
  EXPECT_NEAR(task["stderr"], 1.0 / 3, 1e-12);
  EXPECT_TRUE(task["acc_norm"].is_number());
  EXPECT_EQ(task["truncated"], 0);
  EXPECT_TRUE(out["seconds"].is_number());
  EXPECT_EQ(out["skip_ratio"], 0);
  EXPECT_EQ(out["block_flops"], 1);
  EXPECT_EQ(out["net_flops"], 1);
  std::ifstream samples(folder / "samples.jsonl");
  std::string line;
  int lines = 0;
  for (; std::getline(samples, line); ++lines) {
    const nlohmann::json sample = nlohmann::json::parse(line);
    EXPECT_EQ(sample["id"], std::string(1, static_cast<char>('a' + lines)));
    EXPECT_EQ(sample["predicted"], lines == 1 ? 1 : 0);
    EXPECT_EQ(sample["logprobs"].size(), 2u);
  }
  EXPECT_EQ(lines, 3);

  const ProgramResult table =
      run_fathom({"eval", "-m", "builtin", "--tasks", file, "--limit", "2", "-c", "12"});
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_NE(table.out.find("acc "), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("1.0000"), std::string::npos) << table.out;
  EXPECT_NE(table.err.find("cut on the left"), std::string::npos) << table.err;
}

TEST(CliEval, PerplexityOfAText) {
  const TemporaryFolder folder;
  const std::string text = folder.write("t.txt", "Once upon a time, there was a little girl.\n");
  const nlohmann::json task =
      run_fathom({"eval", "-m", "builtin", "--tasks", text, "--json"}).json()["tasks"][text];
  EXPECT_TRUE(task["acc"].is_null());
  EXPECT_GT(task["token_perplexity"], 1.0);
  EXPECT_GT(task["word_perplexity"], task["token_perplexity"]);
  EXPECT_LT(task["byte_perplexity"], task["token_perplexity"]);
}

TEST(CliEval, RefusesInOneLine) {
  const TemporaryFolder folder;
  const std::string good = folder.write("good.jsonl", kItems);
  const auto refused = [](std::vector<std::string> more, int code, const std::string& part) {
    std::vector<std::string> words{"eval", "-m", "builtin"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult r = run_fathom(words);
    SCOPED_TRACE(r.err);
    EXPECT_EQ(r.exit_code, code);
    EXPECT_EQ(r.out, "");
    EXPECT_TRUE(r.err.starts_with("fathom: "));
    EXPECT_EQ(r.err.find('\n'), r.err.size() - 1);
    EXPECT_NE(r.err.find(part), std::string::npos) << part;
  };
  refused({}, 2, "--tasks is missing");
  refused({"--tasks", "arc_challenge"}, 2, "--data-dir");
  refused({"--tasks", "helaswag", "--data-dir", "."}, 2, "did you mean 'hellaswag'?");
  refused({"--tasks", good + ",,"}, 2, "with commas between them");
  refused({"--tasks", good + "," + good}, 2, "twice");
  refused({"--tasks", good, "--limit", "-1"}, 2, "--limit");
  refused({"--tasks", good, "--shots", "9"}, 1, "9 examples were asked for, there are 2");
  refused({"--tasks", folder / "none.jsonl"}, 1, "none.jsonl");
  refused({"--tasks", good, "--samples", folder / "no/where.jsonl"}, 1, "no/where.jsonl");
  refused({"--tasks", good, "-c", "3"}, 1, "item a: ");
  refused({"--tasks", folder.write("bad.jsonl", std::string(kItems) + "{\"ctx\":")}, 1, "bad.jsonl:4: ");
  refused({"--tasks", good, "--budget", "0.5"}, 2, "budget");
}

}  // namespace
}  // namespace fathom
