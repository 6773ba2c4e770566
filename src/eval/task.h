// A benchmark: where its items are, how they are asked, how answers are judged.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "eval/answers.h"
#include "eval/forms.h"
#include "eval/item.h"

namespace fathom {

// What is reported beside accuracy.
enum class ExtraMetric : uint8_t { kNone, kF1, kMacroF1, kPerplexity, kWordF1 };

struct GenerationRules {
  std::vector<std::string> stops;
  int64_t max_tokens = 256;
  AnswerRule answer = AnswerRule::kNone;
  std::string no_answer = "";  // its log-likelihood after the prompt is asked for, too; "": nothing is
};

struct TaskSpec {
  std::string name;
  std::string folder = "";    // of its files under data_dir; "": the name
  std::string right = "acc";  // what the share of right items is called, where they are not written
  TaskKind kind = TaskKind::kChoice;
  ItemReader read = nullptr;
  std::string split;          // file, less ".jsonl"
  std::string example_split;  // of few-shot examples; "": the same, less the item itself
  ExtraMetric extra = ExtraMetric::kNone;
  int64_t shots = 0;  // unless the user says otherwise
  bool few_shot = true;
  std::string separator = "\n\n";  // after each example
  GenerationRules generation = {};
};

// Every benchmark that is known by name, in the order of their names.
std::span<const TaskSpec> known_tasks();

struct TaskOptions {
  std::string data_dir;
  int64_t limit = 0;   // items at most; 0: all. Of a task with groups, the same number of each
  int64_t shots = -1;  // -1: the task's own number
};

struct Task {
  TaskSpec spec;
  std::vector<EvalItem> items;  // with description and examples in front
  int64_t shots = 0;
};

// A known task without TaskOptions::data_dir.
class NoDataFolder : public UsageError {
 public:
  using UsageError::UsageError;
};

// `name`: a known task, or a user's .jsonl (see form_of) or .txt, whose documents stand between lines
// "<|endoftext|>". Files are not trusted: a line that does not fit is a UserError "FILE:LINE: …".
Task load_task(const std::string& name, const TaskOptions& options);

}  // namespace fathom
