#include "eval/task.h"

#include <gtest/gtest.h>

#include "eval/chat_items.h"
#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

std::string refusal(const TemporaryFolder& folder, const std::string& text) {
  const std::string path = folder.write("t.jsonl", text);
  std::string error = error_of([&] { load_task(path, {}); });
  EXPECT_EQ(error.rfind(path, 0), 0u) << error;
  return error.substr(std::min(error.size(), path.size()));
}

TEST(Task, BrokenLinesAreNamed) {
  const TemporaryFolder folder;
  const std::string good = R"({"ctx": "a", "choices": ["b", "c"], "gold": 1})";
  EXPECT_EQ(refusal(folder, ""), ": expected a JSON object on each line, the file has none");
  EXPECT_EQ(refusal(folder, "\n \n"), ": expected a JSON object on each line, the file has none");
  EXPECT_EQ(refusal(folder, good + "\n\n{\"ctx\": \"a\n"), ":3: expected a JSON object, got '{\"ctx\": \"a'");
  EXPECT_EQ(refusal(folder, good + "\n[1]\n"), ":2: expected a JSON object, got '[1]'");
  EXPECT_EQ(refusal(folder, good + "\n{\"ctx\": \"\xff\"}\n").substr(0, 4), ":2: ");
  const auto second = [&](const std::string& line) {
    const std::string error = refusal(folder, good + "\n" + line + "\n");
    EXPECT_EQ(error.substr(0, 4), ":2: ") << error;
    return error.substr(std::min<size_t>(4, error.size()));
  };
  EXPECT_EQ(second(R"({"choices": ["b", "c"], "gold": 1})"), "expected the key \"ctx\", there is none");
  EXPECT_EQ(second(R"({"ctx": 3, "choices": ["b", "c"], "gold": 1})"),
            "expected \"ctx\" to be a string, got number");
  EXPECT_EQ(second(R"({"ctx": "a", "choices": "bc", "gold": 1})"),
            "expected \"choices\" to be a list of strings, got string");
  EXPECT_EQ(second(R"({"ctx": "a", "choices": ["b", 2], "gold": 1})"),
            "expected \"choices\" to be a list of strings, entry 1 is number");
  EXPECT_EQ(second(R"({"ctx": "a", "choices": ["b"], "gold": 0})"),
            "expected \"choices\" to hold at least 2, got 1");
  EXPECT_EQ(second(R"({"ctx": "a", "choices": ["b", " "], "gold": 1})"), "entry 1 of \"choices\" is empty");
  EXPECT_EQ(second(R"({"ctx": "a", "choices": ["b", "c"], "gold": 2})"),
            "expected \"gold\" to be from 0 to 1, got 2");
  EXPECT_EQ(second(R"({"ctx": "a", "choices": ["b", "c"], "gold": -1})"),
            "expected \"gold\" to be from 0 to 1, got -1");
  EXPECT_EQ(second(R"({"ctx": "a", "choices": ["b", "c"], "gold": 18446744073709551615})"),
            "expected \"gold\" to be from 0 to 1, got 18446744073709551615");
  EXPECT_EQ(second(R"({"ctx": "a", "choices": ["b", "c"], "gold": "1"})"),
            "expected \"gold\" to be a whole number, got string");
  EXPECT_EQ(second(R"({"ctx": "a", "choices": ["b", "c"], "gold": 1.0})"),
            "expected \"gold\" to be a whole number, got number");
  EXPECT_EQ(second(R"({"ctx": "a", "choices": ["b", "c"], "gold": 1, "id": []})"),
            "expected \"id\" to be a string or a whole number, got array");
  EXPECT_NE(refusal(folder, R"({"cxt": "a"})").find("got cxt"), std::string::npos);
  EXPECT_NE(refusal(folder, R"({"good": "a", "bad": ""})").find("\"bad\" to hold a text"), std::string::npos);
  const std::string deep(200000, '[');
  EXPECT_EQ(second(deep).substr(0, 28), "expected a JSON object, got ");
  EXPECT_EQ(second(R"({"ctx": "a", "choices": )" + deep + std::string(200000, ']') + R"(, "gold": 1})"),
            "expected \"choices\" to hold at least 2, got 1");
}

