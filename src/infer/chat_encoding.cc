#include "infer/chat_encoding.h"

#include "base/format.h"
#include "cli/args.h"

namespace fathom {

ChatTemplate chat_template_of(const Model& model, const std::string& name) {
  if (!model.tokenizer)
    fail("{}: there is no tokenizer with this model: give one with --tokenizer", printable(model.path));
  const Tokenizer& tokenizer = *model.tokenizer;
  const auto written = [&](int32_t id) { return id < 0 ? std::string() : tokenizer.token(id); };
  const std::string bos = written(tokenizer.bos()), eos = written(tokenizer.eos());
  if (!name.empty() && name != "auto")
    return from_option("--chat-template", [&] { return ChatTemplate::named(name, bos, eos); });
  if (tokenizer.chat_template().empty()) {
    fail("{}: the model's files hold no chat template; choose one with --chat-template: {}",
         printable(model.path), ChatTemplate::known_names());
  }
  try {
    return ChatTemplate::recognise(tokenizer.chat_template(), bos, eos);
  } catch (const UserError& error) {
    fail("{}; choose one with --chat-template", error.what());
  }
}

std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                 const std::vector<ChatMessage>& messages) {
  return chat.encode(tokenizer, messages, true);
}

}  // namespace fathom
