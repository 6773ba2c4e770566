// A conversation as the text a model was trained on. Which format, and which of its variants, is read off the
// marker strings and literals of the model file's Jinja template; the Jinja itself is never run.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace fathom {

struct ChatMessage {
  std::string role;  // system, user or assistant
  std::string content;
};

// What one format does, as data: each turn is open + content + close.
struct ChatFormat {
  struct Turn {
    std::string open, close;
  };
  enum class System {
    kTurn,       // a separate turn
    kFirstUser,  // inside the first user turn
    kLastUser,   // inside the last user turn (Mistral since v0.3)
    kRefused,    // the template takes none
  };

  std::string name;  // as --chat-template spells it
  Turn system, user, assistant;
  std::string generation_prompt;
  std::string final_assistant_close;  // when the conversation ends with the assistant
  bool bos_first = false;             // BOS once, before everything
  bool trims = false;                 // contents lose white space at both ends
  bool alternates = false;            // user, assistant, user, … is demanded

  System system_place = System::kTurn;
  Turn inner_system;               // around a system message inside a user turn
  bool trims_with_system = false;  // Llama-2: trims after the system message is in
  bool has_default_system = false;
  std::string default_system;    // when the conversation has no system message
  bool asks_for_system = false;  // the template computes a default that we cannot: one must be given

  std::string
      knowledge_line;  // Llama-3.1 and later: "Cutting Knowledge Date: …", opens the system turn, with a date
  std::string date;    // of that line; "": today
  bool splits_thinking =
      false;  // Qwen3: <think>…</think> leaves earlier answers and is set apart in the last one
};

// A conversation as its format writes it. What the messages say is text: only the template's own marks are
// special tokens.
struct ChatText {
  std::string text;                 // BOS is in it where the template writes it
  std::vector<TextRange> contents;  // the parts that messages wrote, ascending
  std::vector<TextRange> answers;   // the assistant's turns with their closing marks, ascending
};

class ChatTemplate {
 public:
  // `jinja`: the template's text; `bos` and `eos`: the tokens as written. A template that is none of the
  // known formats is a UserError with the list of those known.
  static ChatTemplate recognise(std::string_view jinja, const std::string& bos, const std::string& eos);
  // By name, in the form the format's first model used. An unknown name is a UsageError with the list.
  static ChatTemplate named(std::string_view name, const std::string& bos, const std::string& eos);
  static std::string known_names();  // "chatml, llama2, …"

  // `add_generation_prompt` opens the assistant's next turn.
  ChatText render(std::span<const ChatMessage> messages, bool add_generation_prompt) const;

  // The ids of the tokens among the marks of every turn: what no content may write (EncodeOptions::marks).
  std::vector<int32_t> mark_ids(const Tokenizer& tokenizer) const;
  // The ids of a conversation. Special tokens and marks written in a message stay text.
  std::vector<int32_t> encode(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                              bool add_generation_prompt) const;

  const ChatFormat& format() const { return format_; }
  void set_date(std::string date) { format_.date = std::move(date); }

 private:
  ChatTemplate(ChatFormat format, std::string bos) : format_(std::move(format)), bos_(std::move(bos)) {}
  ChatFormat format_;
  std::string bos_;
};

}  // namespace fathom
