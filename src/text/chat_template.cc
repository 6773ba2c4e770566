#include "text/chat_template.h"

#include <cstdio>
#include <ctime>

#include "base/format.h"
#include "text/chat_formats.h"

namespace fathom {
namespace {

using System = ChatFormat::System;

// As Python's str.strip(), for ASCII white space.
std::string_view trim(std::string_view text) {
  const char* const space = " \t\n\r\v\f";
  const size_t begin = text.find_first_not_of(space);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(space) - begin + 1);
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

// Qwen3: earlier answers lose their reasoning; the last one shows it (or none) in a block of its own.
std::string answer_with_thinking(const std::string& content, bool after_last_query, bool is_last) {
  std::string answer = content, reasoning;
  const size_t end = content.rfind("</think>");
  if (end != std::string::npos) {
    answer = without(content.substr(end + 8), '\n', true, false);
    reasoning = without(content.substr(0, content.find("</think>")), '\n', false, true);
    const size_t begin = reasoning.rfind("<think>");
    if (begin != std::string::npos) reasoning = reasoning.substr(begin + 7);
    reasoning = without(reasoning, '\n', true, false);
  }
  if (!after_last_query || (!is_last && reasoning.empty())) return answer;
  return "<think>\n" + without(reasoning, '\n', true, true) + "\n</think>\n\n" +
         without(answer, '\n', true, false);
}

std::string system_turn(const ChatFormat& f, std::string_view content) {
  std::string text = f.system.open;
  if (!f.knowledge_line.empty()) {
    text += f.knowledge_line + "Today Date: " + (f.date.empty() ? today() : f.date) + "\n\n";
  }
  return text + std::string(f.trims ? trim(content) : content) + f.system.close;
}

// The user's content with the system message inside it where this is the turn that carries it.
std::string user_content(const ChatFormat& f, const std::string& content, const std::string* system) {
  if (!system) return std::string(f.trims ? trim(content) : content);
  const std::string before = f.inner_system.open + *system + f.inner_system.close;
  if (f.trims_with_system) return std::string(trim(before + content));
  return before + std::string(f.trims ? trim(content) : content);
}

}  // namespace

ChatTemplate ChatTemplate::recognise(std::string_view jinja, const std::string& bos, const std::string& eos) {
  for (const ChatFormatEntry& entry : chat_formats()) {
    if (!entry.matches(jinja)) continue;
    ChatFormat format = entry.read(jinja, bos, eos);
    format.name = entry.name;
    return ChatTemplate(std::move(format), bos);
  }
  fail("the model's chat template is none that is known ({}); choose one with --chat-template. It begins: {}",
       known_names(), printable(jinja, 60));
}

ChatTemplate ChatTemplate::named(std::string_view name, const std::string& bos, const std::string& eos) {
  for (const ChatFormatEntry& entry : chat_formats()) {
    if (name != entry.name) continue;
    ChatFormat format = entry.read("", bos, eos);
    format.name = entry.name;
    return ChatTemplate(std::move(format), bos);
  }
  throw UsageError(
      fmt::format("--chat-template must be one of {}, got '{}'", known_names(), printable(name)));
}

std::string ChatTemplate::known_names() {
  std::string names;
  for (const ChatFormatEntry& entry : chat_formats())
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  const ChatFormat& f = format_;
  check_roles(messages, f);
  const bool given = messages.front().role == "system";
  if (f.asks_for_system && !given) {
    fail("chat: this model's template ({}) computes its own system message; give one with --system", f.name);
  }
  // Llama-2: a user who wrote the system message into the first turn needs no default.
  const bool inside =
      !f.inner_system.open.empty() && messages.front().content.find("<<SYS>>") != std::string::npos;
  const std::string* system = given                             ? &messages.front().content
                              : f.has_default_system && !inside ? &f.default_system
                                                                : nullptr;
  const bool own_turn = f.system_place == System::kTurn;
  const size_t first = given ? 1 : 0, last = messages.size() - 1;
  const size_t query = last_user(messages);
  const size_t carrier = own_turn || !system                   ? messages.size()
                         : f.system_place == System::kLastUser ? last
                                                               : first;

  std::string text = f.bos_first ? bos_ : "";
  if (system && own_turn) text += system_turn(f, *system);
  for (size_t i = first; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    if (role == "system") {
      text += f.system.open + std::string(f.trims ? trim(content) : content) + f.system.close;
    } else if (role == "user") {
      text += f.user.open + user_content(f, content, i == carrier ? system : nullptr) + f.user.close;
    } else {
      const bool closes = i == last && !f.final_assistant_close.empty();
      text += f.assistant.open;
      text += f.splits_thinking ? answer_with_thinking(content, i > query, i == last)
                                : std::string(f.trims ? trim(content) : content);
      text += closes ? f.final_assistant_close : f.assistant.close;
    }
  }
  return add_generation_prompt ? text + f.generation_prompt : text;
}

}  // namespace fathom
