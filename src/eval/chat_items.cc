#include "eval/chat_items.h"

#include "base/format.h"

namespace fathom {
namespace {

std::string asked(const ChatTemplate& chat, const std::string& text) {
  const ChatMessage message{"user", text};
  return chat.render(std::span(&message, 1), true).text;
}

void drop_space(std::string& answer) {
  if (answer.size() > 1 && answer.front() == ' ') answer.erase(0, 1);
}

}  // namespace

void put_into_chat(Task& task, const ChatTemplate& chat) {
  if (task.spec.kind == TaskKind::kRolling)
    fail("{}: whole texts are scored, and there is no conversation in them", printable(task.spec.name));
  drop_space(task.spec.generation.no_answer);
  for (EvalItem& item : task.items) {
    if (task.spec.kind == TaskKind::kGenerate) item.prompt = asked(chat, item.prompt);
    for (ScoredText& option : item.options) {
      option.context = asked(chat, option.context);
      drop_space(option.continuation);
    }
  }
}

}  // namespace fathom
