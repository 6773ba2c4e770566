// Lines from a person (with editing and history, when stdin is a terminal) or from a pipe.
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

  // The next line without its end; none at the end of the input or after Ctrl-C.
  std::optional<std::string> next();

 private:
  struct Editor;
  std::unique_ptr<Editor> editor_;
};

}  // namespace fathom
