#include "cli/line_reader.h"

#include <histedit.h>
#include <unistd.h>

#include <clocale>
#include <iostream>

namespace fathom {

struct LineReader::Editor {
  EditLine* line = nullptr;
  History* past = nullptr;
  HistEvent event{};

  Editor() {
    line = el_init("fathom", stdin, stdout, stderr);
    past = history_init();
    history(past, &event, H_SETSIZE, 1000);
    char* (*prompt)(EditLine*) = [](EditLine*) {
      static char text[] = "> ";
      return text;
    };
    el_set(line, EL_PROMPT, prompt);
    el_set(line, EL_EDITOR, "emacs");
    el_set(line, EL_HIST, history, past);
    el_set(line, EL_SIGNAL, 1);  // Ctrl-C gives the terminal back before our handler sees it
  }
  ~Editor() {
    history_end(past);
    el_end(line);
  }
};

LineReader::LineReader() {
  if (isatty(STDIN_FILENO) != 1 || isatty(STDOUT_FILENO) != 1) return;
  std::setlocale(LC_CTYPE, "");  // characters as the terminal writes them; numbers stay as they are
  editor_ = std::make_unique<Editor>();
}

LineReader::~LineReader() = default;

std::optional<std::string> LineReader::next() {
  std::string text;
  if (!editor_) {
    if (!std::getline(std::cin, text)) return std::nullopt;
  } else {
    int count = 0;
    const char* read = el_gets(editor_->line, &count);
    if (!read || count <= 0) return std::nullopt;
    text.assign(read, static_cast<size_t>(count));
    if (text.find_first_not_of(" \t\n") != std::string::npos)
      history(editor_->past, &editor_->event, H_ENTER, text.c_str());
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

}  // namespace fathom
