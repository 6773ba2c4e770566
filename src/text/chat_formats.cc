#include "text/chat_formats.h"

#include <initializer_list>

#include "text/chatml_shape.h"

namespace fathom {
namespace {

using System = ChatFormat::System;

bool has_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  for (std::string_view part : parts) {
    if (contains(text, part)) return true;
  }
  return false;
}

// Both spellings of a piece of code that holds quotes: with ' and with ".
bool has_code(std::string_view text, std::string_view with_single_quotes) {
  std::string other(with_single_quotes);
  for (char& c : other) c = c == '\'' ? '"' : c;
  return contains(text, with_single_quotes) || contains(text, other);
}

// Whether every <|marker|> in the text is one of `known`. A template with more markers does more than we know
// of.
bool markers_are(std::string_view text, std::initializer_list<std::string_view> known) {
  for (size_t at = text.find("<|"); at != std::string_view::npos; at = text.find("<|", at + 2)) {
    const size_t end = text.find("|>", at);
    if (end == std::string_view::npos) return true;
    const std::string_view marker = text.substr(at + 2, end - at - 2);
    bool found = false;
    for (std::string_view name : known) found = found || marker == name;
    if (!found) return false;
  }
  return true;
}

// The string literal that starts at jinja[*at] (a quote), its escapes undone; *at moves to its closing quote.
std::string read_literal(std::string_view jinja, size_t* at) {
  const char quote = jinja[*at];
  std::string literal;
  for (++*at; *at < jinja.size() && jinja[*at] != quote; ++*at) {
    const bool escape = jinja[*at] == '\\' && *at + 1 < jinja.size();
    literal += escape ? unescaped(jinja[++*at]) : jinja[*at];
  }
  return literal;
}

// Every string literal inside {{ }} and {% %}, its escapes undone, and every stretch of plain text between
// them.
std::vector<std::string> literals(std::string_view jinja) {
  std::vector<std::string> out(1);
  bool in_code = false;
  for (size_t i = 0; i < jinja.size(); ++i) {
    const std::string_view two = jinja.substr(i, 2);
    if (!in_code && (two == "{{" || two == "{%" || two == "{#")) {
      in_code = true;
      ++i;
    } else if (in_code && (two == "}}" || two == "%}" || two == "#}")) {
      in_code = false;
      out.emplace_back();
      ++i;
    } else if (!in_code) {
      out.back() += jinja[i];
    } else if (jinja[i] == '\'' || jinja[i] == '"') {
      out.push_back(read_literal(jinja, &i));
    }
  }
  return out;
}

// The text between `open` and `close` inside one literal.
bool literal_between(std::string_view jinja, std::string_view open, std::string_view close,
                     std::string* found) {
  for (const std::string& literal : literals(jinja)) {
    const size_t begin = literal.find(open);
    if (begin == std::string::npos) continue;
    const size_t end = literal.find(close, begin + open.size());
    if (end == std::string::npos) continue;
    *found = literal.substr(begin + open.size(), end - begin - open.size());
    return true;
  }
  return false;
}

// The literal that `{% set name = '…' %}` gives; false when it is none.
bool literal_set_to(std::string_view jinja, std::string_view name, std::string* found) {
  for (size_t at = jinja.find(name); at != std::string_view::npos; at = jinja.find(name, at + 1)) {
    size_t i = at + name.size();
    while (i < jinja.size() && jinja[i] == ' ') ++i;
    if (i >= jinja.size() || jinja[i] != '=') continue;
    ++i;
    while (i < jinja.size() && jinja[i] == ' ') ++i;
    if (i >= jinja.size() || (jinja[i] != '\'' && jinja[i] != '"')) continue;
    *found = read_literal(jinja, &i);
    if (!found->empty()) return true;
  }
  return false;
}

bool trims_content(std::string_view jinja) {
  return has_any(jinja, {"| trim", "|trim", ".strip()"});
}

bool is_chatml(std::string_view jinja) {
  return writes_chatml(jinja) && !has_any(jinja, {"<end_of_utterance>", "reasoning_mode"}) &&
         markers_are(jinja, {"im_start", "im_end", "endoftext", "vision_start", "vision_end", "image_pad",
                             "video_pad"});
}

ChatFormat chatml(std::string_view jinja, const std::string&, const std::string&) {
  ChatFormat f;
  f.system = {"<|im_start|>system\n", "<|im_end|>\n"};
  f.user = {"<|im_start|>user\n", "<|im_end|>\n"};
  f.assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"};
  f.generation_prompt = f.assistant.open;
  f.bos_first = contains(jinja, "bos_token");
  f.splits_thinking = has_code(jinja, ".split('</think>')");
  f.trims = !f.splits_thinking && trims_content(jinja);
  f.has_default_system = literal_between(jinja, f.system.open, "<|im_end|>", &f.default_system);
  return f;
}

bool is_llama2(std::string_view jinja) {
  return contains(jinja, "[INST]") && contains(jinja, "<<SYS>>");
}

ChatFormat llama2(std::string_view jinja, const std::string& bos, const std::string& eos) {
  ChatFormat f;
  const bool plain = jinja.empty();
  const bool bos_each_turn = plain || has_code(jinja, "bos_token + '[INST]");
  f.user = {(bos_each_turn ? bos : "") + "[INST] ", " [/INST]"};
  f.assistant = {" ", " " + eos};
  f.bos_first = !bos_each_turn && contains(jinja, "bos_token");
  f.trims = f.trims_with_system = plain || trims_content(jinja);
  f.alternates = true;
  f.system_place = System::kFirstUser;
  f.inner_system = {"<<SYS>>\n", "\n<</SYS>>\n\n"};
  f.has_default_system = literal_set_to(jinja, "system_message", &f.default_system);
  return f;
}

bool is_llama3(std::string_view jinja) {
  return contains(jinja, "<|start_header_id|>") && contains(jinja, "<|eot_id|>") &&
         markers_are(jinja, {"begin_of_text", "start_header_id", "end_header_id", "eot_id", "eom_id",
                             "python_tag", "image"});
}

ChatFormat llama3(std::string_view jinja, const std::string&, const std::string&) {
  ChatFormat f;
  const auto turn = [](const char* role) {
    return ChatFormat::Turn{std::string("<|start_header_id|>") + role + "<|end_header_id|>\n\n",
                            "<|eot_id|>"};
  };
  f.system = turn("system");
  f.user = turn("user");
  f.assistant = turn("assistant");
  f.generation_prompt = f.assistant.open;
  f.bos_first = jinja.empty() || has_any(jinja, {"bos_token", "<|begin_of_text|>"});
  f.trims = jinja.empty() || trims_content(jinja);
  for (const std::string& literal : literals(jinja)) {
    if (literal.starts_with("Cutting Knowledge Date: ")) f.knowledge_line = literal;
  }
  if (!f.knowledge_line.empty()) {
    f.has_default_system = true;
    if (!contains(jinja, "strftime_now")) literal_set_to(jinja, "date_string", &f.date);
  } else {
    f.has_default_system = literal_between(jinja, f.system.open, "<|eot_id|>", &f.default_system);
  }
  return f;
}

bool is_mistral(std::string_view jinja) {
  return contains(jinja, "[INST]") && !contains(jinja, "<<SYS>>") && markers_are(jinja, {});
}

ChatFormat mistral(std::string_view jinja, const std::string&, const std::string& eos) {
  ChatFormat f;
  const bool plain = jinja.empty();
  const bool space_before = has_code(jinja, "' [INST] '");
  const bool space_after = plain || space_before || has_code(jinja, "'[INST] '");
  f.user = {std::string(space_before ? " " : "") + "[INST]" + (space_after ? " " : ""),
            plain || has_code(jinja, "' [/INST]'") ? " [/INST]" : "[/INST]"};
  f.assistant = {plain || has_code(jinja, "' ' + message") ? " " : "",
                 eos + (has_code(jinja, "eos_token + ' '") ? " " : "")};
  f.bos_first = plain || contains(jinja, "bos_token");
  f.alternates = !contains(jinja, "[SYSTEM_PROMPT]");
  f.inner_system = {"", "\n\n"};
  if (contains(jinja, "[SYSTEM_PROMPT]")) {
    f.system_place = System::kTurn;
    f.system = {has_code(jinja, "'[SYSTEM_PROMPT] '") ? "[SYSTEM_PROMPT] " : "[SYSTEM_PROMPT]",
                "[/SYSTEM_PROMPT]"};
    f.asks_for_system = contains(jinja, "default_system_message");
  } else if (contains(jinja, "loop.last and system_message")) {
    f.system_place = System::kLastUser;
  } else {
    f.system_place = plain || contains(jinja, "system_message") ? System::kFirstUser : System::kRefused;
  }
  return f;
}

bool is_gemma(std::string_view jinja) {
  return contains(jinja, "<start_of_turn>") && markers_are(jinja, {});
}

ChatFormat gemma(std::string_view jinja, const std::string&, const std::string&) {
  ChatFormat f;
  f.user = {"<start_of_turn>user\n", "<end_of_turn>\n"};
  f.assistant = {"<start_of_turn>model\n", "<end_of_turn>\n"};
  f.generation_prompt = f.assistant.open;
  f.bos_first = jinja.empty() || contains(jinja, "bos_token");
  f.trims = true;
  f.alternates = true;
  f.inner_system = {"", "\n\n"};
  f.system_place =
      jinja.empty() || contains(jinja, "first_user_prefix") ? System::kFirstUser : System::kRefused;
  return f;
}

bool has_role_markers(std::string_view jinja) {
  return contains(jinja, "<|user|>") && contains(jinja, "<|assistant|>") &&
         markers_are(jinja, {"user", "assistant", "system", "endoftext"});
}

// Zephyr ends the user's turn with EOS, OLMo-2 (Tülu) with a line end alone.
bool user_turn_has_eos(std::string_view jinja) {
  const size_t user = jinja.find("<|user|>");
  const std::string_view expression = jinja.substr(user, jinja.find("}}", user) - user);
  return has_any(expression, {"eos_token", "</s>", "<|endoftext|>"});
}

bool is_zephyr(std::string_view jinja) {
  return has_role_markers(jinja) && user_turn_has_eos(jinja);
}
bool is_olmo2(std::string_view jinja) {
  return has_role_markers(jinja) && !user_turn_has_eos(jinja);
}

ChatFormat zephyr(std::string_view jinja, const std::string&, const std::string& eos) {
  ChatFormat f;
  f.system = {"<|system|>\n", eos + "\n"};
  f.user = {"<|user|>\n", eos + "\n"};
  f.assistant = {"<|assistant|>\n", eos + "\n"};
  f.generation_prompt = f.assistant.open;
  f.bos_first = contains(jinja, "bos_token");
  f.trims = trims_content(jinja);
  return f;
}

ChatFormat olmo2(std::string_view jinja, const std::string&, const std::string& eos) {
  ChatFormat f;
  f.system = {"<|system|>\n", "\n"};
  f.user = {"<|user|>\n", "\n"};
  f.assistant = {"<|assistant|>\n", eos + "\n"};
  f.final_assistant_close = eos;
  f.generation_prompt = f.assistant.open;
  f.bos_first = jinja.empty() || contains(jinja, "bos_token");
  f.trims = trims_content(jinja);
  return f;
}

// Llama-2 before Mistral: both have [INST].
constexpr ChatFormatEntry kFormats[] = {
    {"chatml", is_chatml, chatml},    {"llama2", is_llama2, llama2}, {"llama3", is_llama3, llama3},
    {"mistral", is_mistral, mistral}, {"gemma", is_gemma, gemma},    {"zephyr", is_zephyr, zephyr},
    {"olmo2", is_olmo2, olmo2},
};

}  // namespace

std::span<const ChatFormatEntry> chat_formats() {
  return kFormats;
}

}  // namespace fathom
