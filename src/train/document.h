// Documents to learn from, out of text and JSONL files.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace fathom {

struct Document {
  std::string text;
  bool learn_all = true;
  std::vector<TextRange> learned;  // the answers, ascending; where not all is learned
  // A conversation as the template wrote it: the template's special tokens are tokens, and BOS and EOS are
  // where they belong. What messages say (`contents`) stays text, `marks` included (EncodeOptions).
  bool rendered = false;
  std::vector<TextRange> contents;
  std::vector<int32_t> marks;
};

struct DocumentOptions {
  std::string chat_template;     // by name; "": the tokenizer's own
  bool prompts_as_chat = false;  // a prompt and its answer become a user's and an assistant's turn
};

// One file, document by document. Text: documents stand between lines "<|endoftext|>". JSONL (.jsonl, .json,
// .ndjson): each line an object with "text"; or a prompt ("prompt" or "instruction", with "input" or
// "context" after it) and its answer ("answer", "response", "completion" or "output"); or "messages".
class DocumentReader {
 public:
  DocumentReader(const std::string& path, const Tokenizer& tokenizer, DocumentOptions options);

  // False at the end. A line that does not fit is a UserError "FILE:LINE: …"; documents without text are
  // left out.
  bool next(Document& document);
  size_t bytes_read() const { return at_; }
  size_t bytes() const { return bytes_.size(); }
  std::string_view content() const { return bytes_; }

 private:
  bool next_text(Document& document);
  bool next_json(Document& document);
  std::string_view next_line();
  Document parse_line(std::string_view line);
  Document conversation(std::vector<ChatMessage> messages);
  const ChatTemplate& chat();

  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  std::string_view bytes_;
  const Tokenizer& tokenizer_;
  DocumentOptions options_;
  std::unique_ptr<ChatTemplate> chat_;
  std::vector<int32_t> marks_;  // of chat_
  bool json_ = false;
  size_t at_ = 0;
  int64_t line_ = 0;
};

}  // namespace fathom
