#include "infer/chat_encoding.h"

#include "base/format.h"

namespace fathom {

ChatTemplate chat_template_of(const Model& model, const std::string& name) {
  if (!model.tokenizer) fail("{}: there is no tokenizer with this model", printable(model.path));
  const Tokenizer& tokenizer = *model.tokenizer;
  const auto written = [&](int32_t id) { return id < 0 ? std::string() : tokenizer.token(id); };
  const std::string bos = written(tokenizer.bos()), eos = written(tokenizer.eos());
  if (!name.empty() && name != "auto") return ChatTemplate::named(name, bos, eos);
  if (tokenizer.chat_template().empty())
    throw NoChatTemplate(printable(model.path), "the model's files hold no chat template");
  try {
    return ChatTemplate::recognise(tokenizer.chat_template(), bos, eos);
  } catch (const UserError& error) {
    throw NoChatTemplate("", error.what());
  }
}

std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                 const std::vector<ChatMessage>& messages) {
  return chat.encode(tokenizer, messages, true);
}

}  // namespace fathom
