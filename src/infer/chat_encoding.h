// From what the user wrote to the model's tokens.
#pragma once

#include <string>
#include <vector>

#include "model/model.h"
#include "text/chat_template.h"

namespace fathom {

// The model's file has no chat template, or none of the known ones.
class NoChatTemplate : public UserError {
 public:
  NoChatTemplate(const std::string& path, std::string reason)
      : UserError(path.empty() ? reason : path + ": " + reason), why(std::move(reason)) {}
  std::string why;  // without the path, which is nothing for strangers
};

// `name`: one of the known formats, or "auto" or "" for the one that the model's file has, else
// NoChatTemplate. An unknown name is a UsageError.
ChatTemplate chat_template_of(const Model& model, const std::string& name);

// The conversation with the assistant's turn opened. Special tokens are those of the template, whatever the
// messages say; BOS is in it where the template has one.
std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                 const std::vector<ChatMessage>& messages);

}  // namespace fathom
