// fathom generate --batch: answers as lines of a file, through kills, broken lines and full disks.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/mapped_file.h"
#include "program.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::string prompts(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "{\"prompt\": \"Once there were " + std::to_string(i) + "\"}\n";
  return text;
}

struct BatchFiles {
  ScratchFolder folder;
  std::string in = folder / "in.jsonl", out = folder / "out.jsonl";

  explicit BatchFiles(const std::string& lines) { folder.write("in.jsonl", lines); }
  Words command(const Words& more = {}, const std::string& tokens = "20") const {
    return Words{"generate", "-m", kStories, "--batch", in, "-o", out, "-n", tokens, "-t", "1"} + more;
  }
};

TEST(CliBatch, LinesAreWhatGenerateGives) {
  const BatchFiles files(prompts(5));
  const ProgramResult r = run_fathom(files.command({"--json", "--ids", "--parallel", "3", "-s", "9"}));
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const Json summary = r.json();
  EXPECT_EQ(summary["requests"], 5);
  EXPECT_EQ(summary["generated_tokens"], 100);
  for (const char* field : {"tokens_per_s", "skip_ratio", "block_flops", "net_flops", "net_bytes"})
    EXPECT_TRUE(summary.contains(field)) << field;
  const std::vector<Json> lines = lines_of(files.out);
  ASSERT_EQ(lines.size(), 5u);
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json alone = run_fathom({"generate", "-m", kStories, "-n", "20", "--json", "-t", "1", "-p",
                                   "Once there were " + std::to_string(i), "-s", lines[i]["seed"].dump()})
                           .json();
    EXPECT_EQ(lines[i]["index"], i);
    for (const char* field : {"text", "ids", "finish_reason", "generated_tokens", "prompt_tokens"})
      EXPECT_EQ(lines[i][field], alone[field]) << field;
  }
}

TEST(CliBatch, SpeculationGivesTheSameGreedyLines) {
  const BatchFiles files(prompts(4));
  ASSERT_EQ(run_fathom(files.command({"--temp", "0"})).exit_code, 0);
  const std::vector<Json> plain = lines_of(files.out);
  const ProgramResult r = run_fathom(files.command(
      {"--temp", "0", "--speculate", "3", "--draft", "exit", "--draft-budget", "0.8", "--force", "--json"}));
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_GT(r.json()["drafted"], 0);
  EXPECT_EQ(lines_of(files.out), plain);
}

TEST(CliBatch, UnconditionalTexts) {
  const ScratchFolder folder;
  const Words base{"generate", "-m", kStories, "--unconditional", "6", "-n", "12", "--temp", "1", "-t", "1"};
  ASSERT_EQ(run_fathom(base + Words{"-o", folder / "a.jsonl"}).exit_code, 0);
  ASSERT_EQ(run_fathom(base + Words{"-o", folder / "b.jsonl", "-p", "Lily", "--parallel", "2"}).exit_code, 0);
  const std::vector<Json> a = lines_of(folder / "a.jsonl"), b = lines_of(folder / "b.jsonl");
  ASSERT_EQ(a.size(), 6u);
  ASSERT_EQ(b.size(), 6u);
  std::set<std::string> texts;
  for (const Json& line : a) texts.insert(line["text"].get<std::string>());
  EXPECT_GT(texts.size(), 2u);
  EXPECT_EQ(a[1]["prompt_tokens"], 1);
  EXPECT_GT(b[1]["prompt_tokens"], 1);
}

// SIGKILL in the middle: the same command goes on, and the file is the one that an undisturbed run writes.
TEST(CliBatch, AKilledRunGoesOn) {
  const BatchFiles whole(prompts(24)), killed(prompts(24));
  ASSERT_EQ(run_fathom(whole.command()).exit_code, 0);
  std::thread killer([&] {  // "timeout" ends the program as kill -9 does
    const std::string command = "timeout -s KILL 0.35 " FATHOM_BINARY " generate -m " + kStories +
                                " --batch " + killed.in + " -o " + killed.out +
                                " -n 20 -t 1 --parallel 2 > /dev/null 2>&1";
    for (int i = 0; i < 3; ++i) {
      if (std::system(command.c_str()) == 0) break;
    }
  });
  killer.join();
  std::ofstream(killed.out, std::ios::app) << "{\"index\": 25, \"text";
  const ProgramResult r = run_fathom(killed.command({"--json"}));
  if (r.exit_code != 0) {  // killed before the first line: the torn one is all there is
    ASSERT_NE(r.err.find("no batch wrote it"), std::string::npos) << r.err;
    GTEST_SKIP() << "this machine was too slow to write a line";
  }
  EXPECT_EQ(lines_of(killed.out), lines_of(whole.out));
  // Once more: nothing is left to do.
  const Json again = run_fathom(killed.command({"--json"})).json();
  EXPECT_EQ(again["kept"], 24);
  EXPECT_EQ(again["generated_tokens"], 0);
}

