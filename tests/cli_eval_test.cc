// fathom eval, as a person's shell runs it.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <map>
#include <set>

#include "program.h"

namespace fathom {
namespace {

const char* const kItems =
    "{\"id\": \"a\", \"ctx\": \"Once upon a time, there was a\", \"choices\": [\"little girl.\", \"xq zj\"], "
    "\"gold\": 0}\n"
    "{\"id\": \"b\", \"ctx\": \"She loved to\", \"choices\": [\"vkq\", \"play outside.\"], \"gold\": 1}\n"
    "{\"id\": \"c\", \"ctx\": \"Tim was\", \"choices\": [\"happy\", \"qqq\"], \"gold\": 1}\n";

TEST(CliEval, HelpNamesEveryTask) {
  for (const char* verb : {"eval", "sweep"}) {
    const std::string help = run_fathom({verb, "-h"}).out;
    for (const char* name : {"docs/evaluation.md", "anli_r1, ", "gsm8k_zero, ", "mmlu_gen, ", "winogrande"})
      EXPECT_NE(help.find(name), std::string::npos) << verb << " " << name;
  }
}

TEST(CliEval, ScoresAUsersFile) {
  const ScratchFolder folder;
  const std::string file = folder.write("mine.jsonl", kItems);
  const ProgramResult r =
      run_fathom({"eval", "-m", kStories, "--tasks", file, "--samples", folder / "samples.jsonl", "--json"});
  const nlohmann::json out = r.json();
  const nlohmann::json& task = out["tasks"][file];
  EXPECT_EQ(task["n"], 3);
  EXPECT_NEAR(task["acc"], 2.0 / 3, 1e-12);
  EXPECT_NEAR(task["stderr"], 1.0 / 3, 1e-12);
  EXPECT_TRUE(task["acc_norm"].is_number());
  EXPECT_TRUE(task["acc_token"].is_number());
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
    EXPECT_TRUE(sample["predicted_token"].is_number());
    EXPECT_EQ(sample["logprobs"].size(), 2u);
  }
  EXPECT_EQ(lines, 3);

