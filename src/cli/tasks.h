// The benchmarks that a verb is asked to run.
#pragma once

#include "cli/args.h"
#include "eval/evaluate.h"

namespace fathom {

struct TaskChoice {
  std::string names;  // with commas between them
  TaskOptions options;
};

void add_task_options(Args& args, TaskChoice& choice);
void check_task_options(const std::string& verb, const TaskChoice& choice);
std::vector<Task> load_tasks(const TaskChoice& choice);

// Every task's tokens, before any of them runs: a cache is made for the longest. Items that had to be cut are
// warned of.
struct EncodedTasks {
  std::vector<EncodedTask> tasks;
  int64_t longest = 1, most_items = 1, cut = 0;
};
EncodedTasks encode_tasks(const Tokenizer& tokenizer, int64_t context, const std::vector<Task>& tasks);

}  // namespace fathom