TEST(CliBatch, CtrlCEndsCleanlyAndGoesOn) {
  const BatchFiles whole(prompts(120)), stopped(prompts(120));
  ASSERT_EQ(run_fathom(whole.command({}, "40")).exit_code, 0);
  ProgramOptions options;
  options.interrupt_when = [&](const std::string&) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(stopped.out, error);
    return !error && bytes > 0;
  };
  EXPECT_EQ(run_fathom(stopped.command({"--parallel", "2"}, "40"), options).exit_code, 130);
  EXPECT_LT(lines_of(stopped.out).size(), 120u);  // whole lines alone
  ASSERT_EQ(run_fathom(stopped.command({}, "40")).exit_code, 0);
  EXPECT_EQ(lines_of(stopped.out), lines_of(whole.out));
}

TEST(CliBatch, ThePromptsAreNeverTheOutput) {
  const BatchFiles files(prompts(2));
  const std::string before = read_text_file(files.in);
  for (const std::string& out :
       {files.in, files.in + "/../" + std::filesystem::path(files.in).filename().string()}) {
    const ProgramResult r =
        run_fathom({"generate", "-m", kStories, "--batch", files.in, "-o", out, "--force"});
    EXPECT_NE(r.exit_code, 0);
  }
  EXPECT_EQ(read_text_file(files.in), before);
}

TEST(CliBatch, ABrokenLineIsNamed) {
  const BatchFiles files("{\"prompt\": \"Once\"}\n{\"prompt\n{\"prompt\": \"Tom\"}\n");
  for (int time = 0; time < 2; ++time) {  // the second time nothing is left to do, and it is said again
    const ProgramResult r = run_fathom(files.command({"--json"}));
    EXPECT_EQ(r.exit_code, 1);
    EXPECT_EQ(r.json()["failed"], 1);
    EXPECT_EQ(r.err.find("warning: line 2: this is no JSON") != std::string::npos, time == 0) << r.err;
    EXPECT_NE(r.err.find("fathom: 1 of 3 requests could not be answered"), std::string::npos) << r.err;
  }
  const std::vector<Json> lines = lines_of(files.out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_TRUE(lines[1].contains("error"));
  EXPECT_EQ(lines[2]["generated_tokens"], 20);
}

TEST(CliBatch, AFullDiskEndsItAndItGoesOnAfterwards) {
  const BatchFiles files(prompts(30)), whole(prompts(30));
  std::string command = "ulimit -f 3; " FATHOM_BINARY;
  for (const std::string& word : files.command()) command += " " + word;
  const std::string err = files.folder / "err.txt";
  const int status = std::system(("bash -c '" + command + " 2> " + err + "'").c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  const std::string said = read_text_file(err);
  EXPECT_NE(said.find("cannot write "), std::string::npos) << said;
  EXPECT_NE(said.find("the same command goes on from there"), std::string::npos) << said;
  const size_t before = lines_of(files.out).size();
  EXPECT_GT(before, 0u);
  EXPECT_LT(before, 30u);
  ASSERT_EQ(run_fathom(files.command()).exit_code, 0);
  ASSERT_EQ(run_fathom(whole.command()).exit_code, 0);
  EXPECT_EQ(lines_of(files.out), lines_of(whole.out));
}

TEST(CliBatch, OptionsThatDoNotFit) {
  const BatchFiles files(prompts(2));
  const auto refused = [](const Words& words, int code, const std::string& part) {
    const ProgramResult r = run_fathom(words);
    EXPECT_EQ(r.exit_code, code) << r.err;
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  };
  refused({"generate", "-m", kStories, "--batch", files.in}, 2, "give -o");
  refused({"generate", "-m", kStories, "-p", "x", "-o", files.out}, 2, "--output goes with --batch");
  refused({"generate", "-m", kStories, "-p", "x", "--parallel", "3"}, 2, "--parallel goes with --batch");
  refused(files.command({"-p", "x"}), 2, "not from both");
  refused(files.command({"--show-depth"}), 2, "--show-depth goes with one prompt");
  refused(files.command({"--parallel", "0"}), 2, "--parallel");
  refused({"generate", "-m", kStories, "--batch", files.folder / "none", "-o", files.out}, 1, "none");
  ASSERT_EQ(run_fathom(files.command()).exit_code, 0);
  refused(files.command({"-s", "3"}), 1, "made with another seed (0; now 3)");
  refused(files.command({"--ids"}), 1, "made with another ids");
  EXPECT_EQ(run_fathom(files.command({"--parallel", "1"})).exit_code, 0);
  EXPECT_EQ(run_fathom(files.command({"-s", "3", "--force"})).exit_code, 0);
  files.folder.write("in.jsonl", "\n \n");
  refused({"generate", "-m", kStories, "--batch", files.in, "-o", files.folder / "new.jsonl"}, 1, "no lines");
}

}  // namespace
}  // namespace fathom
