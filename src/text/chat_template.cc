#include "text/chat_template.h"

#include <algorithm>
#include <ctime>

#include "base/format.h"
#include "text/chat_formats.h"

namespace fathom {
namespace {

using System = ChatFormat::System;

constexpr const char* kTemplateSpace = " \t\n\r\v\f";

// As Python's str.strip(), for ASCII white space.
std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kTemplateSpace);
  return begin == std::string_view::npos
             ? ""
             : text.substr(begin, text.find_last_not_of(kTemplateSpace) - begin + 1);
}

std::string without(std::string text, char c, bool front, bool back) {
  while (front && !text.empty() && text.front() == c) text.erase(0, 1);
  while (back && !text.empty() && text.back() == c) text.pop_back();
  return text;
}

// "26 Jul 2024", in English whatever the locale.
std::string today() {
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm date{};
  localtime_r(&now, &date);
  return fmt::format("{:02d} {} {}", date.tm_mday, kMonths[date.tm_mon], 1900 + date.tm_year);
}

void check_roles(std::span<const ChatMessage> messages, const ChatFormat& format) {
  if (messages.empty()) fail("chat: a conversation needs at least one message, got none");
  for (const ChatMessage& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      fail("chat: a message's role must be system, user or assistant, got '{}'", printable(message.role));
    }
  }
  const bool system = messages.front().role == "system";
  if (system && format.system_place == System::kRefused) {
    fail("chat: this model's template ({}) takes no system message", format.name);
  }
  if (!format.alternates) return;
  const auto turns = messages.subspan(system ? 1 : 0);
  for (size_t i = 0; i < turns.size(); ++i) {
    if ((turns[i].role == "user") == (i % 2 == 0) && turns[i].role != "system") continue;
    fail("chat: this model's template ({}) wants user and assistant in turns; message {} is {}", format.name,
         i + 1 + (system ? 1 : 0), turns[i].role);
  }
}

size_t last_user(std::span<const ChatMessage> messages) {
  for (size_t i = messages.size(); i > 0; --i) {
    if (messages[i - 1].role == "user") return i - 1;
  }
  return messages.size();
}

void append_content(ChatText& out, std::string_view content) {
  if (content.empty()) return;
  out.contents.push_back({out.text.size(), out.text.size() + content.size()});
  out.text += content;
}

// White space at the text's end goes, back to `begin` at most.
void trim_end(ChatText& out, size_t begin) {
  const std::string_view tail = std::string_view(out.text).substr(begin);
  out.text.resize(begin + (tail.find_last_not_of(kTemplateSpace) + 1));
  for (TextRange& range : out.contents) range.end = std::min(range.end, out.text.size());
  std::erase_if(out.contents, [](const TextRange& range) { return range.begin >= range.end; });
}

// Qwen3: earlier answers lose their reasoning; the last one shows it (or none) in a block of its own.
void append_answer_with_thinking(ChatText& out, const std::string& content, bool after_last_query,
                                 bool is_last) {
  std::string answer = content, reasoning;
  const size_t end = content.rfind("</think>");
  if (end != std::string::npos) {
    answer = without(content.substr(end + 8), '\n', true, false);
    reasoning = without(content.substr(0, content.find("</think>")), '\n', false, true);
    const size_t begin = reasoning.rfind("<think>");
    if (begin != std::string::npos) reasoning = reasoning.substr(begin + 7);
    reasoning = without(reasoning, '\n', true, false);
  }
  if (!after_last_query || (!is_last && reasoning.empty())) return append_content(out, answer);
  out.text += "<think>\n";
  append_content(out, without(reasoning, '\n', true, true));
  out.text += "\n</think>\n\n";
  append_content(out, without(answer, '\n', true, false));
}

// A system message: the conversation's, or the template's own where that gives none.
struct SystemMessage {
  const std::string* text;  // null: none
  bool given;
};

void append_system(ChatText& out, const SystemMessage& system, bool trims) {
  const std::string_view text = trims ? trim(*system.text) : *system.text;
  if (system.given)
    append_content(out, text);
  else
    out.text += text;
}

void append_system_turn(ChatText& out, const ChatFormat& f, const SystemMessage& system) {
  out.text += f.system.open;
  if (!f.knowledge_line.empty())
    out.text += f.knowledge_line + "Today Date: " + (f.date.empty() ? today() : f.date) + "\n\n";
  append_system(out, system, f.trims);
  out.text += f.system.close;
}

