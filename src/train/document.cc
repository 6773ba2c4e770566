#include "train/document.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/format.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSeparator = "<|endoftext|>";
constexpr std::array<const char*, 2> kPrompts{"prompt", "instruction"}, kInputs{"input", "context"};
constexpr std::array<const char*, 4> kAnswers{"answer", "response", "completion", "output"};

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

bool is_blank(std::string_view text) {
  return std::all_of(text.begin(), text.end(), is_space);
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// The value of the first of these keys that the object has; null: none.
template <size_t N>
const Json* find_any(const Json& object, const std::array<const char*, N>& keys) {
  for (const char* key : keys) {
    const auto found = object.find(key);
    if (found != object.end()) return &*found;
  }
  return nullptr;
}

const std::string& text_of(const Json& value, const char* what) {
  if (!value.is_string()) fail("expected {} to be a string, got {}", what, printable(value.dump(), 40));
  return value.get_ref<const std::string&>();
}

std::vector<ChatMessage> messages_of(const Json& list) {
  if (!list.is_array() || list.empty())
    fail("expected \"messages\" to be a list of turns, got {}", printable(list.dump(), 40));
  std::vector<ChatMessage> messages;
  for (const Json& turn : list) {
    if (!turn.is_object() || !turn.contains("role") || !turn.contains("content"))
      fail("expected each of \"messages\" to have \"role\" and \"content\", got {}",
           printable(turn.dump(), 60));
    messages.push_back({text_of(turn["role"], "\"role\""), text_of(turn["content"], "\"content\"")});
  }
  return messages;
}

std::string keys_of(const Json& object) {
  std::string keys;
  for (const auto& item : object.items()) keys += (keys.empty() ? "" : ", ") + item.key();
  return keys.empty() ? "none" : keys;
}

// A prompt and what answers it, as written; a line end between them where neither brings white space.
Document prompt_and_answer(std::string prompt, const std::string& answer) {
  if (!prompt.empty() && !answer.empty() && !is_space(prompt.back()) && !is_space(answer.front()))
    prompt += '\n';
  Document document;
  document.learn_all = false;
  document.learned = {{prompt.size(), prompt.size() + answer.size()}};
  document.text = std::move(prompt) + answer;
  return document;
}

// What of an assistant's message the template writes as it is.
std::string_view answer_part(std::string_view content, const ChatFormat& format) {
  const size_t reasoning = format.splits_thinking ? content.rfind("</think>") : std::string_view::npos;
  if (reasoning != std::string_view::npos) content.remove_prefix(reasoning + 8);
  return format.trims || format.splits_thinking ? trim(content) : content;
}

}  // namespace

DocumentReader::DocumentReader(const std::string& path, const Tokenizer& tokenizer, DocumentOptions options)
    : path_(path), file_(MappedFile::open(path)), tokenizer_(tokenizer), options_(std::move(options)) {
  const auto bytes = file_->bytes();
  bytes_ = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  json_ = ends_with(path, ".jsonl") || ends_with(path, ".json") || ends_with(path, ".ndjson");
}

bool DocumentReader::next(Document& document) {
  return json_ ? next_json(document) : next_text(document);
}

