#include "infer/batch_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "infer/generate.h"
#include "infer/story_model_test.h"

namespace fathom {
namespace {

using Json = nlohmann::json;
using Texts = std::vector<std::string>;

const std::string kPrompts =
    "{\"prompt\": \"Once upon a time\"}\n"
    "{\"prompt\": \"The dog\", \"id\": \"b\", \"max_tokens\": 3}\n"
    "\n"
    "{\"prompt\": \"A cat\", \"temperature\": 0, \"seed\": 0}\n"
    "{\"prompt\": \"Lily and Tom went to the park\", \"seed\": 7, \"id\": 12}\n"
    "{\"prompt\": \"He\", \"max_tokens\": 1}\n";

class Batches : public testing::Test {
 protected:
  Batches() {
    std::filesystem::create_directories(folder_);
    defaults_.sampler.seed = 5;
    defaults_.max_tokens = 12;
  }
  ~Batches() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + name) << text;
    return folder_ + name;
  }
  BatchSource source(const std::string& lines, int64_t unconditional = 0) const {
    return BatchSource(
        story_.model,
        {.file = write("in.jsonl", lines), .unconditional = unconditional, .defaults = defaults_});
  }
  // The output after a run of at most `lines` more lines over a cache of `sequences`.
  Texts run(const BatchSource& source, int64_t sequences, int64_t lines = 1000,
            const BatchIdentity& identity = {{"input", "x"}}, bool restart = false) {
    StoryModel story(64, sequences);
    BatchOutput output(path_, identity, restart);
    Batcher batcher(story.feeder, {});
    std::atomic<bool> cancel = false;
    BatchRunOptions options;
    options.ids = true;
    options.cancel = &cancel;
    options.on_done = [&](int64_t done) { cancel = (lines -= done) <= 0; };
    options.on_failure = [&](const std::string& why) { failures_.push_back(why); };
    run_batch(batcher, source, output, options);
    failed_ = output.failed();
    return written();
  }
  Texts written() const {
    Texts lines;
    std::ifstream in(path_);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

  const std::string folder_ = testing::TempDir() + "fathom-batch-" + std::to_string(getpid()) + "/";
  const std::string path_ = folder_ + "out.jsonl";
  StoryModel story_{64};
  Request defaults_;
  Texts failures_;
  int64_t failed_ = 0;
};

TEST_F(Batches, LinesAreWhatSinglePromptsGive) {
  const BatchSource lines = source(kPrompts, 2);
  const Texts out = run(lines, 3);
  ASSERT_EQ(out.size(), 7u);
  for (size_t i = 0; i < out.size(); ++i) {
    const Json line = Json::parse(out[i]);
    GenerateOptions options;
    static_cast<Request&>(options) = lines.at(static_cast<int64_t>(i)).request;
    const std::vector<int32_t> prompt = options.prompt;
    Generator generator(story_.feeder);
    const GenerateResult alone = generator.run(prompt, options);
    EXPECT_EQ(line["index"], i);
    EXPECT_EQ(line["text"], alone.text) << i;
    EXPECT_EQ(line["ids"], alone.ids) << i;
    EXPECT_EQ(line["generated_tokens"], alone.ids.size());
    EXPECT_EQ(line["prompt_tokens"], prompt.size());
    EXPECT_EQ(line["finish_reason"], name_of(alone.finish));
    EXPECT_EQ(line["depth"], static_cast<double>(story_.model.config.layers));
  }
  EXPECT_EQ(Json::parse(out[1])["id"], "b");
  EXPECT_EQ(Json::parse(out[3])["id"], 12);
  EXPECT_FALSE(Json::parse(out[0]).contains("id"));
}

TEST_F(Batches, SeedsAreTheRunsOwnOrTheLines) {
  const BatchSource lines = source(kPrompts, 3);
  const auto seed = [&](int64_t i) { return lines.at(i).request.sampler.seed; };
  EXPECT_EQ(seed(0), 5u);
  EXPECT_EQ(seed(1), batch_seed(5, 1));
  EXPECT_EQ(seed(2), 0u);
  EXPECT_EQ(seed(3), 7u);
  EXPECT_NE(seed(5), seed(6));
  EXPECT_LT(seed(5), uint64_t{1} << 53);
  const Texts out = run(lines, 4);
  EXPECT_NE(Json::parse(out[5])["text"], Json::parse(out[6])["text"]);
  EXPECT_EQ(Json::parse(out[6])["prompt_tokens"], 1);  // BOS
}

TEST_F(Batches, TheSizeOfTheBatchChangesNothing) {
  const BatchSource lines = source(kPrompts, 6);
  const Texts wanted = run(lines, 1);
  ASSERT_EQ(wanted.size(), 11u);
  for (const int64_t sequences : {2, 5, 16}) {
    EXPECT_EQ(run(lines, sequences, 1000, {{"input", "x"}}, true), wanted) << sequences;
  }
}

TEST_F(Batches, AStoppedRunGoesOn) {
  const BatchSource lines = source(kPrompts, 6);
  const Texts wanted = run(lines, 4);
  std::filesystem::remove(path_);
  for (size_t before = 0; before < wanted.size();) {
    const Texts now = run(lines, 4, 1);
    ASSERT_GT(now.size(), before);
    before = now.size();
    std::ofstream(path_, std::ios::app) << "{\"index\": 99, \"te";  // as a kill leaves it
  }
  EXPECT_EQ(run(lines, 4), wanted);
}

TEST_F(Batches, BrokenLinesAreNamedAndTheOthersDone) {
  const std::vector<std::pair<std::string, std::string>> broken{
      {"{\"prompt\": \"x\"", "line 2: this is no JSON"},
      {"[1]", "line 3: expected an object, got array"},
      {"{\"prompts\": \"x\"}", "line 4: unknown key 'prompts', did you mean 'prompt'?"},
      {"{\"id\": 3}", "line 5: expected either 'prompt' or 'messages', got neither"},
      {"{\"prompt\": 3}", "line 6: 'prompt' must be a text"},
      {"{\"prompt\": \"x\", \"max_tokens\": 1.5}", "line 7: 'max_tokens' must be a whole number"},
      {"{\"prompt\": \"x\", \"temperature\": -1}", "line 8: temperature must be 0 or more"},
      {"{\"prompt\": \"x\", \"budget\": 0.5}", "line 9: a budget of 0.5 needs an adapter"},
      {"{\"messages\": []}", "line 10: 'messages' must be a list"},
      {"{\"messages\": [{\"role\": \"judge\", \"content\": \"x\"}]}", "line 11: "},
      {"{\"prompt\": \"x\", \"seed\": -1}", "line 12: 'seed' must be a whole number of at least 0"},
      {"{\"prompt\": \"" + std::string(500, 'x') + "\"}", "line 13: the prompt has "},
      {std::string(100, '[') + std::string(100, ']'), "line 14: "}};
  std::string text = "{\"prompt\": \"Once\"}\n";
  for (const auto& [line, why] : broken) text += line + "\n";
  text += "{\"prompt\": \"Once\", \"seed\": 5}\n";
  const Texts out = run(source(text), 3);
  ASSERT_EQ(out.size(), broken.size() + 2);
  EXPECT_EQ(failed_, std::ssize(broken));
  ASSERT_EQ(failures_.size(), broken.size());
  for (size_t i = 0; i < broken.size(); ++i) {
    EXPECT_TRUE(failures_[i].starts_with(broken[i].second)) << failures_[i];
    EXPECT_EQ(Json::parse(out[i + 1])["error"], failures_[i]);
  }
  EXPECT_EQ(Json::parse(out.front())["text"], Json::parse(out.back())["text"]);
}

TEST_F(Batches, AnotherRunsFileIsRefused) {
  const BatchSource lines = source(kPrompts);
  const auto refusal = [&](const BatchIdentity& identity) -> std::string {
    try {
      run(lines, 2, 1000, identity);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  run(lines, 2, 1, {{"input", "x"}, {"temperature", "1"}});
  EXPECT_NE(refusal({{"input", "x"}, {"temperature", "0.5"}}).find("another temperature (1; now 0.5)"),
            std::string::npos);
  std::filesystem::remove(path_ + ".run.json");
  EXPECT_NE(refusal({{"input", "x"}}).find("no batch wrote it"), std::string::npos);
  write("out.jsonl.run.json", "{\"input\": \"x\"}");
  write("out.jsonl", "{\"index\": 1}\n");
  EXPECT_NE(refusal({{"input", "x"}}).find("line 1 is not the answer"), std::string::npos);
  std::filesystem::remove(path_);  // a new file of the same name begins a new run
  EXPECT_EQ(refusal({{"input", "y"}}), "");
}

TEST_F(Batches, TheLongestRequestIsKnownBefore) {
  EXPECT_EQ(plan_batch(source("{\"prompt\": \"Once\", \"max_tokens\": 40}\n{broken\n"), 0).longest,
            std::ssize(story_.encode("Once")) + 40);
  for (const char* tokens : {"-1", "9223372036854775807"}) {
    const std::string line = "{\"prompt\": \"Once\", \"max_tokens\": " + std::string(tokens) + "}\n";
    EXPECT_EQ(plan_batch(source(line), 0).longest, -1) << tokens;
  }
  EXPECT_FALSE(plan_batch(source("{\"prompt\": \"Once\"}\n"), 0).own_budgets);
  EXPECT_TRUE(plan_batch(source("{\"prompt\": \"Once\", \"budget\": 0.6}\n"), 0).own_budgets);
}

}  // namespace
}  // namespace fathom
