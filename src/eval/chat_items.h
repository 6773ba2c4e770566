// Benchmarks asked as conversations, for models that are tuned to them.
#pragma once

#include "eval/task.h"
#include "text/chat_template.h"

namespace fathom {

// What stands before an answer (description, examples, question) becomes a user's message, and the answer
// what the assistant writes: it loses the space that would part it from its question, as
// lm-evaluation-harness has it with --apply_chat_template. A task of whole texts is a UserError: there is no
// conversation in them.
void put_into_chat(Task& task, const ChatTemplate& chat);

}  // namespace fathom