std::string_view DocumentReader::next_line() {
  const size_t begin = at_, end = std::min(bytes_.find('\n', begin), bytes_.size());
  at_ = std::min(end + 1, bytes_.size());
  ++line_;
  std::string_view line = bytes_.substr(begin, end - begin);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

bool DocumentReader::next_text(Document& document) {
  while (at_ < bytes_.size()) {
    const size_t begin = at_;
    size_t end = bytes_.size();
    while (at_ < bytes_.size()) {
      const size_t line_begin = at_;
      if (next_line() != kSeparator) continue;
      end = line_begin;
      break;
    }
    std::string_view text = bytes_.substr(begin, end - begin);
    if (end < bytes_.size() && !text.empty()) text.remove_suffix(1);  // the line end before the separator
    if (is_blank(text)) continue;
    document = {};
    document.text = text;
    return true;
  }
  return false;
}

bool DocumentReader::next_json(Document& document) {
  while (at_ < bytes_.size()) {
    const std::string_view line = next_line();
    if (is_blank(line)) continue;
    try {
      document = parse_line(line);
    } catch (const UserError& error) {
      fail("{}:{}: {}", printable(path_), line_, error.what());
    }
    if (!is_blank(document.text)) return true;
  }
  return false;
}

Document DocumentReader::parse_line(std::string_view line) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) fail("expected a JSON object, got {}", printable(line, 60));
  if (const auto messages = json.find("messages"); messages != json.end())
    return conversation(messages_of(*messages));
  const Json *prompt = find_any(json, kPrompts), *answer = find_any(json, kAnswers);
  if (prompt && answer) {
    std::string question = text_of(*prompt, "the prompt");
    if (const Json* input = find_any(json, kInputs); input && !text_of(*input, "the input").empty())
      question += "\n\n" + text_of(*input, "the input");
    const std::string& reply = text_of(*answer, "the answer");
    if (is_blank(reply)) fail("expected an answer, it is empty");
    if (options_.prompts_as_chat) return conversation({{"user", question}, {"assistant", reply}});
    return prompt_and_answer(std::move(question), reply);
  }
  const auto text = json.find("text");
  if (text == json.end()) {
    fail(
        "expected an object with \"text\", with \"prompt\" and \"answer\", or with \"messages\", got the "
        "keys "
        "{}",
        printable(keys_of(json)));
  }
  Document document;
  document.text = text_of(*text, "\"text\"");
  return document;
}

const ChatTemplate& DocumentReader::chat() {
  if (chat_) return *chat_;
  const auto written = [&](int32_t id) { return id < 0 ? std::string() : tokenizer_.token(id); };
  const std::string bos = written(tokenizer_.bos()), eos = written(tokenizer_.eos());
  if (options_.chat_template.empty() && tokenizer_.chat_template().empty())
    fail("a conversation needs a chat template and the tokenizer has none: set chat_template to one of {}",
         ChatTemplate::known_names());
  chat_ = std::make_unique<ChatTemplate>(options_.chat_template.empty()
                                             ? ChatTemplate::recognise(tokenizer_.chat_template(), bos, eos)
                                             : ChatTemplate::named(options_.chat_template, bos, eos));
  return *chat_;
}

// The assistant's turns are found in the rendered text by the marks before them and their contents, in order:
// a template may move other parts (Mistral's system message), but an answer stands between its marks as it
// was, less white space at its ends and, for Qwen3, less its reasoning.
Document DocumentReader::conversation(std::vector<ChatMessage> messages) {
  const ChatTemplate& chat_template = chat();
  const ChatFormat& format = chat_template.format();
  Document document;
  document.rendered = true;
  document.learn_all = false;
  document.text = chat_template.render(messages, false);
  const std::string& text = document.text;
  size_t cursor = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") continue;
    const bool after_user = i > 0 && messages[i - 1].role == "user";
    const std::string mark = (after_user ? format.user.close : "") + format.assistant.open;
    const size_t found = text.find(mark, cursor), begin = found + mark.size();
    const std::string_view answer = answer_part(messages[i].content, format);
    const size_t at = found == std::string::npos ? found : text.find(answer, begin);
    if (at == std::string::npos || (at != begin && !format.splits_thinking))
      fail("the chat template wrote the answer '{}' in a way that is not known", printable(answer, 40));
    size_t end = at + answer.size();
    for (const std::string& close : {format.assistant.close, format.final_assistant_close}) {
      if (close.empty() || text.compare(end, close.size(), close) != 0) continue;
      end += close.size();  // the model must learn to stop
      break;
    }
    document.learned.push_back({begin, end});
    cursor = end;
  }
  if (document.learned.empty()) fail("expected a conversation with an assistant's turn, it has none");
  return document;
}

}  // namespace fathom
