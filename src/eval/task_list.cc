// The benchmarks known by name. Prompts, stop strings and judging are those of lm-evaluation-harness's tasks
// (commit 4e7e0d4, August 2026) wherever a file does not hold its prompt already; those of *_gen and
// gsm8k_zero are GateSkip's.
#include "eval/task.h"

namespace fathom {
namespace {

constexpr int64_t kWorkedAnswer = 512;  // tokens of an answer with its steps

TaskSpec choice(std::string name, ItemReader read, std::string split, std::string example_split = "",
                ExtraMetric extra = ExtraMetric::kNone) {
  TaskSpec spec;
  spec.name = std::move(name);
  spec.kind = TaskKind::kChoice;
  spec.read = read;
  spec.split = std::move(split);
  spec.example_split = std::move(example_split);
  spec.extra = extra;
  return spec;
}

TaskSpec continuation(std::string name, ItemReader read, ExtraMetric extra) {
  TaskSpec spec = choice(std::move(name), read, "test", "", extra);
  spec.kind = TaskKind::kContinue;
  return spec;
}

TaskSpec generation(std::string name, ItemReader read, std::string split, GenerationRules rules) {
  TaskSpec spec = choice(std::move(name), read, std::move(split));
  spec.kind = TaskKind::kGenerate;
  spec.generation = std::move(rules);
  return spec;
}

TaskSpec without_few_shot(TaskSpec spec) {
  spec.few_shot = false;
  return spec;
}

TaskSpec gsm8k() {
  TaskSpec spec = generation("gsm8k", read_gsm8k, "test",
                             {{"Question:", "</s>", "<|im_end|>"}, 256, AnswerRule::kNumber});
  spec.example_split = "train";
  spec.shots = 5;
  return spec;
}

// GateSkip's generative tasks (section 4.1, appendix I.2): zero-shot, the answer after "####". The files hold
// no steps that examples could show.
TaskSpec written_letter(std::string name, std::string folder, std::string split) {
  TaskSpec spec =
      without_few_shot(generation(std::move(name), read_lettered, std::move(split),
                                  {{"Question:", "</s>", "<|im_end|>"}, kWorkedAnswer, AnswerRule::kLetter}));
  spec.folder = std::move(folder);
  return spec;
}

TaskSpec gsm8k_zero() {
  TaskSpec spec = gsm8k();
  spec.name = "gsm8k_zero";
  spec.folder = "gsm8k";
  spec.shots = 0;
  spec.generation.max_tokens = kWorkedAnswer;
  return spec;
}

TaskSpec anli(const std::string& round) {
  TaskSpec spec = choice("anli_" + round, read_anli, "test_" + round, "train_" + round);
  spec.folder = "anli";
  return spec;
}

TaskSpec record() {
  TaskSpec spec = choice("record", read_record, "validation", "train", ExtraMetric::kWordF1);
  spec.right = "em";
  return spec;
}

TaskSpec squadv2() {
  TaskSpec spec =
      generation("squadv2", read_squad, "validation", {{"\n"}, 256, AnswerRule::kSquad, " unanswerable"});
  spec.example_split = "train";
  return spec;
}

TaskSpec webqs() {
  TaskSpec spec = continuation("webqs", read_webqs, ExtraMetric::kNone);
  spec.example_split = "train";
  spec.right = "exact_match";
  return spec;
}

TaskSpec nq_open() {
  TaskSpec spec = generation("nq_open", read_nq_open, "validation",
                             {{"\n", ".", ","}, 256, AnswerRule::kTextLessArticles});
  spec.separator = "\n";
  return spec;
}

std::vector<TaskSpec> make_tasks() {
  return {
      anli("r1"),
      anli("r2"),
      anli("r3"),
      choice("arc_challenge", read_choices, "test", "train"),
      choice("arc_easy", read_arc, "test", "train"),
      continuation("arithmetic_nospaces", read_sum, ExtraMetric::kNone),
      without_few_shot(choice("blimp", read_pair, "test")),
      choice("boolq", read_choices, "validation", "train"),
      choice("commonsenseqa", read_choices, "validation", "train"),
      written_letter("commonsenseqa_gen", "commonsenseqa", "validation"),
      choice("copa", read_copa, "validation", "train"),
      choice("glue_mrpc", read_mrpc, "validation", "", ExtraMetric::kF1),
      choice("glue_rte", read_rte, "validation"),
      choice("glue_sst2", read_sst2, "validation"),
      gsm8k(),
      gsm8k_zero(),
      choice("hellaswag", read_choices, "validation_1000"),
      without_few_shot(generation("humaneval", read_humaneval, "test",
                                  {{"\nclass", "\ndef", "\n#", "\nif", "\nprint"}, 1024})),
      continuation("lambada", read_last_word, ExtraMetric::kPerplexity),
      choice("logiqa", read_logiqa, "test"),
      choice("mmlu", read_mmlu, "test", "dev"),
      written_letter("mmlu_gen", "mmlu", "test"),
      nq_open(),
      choice("openbookqa", read_choices, "test", "train"),
      choice("piqa", read_choices, "validation", "train"),
      written_letter("piqa_gen", "piqa", "validation"),
      choice("race", read_race, "test"),
      record(),
      squadv2(),
      choice("storycloze", read_storycloze, "test", "validation"),
      choice("superglue_cb", read_cb, "validation", "", ExtraMetric::kMacroF1),
      generation("triviaqa_3k", read_trivia, "test", {{"\n", ".", ","}, 256, AnswerRule::kText}),
      webqs(),
      choice("wic", read_wic, "validation", "train"),
      choice("winograd_wsc273", read_contexts, "test"),
      choice("winogrande", read_blank, "validation", "train"),
  };
}

}  // namespace

std::span<const TaskSpec> known_tasks() {
  static const std::vector<TaskSpec> tasks = make_tasks();
  return tasks;
}

}  // namespace fathom
