#include "cli/tasks.h"

#include <algorithm>

#include "base/format.h"
#include "base/log.h"

namespace fathom {

namespace {

std::string known_names() {
  std::string names;
  for (const TaskSpec& task : known_tasks()) names += (names.empty() ? "" : ", ") + task.name;
  return names;
}

}  // namespace

void add_task_options(Args& args, TaskChoice& choice) {
  args.text("--tasks", choice.names, "T,T,…",
            "Benchmarks by name, or .jsonl and .txt files. The names (what each asks: docs/evaluation.md): " +
                known_names());
  args.text("--data-dir", choice.options.data_dir, "DIR",
            "Folder that holds NAME/SPLIT.jsonl of each named task");
  args.integer("--limit", choice.options.limit, "Items of each task at most (0: all)", 0, INT32_MAX);
  args.integer("--shots", choice.options.shots, "Few-shot examples before each item (-1: as the task has it)",
               -1, 1000);
}

void check_task_options(const std::string& verb, const TaskChoice& choice) {
  if (choice.names.empty()) throw UsageError(verb + ": --tasks is missing");
}

std::vector<Task> load_tasks(const TaskChoice& choice) {
  std::vector<Task> tasks;
  for (const std::string& name : split_list("--tasks", choice.names)) {
    try {
      tasks.push_back(load_task(name, choice.options));
    } catch (const NoDataFolder& error) {
      throw UsageError(fmt::format("{}: name it with --data-dir", error.what()));
    }
  }
  return tasks;
}

EncodedTasks encode_tasks(const Tokenizer& tokenizer, int64_t context, const std::vector<Task>& tasks) {
  const RequestEncoder encoder(tokenizer, context);
  EncodedTasks all;
  for (const Task& task : tasks) {
    const EncodedTask& one = all.tasks.emplace_back(encode_task(task, encoder));
    all.longest = std::max(all.longest, one.longest);
    all.most_items = std::max(all.most_items, static_cast<int64_t>(task.items.size()));
    all.cut += one.cut;
    if (one.cut > 0)
      log_warn(
          fmt::format("{}: {} of {} items are longer than the context of {} tokens and were cut on the left",
                      printable(task.spec.name), one.cut, task.items.size(), context));
  }
  return all;
}

}  // namespace fathom