  const ProgramResult table =
      run_fathom({"eval", "-m", kStories, "--tasks", file, "--limit", "2", "-c", "12"});
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_NE(table.out.find("acc "), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("1.0000"), std::string::npos) << table.out;
  EXPECT_NE(table.err.find("1 of 2 items are longer than the context of 12 tokens and were cut on the left"),
            std::string::npos)
      << table.err;
  const nlohmann::json cut =
      run_fathom({"eval", "-m", kStories, "--tasks", file, "--limit", "2", "-c", "12", "--json"}).json();
  EXPECT_EQ(cut["truncated"], 1);
  EXPECT_EQ(cut["tasks"][file]["truncated"], 1);
}

// Two lines of each benchmark's form, in the file that it is read from.
const std::map<std::string, std::pair<std::string, std::string>>& every_benchmark() {
  const std::string
      choices =
          R"({"id": "0", "ctx": "Question: Who barked?\nAnswer:", "choices": ["a dog", "a cat"], "gold": 0}
{"id": "1", "ctx": "Question: What is red?\nAnswer:", "choices": ["the ball", "rain"], "gold": 0})",
      questions =
          R"({"question": "Tom has 2 balls and gets 3. How many has he", "answer": "2+3=<<2+3=5>>5\n#### 5"}
{"question": "Lily has 4 cats and 1 runs away. How many are left", "answer": "4-1=<<4-1=3>>3\n#### 3"})",
      subjects =
          R"({"id": "law/0", "subject": "law", "ctx": "One and one?", "choices": ["1", "2", "3", "4"], "gold": 1})",
      nli = R"({"premise": "Tom is sad.", "hypothesis": "Tom is.", "label": 0})";
  static const std::map<std::string, std::pair<std::string, std::string>> all{
      {"anli_r1", {"anli/test_r1", nli}},
      {"anli_r2", {"anli/test_r2", nli}},
      {"anli_r3", {"anli/test_r3", nli}},
      {"arc_challenge", {"test", choices}},
      {"arc_easy",
       {"test",
        R"({"question": "Who barked?", "choices": {"text": ["a dog", "a cat"], "label": ["A", "B"]}, "answerKey": "A"})"}},
      {"arithmetic_nospaces", {"test", R"({"context": "2+3=", "continuation": "5"})"}},
      {"blimp", {"test", R"({"id": "a/0", "uid": "a", "good": "The cats sleep.", "bad": "The cats sleeps."}
{"id": "b/0", "uid": "b", "good": "She saw herself.", "bad": "She saw itself."})"}},
      {"boolq", {"validation", choices}},
      {"commonsenseqa", {"validation", choices}},
      {"commonsenseqa_gen", {"commonsenseqa/validation", choices}},
      {"copa",
       {"validation",
        R"({"premise": "Tom fell.", "choice1": "It was wet.", "choice2": "It was red.", "question": "cause", "label": 0})"}},
      {"glue_mrpc",
       {"validation", R"({"sentence1": "He ran.", "sentence2": "He ran fast.", "label": 1, "idx": 9})"}},
      {"glue_rte",
       {"validation", R"({"sentence1": "Tom is sad.", "sentence2": "Tom is.", "label": 0, "idx": 0})"}},
      {"glue_sst2", {"validation", R"({"sentence": "what a good day ", "label": 1, "idx": 0})"}},
      {"gsm8k", {"test", questions}},
      {"gsm8k_zero", {"gsm8k/test", questions}},
      {"hellaswag", {"validation_1000", choices}},
      {"humaneval", {"test", R"({"task_id": "HumanEval/0", "prompt": "def one():\n"})"}},
      {"lambada", {"test", R"({"context": "She took the ball and threw the", "continuation": "ball"})"}},
      {"logiqa",
       {"test",
        R"({"query": "Context: Tom ran.\nQuestion: Who ran?\n", "choices": ["Tom", "Lily"], "gold": 0})"}},
      {"mmlu", {"test", subjects}},
      {"mmlu_gen", {"mmlu/test", subjects}},
      {"nq_open", {"validation", R"({"question": "who was the girl", "answer": ["Lily", "lily"]})"}},
      {"openbookqa", {"test", choices}},
      {"piqa", {"validation", choices}},
      {"piqa_gen", {"piqa/validation", choices}},
      {"race",
       {"test",
        R"({"article": "Tom ran.", "problems": "[{'question': 'Who  _  .', 'answer': 'B', 'options': ['a', 'b', 'c', 'd']}]"})"}},
      {"record",
       {"validation",
        R"({"passage": "Tom ran.\n@highlight\nTom", "query": "@placeholder ran", "entities": ["Tom", "Tim"], "answers": ["Tom"]})"}},
      {"squadv2",
       {"validation",
        R"({"id": "a", "title": "Tom", "context": "Tom ran.", "question": "Who ran?", "answers": {"text": ["Tom"]}}
{"id": "b", "title": "Tom", "context": "Tom ran.", "question": "Why?", "answers": {"text": []}})"}},
      {"storycloze",
       {"test",
        R"({"input_sentence_1": "Tom ran.", "input_sentence_2": "He fell.", "input_sentence_3": "It hurt.", "input_sentence_4": "He cried.", "sentence_quiz1": "He was sad.", "sentence_quiz2": "He flew.", "answer_right_ending": 1})"}},
      {"superglue_cb",
       {"validation", R"({"premise": "It rains.", "hypothesis": "It is wet", "idx": 0, "label": 2})"}},
      {"triviaqa_3k",
       {"test", R"({"context": "Question: Who?\nAnswer:", "answer": "Tim", "aliases": ["Tim", "Timmy"]})"}},
      {"webqs", {"test", R"({"question": "who ran?", "answers": ["Tom", "Tim"]})"}},
      {"wic",
       {"validation",
        R"({"sentence1": "He ran.", "sentence2": "It ran dry.", "start1": 3, "end1": 6, "label": 0})"}},
      {"winograd_wsc273",
       {"test", R"({"context_options": ["Tom", "Lily"], "continuation": "was sad.", "gold": 1})"}},
      {"winogrande",
       {"validation",
        R"({"id": "0", "ctx": "Tom or Lily, _ was sad.", "choices": ["Tom", "Lily"], "gold": 1})"}},
  };
  return all;
}

// Where the lines of a benchmark belong under --data-dir: "FOLDER/SPLIT", or "SPLIT" in a folder of its name.
std::string place_of(const std::string& name, const std::string& file) {
  return (file.find('/') == std::string::npos ? name + "/" : "") + file + ".jsonl";
}

// The files themselves where FATHOM_BENCHMARKS says they are, otherwise two lines of the form of each.
TEST(CliEval, EveryBenchmarkRuns) {
  const ScratchFolder folder;
  const char* real = std::getenv("FATHOM_BENCHMARKS");
  std::string names;
  size_t count = 0;
  for (const auto& [name, file] : every_benchmark()) {
    const std::string place = place_of(name, file.first);
    if (real && !std::filesystem::exists(std::filesystem::path(real) / place)) continue;
    names += (names.empty() ? "" : ",") + name;
    folder.write(place, file.second + "\n");
    ++count;
  }
  ASSERT_GE(count, real ? 25u : 36u);
  const std::string train = every_benchmark().at("gsm8k").second + "\n";
  folder.write("gsm8k/train.jsonl", train + train + train);  // five are examples
  const ProgramResult r =
      run_fathom({"eval", "-m", kStories, "--tasks", names, "--data-dir", real ? real : folder / "",
                  "--limit", "2", "-c", "1536", "--samples", folder / "samples.jsonl", "--json"});
  const nlohmann::json tasks = r.json()["tasks"];
  ASSERT_EQ(tasks.size(), count) << r.err;
  for (const auto& [name, task] : tasks.items()) {
    SCOPED_TRACE(name);
    EXPECT_GE(task["n"], 1);
    EXPECT_EQ(task["acc"].is_number(), name != "humaneval");
    EXPECT_EQ(task["shots"], name == "gsm8k" ? 5 : 0);
  }
  EXPECT_TRUE(tasks["gsm8k"]["exact_match_flexible"].is_number());
  EXPECT_TRUE(tasks["commonsenseqa_gen"]["exact_match_flexible"].is_number());
  EXPECT_EQ(tasks["mmlu_gen"]["groups"].size(), tasks["mmlu"]["groups"].size());
  EXPECT_TRUE(tasks["superglue_cb"]["f1"].is_number());
  EXPECT_GT(tasks["lambada"]["perplexity"], 1.0);
  EXPECT_EQ(tasks["blimp"]["groups"].size(), 2u);
  if (real) return;
  EXPECT_EQ(tasks["record"]["acc"], tasks["record"]["em"]);
  EXPECT_EQ(tasks["webqs"]["acc"], tasks["webqs"]["exact_match"]);
  EXPECT_EQ(tasks["squadv2"]["acc"], tasks["squadv2"]["exact"]);
  for (const char* metric : {"f1", "HasAns_exact", "NoAns_f1", "best_exact"})
    EXPECT_TRUE(tasks["squadv2"][metric].is_number()) << metric;
}

// The datasets of SkipLayer's evaluation, with one example and scored by token.
TEST(CliEval, OneShotAsInSkipLayer) {
  const ScratchFolder folder;
  std::string names;
  const std::set<std::string> written{"triviaqa_3k", "nq_open", "webqs", "squadv2"};
  std::set<std::string> all{"anli_r1",    "anli_r2",    "anli_r3",        "arc_easy", "arc_challenge",
                            "boolq",      "copa",       "race",           "record",   "superglue_cb",
                            "hellaswag",  "openbookqa", "piqa",           "wic",      "glue_rte",
                            "storycloze", "winogrande", "winograd_wsc273"};
  all.insert(written.begin(), written.end());
  for (const std::string& name : all) {
    const auto& [file, lines] = every_benchmark().at(name);
    const std::string place = place_of(name, file);
    folder.write(place, lines + "\n" + lines + "\n");
    const size_t split = place.find('/') + 1;
    const std::string round = name.starts_with("anli") ? "_" + name.substr(5) : "";
    const std::string examples = name == "storycloze" ? "validation" : "train" + round;
    folder.write(place.substr(0, split) + examples + ".jsonl", lines + "\n");
    names += (names.empty() ? "" : ",") + name;
  }
  const ProgramResult r = run_fathom({"eval", "-m", kStories, "--tasks", names, "--data-dir", folder / "",
                                      "--shots", "1", "--limit", "1", "--json"});
  const nlohmann::json tasks = r.json()["tasks"];
  ASSERT_EQ(tasks.size(), all.size()) << r.err;
  for (const auto& [name, task] : tasks.items()) {
    SCOPED_TRACE(name);
    EXPECT_EQ(task["shots"], 1);
    EXPECT_TRUE(task["acc"].is_number());
    EXPECT_EQ(task.contains("acc_token"), !written.contains(name));
  }
}

// As on a full disk: the samples are refused in one line, and the scores are there all the same.
TEST(CliEval, AFullDiskTakesNoScoreAway) {
  const ScratchFolder folder;
  const std::string file = folder.write("mine.jsonl", kItems), samples = folder.write("s.jsonl", "old");
  const auto handler = signal(SIGXFSZ, SIG_IGN);  // the child has it too
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit{100, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  const ProgramResult r =
      run_fathom({"eval", "-m", kStories, "--tasks", file, "--samples", samples, "--json"});
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NEAR(r.json()["tasks"][file]["acc"], 2.0 / 3, 1e-12);
  EXPECT_TRUE(r.err.starts_with("fathom: cannot write " + samples)) << r.err;
  EXPECT_EQ(r.err.find('\n'), r.err.size() - 1);
  std::string kept;
  std::getline(std::ifstream(samples), kept);
  EXPECT_EQ(kept, "old");
  EXPECT_EQ(folder.names().size(), 2u);  // nothing half written
}

TEST(CliEval, PerplexityOfAText) {
  const ScratchFolder folder;
  const std::string text = folder.write("t.txt", "Once upon a time, there was a little girl.\n");
  const nlohmann::json task =
      run_fathom({"eval", "-m", kStories, "--tasks", text, "--json"}).json()["tasks"][text];
  EXPECT_TRUE(task["acc"].is_null());
  EXPECT_GT(task["token_perplexity"], 1.0);
  EXPECT_GT(task["word_perplexity"], task["token_perplexity"]);
  EXPECT_LT(task["byte_perplexity"], task["token_perplexity"]);
}

TEST(CliEval, RefusesInOneLine) {
  const ScratchFolder folder;
  const std::string good = folder.write("good.jsonl", kItems);
  const auto refused = [](std::vector<std::string> more, int code, const std::string& part) {
    std::vector<std::string> words{"eval", "-m", kStories};
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
  refused({"--tasks", good + ",,"}, 2, "with commas between");
  refused({"--tasks", good + "," + good}, 2, "twice");
  refused({"--tasks", good, "--limit", "-1"}, 2, "--limit");
  refused({"--tasks", good, "--shots", "9"}, 1, "9 examples were asked for, there are 2");
  refused({"--tasks", folder / "none.jsonl"}, 1, "none.jsonl");
  refused({"--tasks", good, "--samples", folder / "no/where.jsonl"}, 1, "no/where.jsonl");
  refused({"--tasks", good, "-c", "3"}, 1, "item a: ");
  refused({"--tasks", folder.write("bad.jsonl", std::string(kItems) + "{\"ctx\":")}, 1, "bad.jsonl:4: ");
  const auto item = [&](const std::string& rest) {
    return folder.write("item.jsonl", std::string(kItems) + "{\"ctx\": \"a\", " + rest + "}\n");
  };
  refused({"--tasks", item(R"("choices": ["b", "c"], "gold": 2)")}, 1,
          "item.jsonl:4: expected \"gold\" to be from 0 to 1");
  refused({"--tasks", item(R"("choices": ["b", ""], "gold": 0)")}, 1,
          "item.jsonl:4: entry 1 of \"choices\" is empty");
  refused({"--tasks", good, "--samples", folder / ""}, 1, "it is a folder or device");
  refused({"--tasks", good, "--budget", "0.5"}, 2, "budget");
}

}  // namespace
}  // namespace fathom