TEST(Task, AUsersFileIsKnownByItsKeys) {
  const TemporaryFolder folder;
  const auto load = [&](const std::string& text) { return load_task(folder.write("t.jsonl", text), {}); };
  const Task choices = load("{\"id\": 7, \"ctx\": \"a\", \"choices\": [\"b\", \"éé\"], \"gold\": 1}\r\n");
  EXPECT_EQ(choices.spec.kind, TaskKind::kChoice);
  EXPECT_EQ(choices.items[0].id, "7");
  EXPECT_EQ(choices.items[0].options[1].context, "a");
  EXPECT_EQ(choices.items[0].options[1].continuation, " éé");
  EXPECT_EQ(choices.items[0].characters, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(choices.items[0].gold, 1);

  const std::string blank = R"({"ctx": "so _ went.", "choices": ["he", "she"], "gold": 0})";
  const Task blanks = load(blank);
  EXPECT_EQ(blanks.items[0].options[1].context, "so she");
  EXPECT_EQ(blanks.items[0].options[1].continuation, " went.");
  const Task mixed = load(blank + "\n" + R"({"ctx": "a", "choices": ["b", "c"], "gold": 0})");
  EXPECT_EQ(mixed.items[0].options[0].context, "so _ went.");  // not every line has a blank

  const Task pair = load(R"({"good": "He goes.", "bad": "He go.", "uid": "x"})");
  EXPECT_EQ(pair.items[0].options[0].context, "");
  EXPECT_EQ(pair.items[0].options[1].continuation, " He go.");
  EXPECT_EQ(pair.items[0].group, "x");

  const Task last = load(R"({"context": "one two", "continuation": "three"})");
  EXPECT_EQ(last.spec.kind, TaskKind::kContinue);
  EXPECT_EQ(last.items[0].options[0].continuation, " three");

  const Task written = load(R"({"context": "Q: a?\nA:", "answer": "b"})");
  EXPECT_EQ(written.spec.kind, TaskKind::kGenerate);
  EXPECT_EQ(written.items[0].answers, (std::vector<std::string>{"b"}));

  EXPECT_EQ(load(R"({"text": "a b"})").spec.kind, TaskKind::kRolling);
  const Task plain =
      load_task(folder.write("t.txt", "one\ntwo\n<|endoftext|>\n\n<|endoftext|>\nthree\n"), {});
  ASSERT_EQ(plain.items.size(), 2u);
  EXPECT_EQ(plain.items[0].text, "one\ntwo");
  EXPECT_EQ(plain.items[1].text, "three\n");
  EXPECT_NE(error_of([&] { load_task(folder.write("e.txt", " \n"), {}); }).find("the file is empty"),
            std::string::npos);
}

TEST(Task, ExamplesComeFirst) {
  const TemporaryFolder folder;
  std::string lines;
  for (const char* word : {"a", "b", "c"})
    lines += std::string(R"({"ctx": "Q )") + word + R"(", "choices": ["x", "y"], "gold": 1})" + "\n";
  const std::string path = folder.write("t.jsonl", lines);
  TaskOptions options;
  options.shots = 2;
  const Task task = load_task(path, options);
  EXPECT_EQ(task.items[0].options[0].context, "Q b y\n\nQ c y\n\nQ a");  // never the item itself
  EXPECT_EQ(task.items[2].options[0].context, "Q a y\n\nQ b y\n\nQ c");
  options.limit = 1;  // examples are not limited
  EXPECT_EQ(load_task(path, options).items[0].options[0].context, "Q b y\n\nQ c y\n\nQ a");
  options.shots = 3;
  EXPECT_NE(error_of([&] { load_task(path, options); }).find("3 examples were asked for, there are 2"),
            std::string::npos);
}

TEST(Task, NamedTasksFindTheirSplits) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.at("mmlu"));
  std::filesystem::create_directories(folder.at("arc_challenge"));
  const auto mmlu = [](const char* subject, const char* question, int gold) {
    return std::string(R"({"id": ")") + subject + "/" + question + R"(", "subject": ")" + subject +
           R"(", "ctx": ")" + question + R"( ", "choices": ["p", "q", "r", "s"], "gold": )" +
           std::to_string(gold) + "}\n";
  };
  folder.write("mmlu/test.jsonl",
               mmlu("some_law", "one", 0) + mmlu("some_law", "two", 1) + mmlu("art", "three", 2));
  folder.write("mmlu/dev.jsonl", mmlu("art", "four", 3) + mmlu("some_law", "five", 2));
  TaskOptions options;
  options.data_dir = folder.path();
  options.shots = 1;
  options.limit = 2;  // one of each subject
  const Task task = load_task("mmlu", options);
  ASSERT_EQ(task.items.size(), 2u);
  EXPECT_EQ(task.items[0].options[3].context,
            "The following are multiple choice questions (with answers) about some law.\n\n"
            "five\nA. p\nB. q\nC. r\nD. s\nAnswer: C\n\none\nA. p\nB. q\nC. r\nD. s\nAnswer:");
  EXPECT_EQ(task.items[0].options[3].continuation, " D");
  EXPECT_EQ(task.items[1].group, "art");

  folder.write("arc_challenge/test.jsonl", R"({"ctx": "Q", "choices": ["x", "y"], "gold": 0})");
  folder.write("arc_challenge/fewshot5_prefix.txt", "five of them\n\n");
  options.shots = 5;
  EXPECT_EQ(load_task("arc_challenge", options).items[0].options[0].context, "five of them\n\nQ");
  EXPECT_NE(error_of([&] { load_task("arc_chalenge", options); }).find("did you mean 'arc_challenge'?"),
            std::string::npos);
  EXPECT_NE(error_of([&] { load_task("piqa", options); }).find("piqa/validation.jsonl"), std::string::npos);
  EXPECT_NE(error_of([&] { load_task("piqa", {}); }).find("the folder of the benchmarks"), std::string::npos);
}

TEST(Task, TheListIsInOrder) {
  std::string last;
  for (const TaskSpec& spec : known_tasks()) {
    EXPECT_LT(last, spec.name);
    last = spec.name;
  }
  EXPECT_EQ(known_tasks().size(), 36u);
}

// The question is a user's message, the answer what the assistant writes next.
TEST(ChatItems, QuestionsBecomeMessages) {
  const ChatTemplate chat = ChatTemplate::named("chatml", "", "");
  Task task;
  task.items.resize(1);
  task.items[0].options = {{"Q: green?\nA:", " grass"}, {"Q: green?\nA:", " snow"}};
  put_into_chat(task, chat);
  EXPECT_TRUE(task.items[0].options[1].context.ends_with(
      "<|im_start|>user\nQ: green?\nA:<|im_end|>\n<|im_start|>assistant\n"))
      << task.items[0].options[1].context;
  EXPECT_EQ(task.items[0].options[1].continuation, "snow");
  Task written;
  written.spec.kind = TaskKind::kGenerate;
  written.items.resize(1);
  written.items[0].prompt = "Why?";
  put_into_chat(written, chat);
  EXPECT_NE(written.items[0].prompt.find("user\nWhy?<|im_end|>"), std::string::npos);
  Task whole;
  whole.spec.kind = TaskKind::kRolling;
  EXPECT_THROW(put_into_chat(whole, chat), UserError);
}

}  // namespace
}  // namespace fathom
