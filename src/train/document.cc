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
  marks_ = chat_->mark_ids(tokenizer_);
  return *chat_;
}

Document DocumentReader::conversation(std::vector<ChatMessage> messages) {
  ChatText chat_text = chat().render(messages, false);
  if (chat_text.answers.empty()) fail("expected a conversation with an assistant's turn, it has none");
  Document document;
  document.rendered = true;
  document.learn_all = false;
  document.text = std::move(chat_text.text);
  document.learned = std::move(chat_text.answers);  // with their closing marks: the model must learn to stop
  document.contents = std::move(chat_text.contents);
  document.marks = marks_;
  return document;
}

}  // namespace fathom
