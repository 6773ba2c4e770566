// From a line of a task's file to an item: one function for each form that the files have.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "eval/item.h"

namespace fathom {

// A value that does not fit is a UserError that says what was expected of which key.
using ItemReader = EvalItem (*)(const nlohmann::json& line);

EvalItem read_choices(const nlohmann::json& line);  // {"ctx", "choices", "gold"}
EvalItem read_blank(const nlohmann::json& line);    // the same; each choice is put in the place of "_" in ctx
EvalItem read_pair(const nlohmann::json& line);     // {"good", "bad"}
EvalItem read_contexts(const nlohmann::json& line);   // {"context_options", "continuation", "gold"}
EvalItem read_last_word(const nlohmann::json& line);  // {"context", "continuation"}: a space between them
EvalItem read_sum(const nlohmann::json& line);        // {"context", "continuation"}: as they stand
EvalItem read_mmlu(const nlohmann::json& line);  // {"subject", "ctx", "choices", "gold"}: answered by letter
EvalItem read_lettered(
    const nlohmann::json& line);                   // the same, perhaps without subject: the letter is written
EvalItem read_logiqa(const nlohmann::json& line);  // {"query", "choices", "gold"}
EvalItem read_mrpc(const nlohmann::json& line);    // {"sentence1", "sentence2", "label"}
EvalItem read_rte(const nlohmann::json& line);     // {"sentence1", "sentence2", "label"}
EvalItem read_sst2(const nlohmann::json& line);    // {"sentence", "label"}
EvalItem read_cb(const nlohmann::json& line);      // {"premise", "hypothesis", "label"}
EvalItem read_gsm8k(const nlohmann::json& line);   // {"question", "answer"}
EvalItem read_nq_open(const nlohmann::json& line);    // {"question", "answer": [..]}
EvalItem read_trivia(const nlohmann::json& line);     // {"context", "answer", "aliases"}
EvalItem read_humaneval(const nlohmann::json& line);  // {"task_id", "prompt"}
EvalItem read_text(const nlohmann::json& line);       // {"text"}

// Public datasets as they are published (dataset_forms.cc); keys that are not named here are left alone.
EvalItem read_anli(const nlohmann::json& line);    // {"premise", "hypothesis", "label"}
EvalItem read_arc(const nlohmann::json& line);     // {"question", "choices": {"text", "label"}, "answerKey"}
EvalItem read_copa(const nlohmann::json& line);    // {"premise", "question", "choice1", "choice2", "label"}
EvalItem read_race(const nlohmann::json& line);    // {"article", "problems"}
EvalItem read_record(const nlohmann::json& line);  // {"passage", "query", "entities", "answers"}
EvalItem read_squad(const nlohmann::json& line);   // {"title", "context", "question", "answers": {"text"}}
EvalItem read_storycloze(
    const nlohmann::json& line);  // {"input_sentence_1" … "4", "sentence_quiz1", "…2", …}
EvalItem read_webqs(const nlohmann::json& line);  // {"question", "answers"}
EvalItem read_wic(const nlohmann::json& line);    // {"sentence1", "sentence2", "start1", "end1", "label"}

// The form of a user's file, by the keys of its first line. Unknown keys are a UserError with the list.
struct FileForm {
  TaskKind kind = TaskKind::kChoice;
  ItemReader read = nullptr;
};
FileForm form_of(const nlohmann::json& line);

}  // namespace fathom
