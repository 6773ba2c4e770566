// Messages from a person (with editing and history, when stdin is a terminal) or from a pipe.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace fathom {

class LineReader {
 public:
  LineReader();
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool is_terminal() const { return editor_ != nullptr; }

  // The next message without its line end; none at the end of the input or after Ctrl-C. A line that ends
  // with a backslash goes on in the next one; Ctrl-C drops the lines before it, too. On a terminal, text
  // that is pasted is one message, whatever line ends it has, and a message is UTF-8, whatever the locale.
  std::optional<std::string> next();

 private:
  std::optional<std::string> next_line(bool goes_on);
  struct Editor;
  std::unique_ptr<Editor> editor_;
};

}  // namespace fathom