// With the system message inside it, where this is the turn that carries it.
void append_user_turn(ChatText& out, const ChatFormat& f, std::string_view content,
                      const SystemMessage* system) {
  out.text += f.user.open;
  const size_t begin = out.text.size();
  if (system) {
    out.text += f.inner_system.open;
    append_system(out, *system, false);
    out.text += f.inner_system.close;
  }
  const bool whole = system && f.trims_with_system;
  append_content(out, f.trims && !whole ? trim(content) : content);
  if (whole) trim_end(out, begin);  // it begins with the system message's opening mark
  out.text += f.user.close;
}

void append_assistant_turn(ChatText& out, const ChatFormat& f, const std::string& content,
                           bool after_last_query, bool is_last) {
  out.text += f.assistant.open;
  const size_t begin = out.text.size();
  if (f.splits_thinking)
    append_answer_with_thinking(out, content, after_last_query, is_last);
  else
    append_content(out, f.trims ? trim(content) : content);
  out.text += is_last && !f.final_assistant_close.empty() ? f.final_assistant_close : f.assistant.close;
  out.answers.push_back({begin, out.text.size()});
}

}  // namespace

ChatTemplate ChatTemplate::recognise(std::string_view jinja, const std::string& bos, const std::string& eos) {
  for (const ChatFormatEntry& entry : chat_formats()) {
    if (!entry.matches(jinja)) continue;
    ChatFormat format = entry.read(jinja, bos, eos);
    format.name = entry.name;
    return ChatTemplate(std::move(format), bos);
  }
  fail("the model's chat template is none that is known ({}); it begins: {}", known_names(),
       printable(jinja, 60));
}

ChatTemplate ChatTemplate::named(std::string_view name, const std::string& bos, const std::string& eos) {
  for (const ChatFormatEntry& entry : chat_formats()) {
    if (name != entry.name) continue;
    ChatFormat format = entry.read("", bos, eos);
    format.name = entry.name;
    return ChatTemplate(std::move(format), bos);
  }
  throw UsageError(fmt::format("a chat format must be one of {}, got '{}'", known_names(), printable(name)));
}

std::string ChatTemplate::known_names() {
  std::string names;
  for (const ChatFormatEntry& entry : chat_formats())
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

ChatText ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  const ChatFormat& f = format_;
  check_roles(messages, f);
  const bool given = messages.front().role == "system";
  if (f.asks_for_system && !given) {
    fail(
        "chat: this model's template ({}) computes its own system message: expected one in the conversation, "
        "got none",
        f.name);
  }
  // Llama-2: a user who wrote the system message into the first turn needs no default.
  const bool inside =
      !f.inner_system.open.empty() && messages.front().content.find("<<SYS>>") != std::string::npos;
  const SystemMessage system{given                             ? &messages.front().content
                             : f.has_default_system && !inside ? &f.default_system
                                                               : nullptr,
                             given};
  const bool own_turn = f.system_place == System::kTurn;
  const size_t first = given ? 1 : 0, last = messages.size() - 1;
  const size_t query = last_user(messages);
  const size_t carrier = own_turn || !system.text              ? messages.size()
                         : f.system_place == System::kLastUser ? last
                                                               : first;

  ChatText out;
  out.text = f.bos_first ? bos_ : "";
  if (system.text && own_turn) append_system_turn(out, f, system);
  for (size_t i = first; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    if (role == "system") {
      out.text += f.system.open;
      append_content(out, f.trims ? trim(content) : content);
      out.text += f.system.close;
    } else if (role == "user") {
      append_user_turn(out, f, content, i == carrier ? &system : nullptr);
    } else {
      append_assistant_turn(out, f, content, i > query, i == last);
    }
  }
  if (add_generation_prompt) out.text += f.generation_prompt;
  return out;
}

// A token that is written as a mark is: <…> or […]. Others (line ends, words) are no marks of their own.
std::vector<int32_t> ChatTemplate::mark_ids(const Tokenizer& tokenizer) const {
  const ChatFormat& f = format_;
  std::vector<int32_t> marks;
  for (const std::string* text :
       {&bos_, &f.system.open, &f.system.close, &f.user.open, &f.user.close, &f.assistant.open,
        &f.assistant.close, &f.inner_system.open, &f.inner_system.close, &f.final_assistant_close}) {
    for (const int32_t id : tokenizer.encode(*text, {.add_special = false})) {
      const std::string token = tokenizer.token(id);
      if (token.size() > 1 && (token.front() == '<' || token.front() == '[')) marks.push_back(id);
    }
  }
  return marks;
}

std::vector<int32_t> ChatTemplate::encode(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                          bool add_generation_prompt) const {
  const ChatText chat = render(messages, add_generation_prompt);
  const std::vector<int32_t> marks = mark_ids(tokenizer);
  return tokenizer.encode(chat.text, {.add_special = false, .literal = chat.contents, .marks = marks});
}

}  // namespace fathom
