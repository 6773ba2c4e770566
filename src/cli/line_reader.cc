#include "cli/line_reader.h"

#include <histedit.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <iostream>
#include <string_view>
#include <vector>

namespace fathom {
namespace {

// A terminal that is asked to puts what is pasted between these.
constexpr const char *kAsk = "\x1b[?2004h", *kAskNoMore = "\x1b[?2004l";
constexpr const char* kPasteBegins = "\x1b[200~";
constexpr std::string_view kPasteEnds = "\x1b[201~";
constexpr size_t kMostPasted = size_t{1} << 24;

}  // namespace

struct LineReader::Editor {
  EditLine* line = nullptr;
  History* past = nullptr;
  HistEvent event{};
  bool goes_on = false;             // the prompt of a line that continues another
  std::vector<std::string> pasted;  // texts of several lines, which stand in the line by their marks

  Editor() {
    line = el_init("fathom", stdin, stdout, stderr);
    past = history_init();
    history(past, &event, H_SETSIZE, 1000);
    char* (*prompt)(EditLine*) = [](EditLine* of) {
      static char first[] = "> ", further[] = ". ";
      return self(of).goes_on ? further : first;
    };
    unsigned char (*paste)(EditLine*, int) = [](EditLine* of, int) { return self(of).take_paste(); };
    el_set(line, EL_CLIENTDATA, this);
    el_set(line, EL_PROMPT, prompt);
    el_set(line, EL_EDITOR, "emacs");
    el_set(line, EL_HIST, history, past);
    el_set(line, EL_SIGNAL, 1);  // Ctrl-C gives the terminal back before our handler sees it
    el_set(line, EL_ADDFN, "fathom-paste", "Take what is pasted", paste);
    el_set(line, EL_BIND, kPasteBegins, "fathom-paste", nullptr);
    ask(kAsk);
  }
  ~Editor() {
    ask(kAskNoMore);
    history_end(past);
    el_end(line);
  }

  static Editor& self(EditLine* of) {
    Editor* editor = nullptr;
    el_get(of, EL_CLIENTDATA, &editor);
    return *editor;
  }
  static void ask(const char* what) {
    std::fputs(what, stdout);
    std::fflush(stdout);
  }
  static std::string mark_of(size_t index, const std::string& text) {
    const auto lines = std::count(text.begin(), text.end(), '\n') + 1;
    return "[pasted text " + std::to_string(index + 1) + ", " + std::to_string(lines) + " lines]";
  }

  // One line of text goes into the line as it is. More become a mark, which next() replaces.
  unsigned char take_paste() {
    std::string text;
    char c = 0;
    while (!text.ends_with(kPasteEnds) && text.size() < kMostPasted && el_getc(line, &c) == 1)
      text += c == '\r' ? '\n' : c;
    if (text.ends_with(kPasteEnds)) text.resize(text.size() - kPasteEnds.size());
    while (text.ends_with('\n')) text.pop_back();
    if (text.find('\n') != std::string::npos) {
      pasted.push_back(text);
      text = mark_of(pasted.size() - 1, text);
    }
    el_insertstr(line, text.c_str());
    return CC_REFRESH;
  }
  std::string with_pasted(std::string text) {
    for (size_t i = 0; i < pasted.size(); ++i) {
      const std::string mark = mark_of(i, pasted[i]);
      if (const size_t at = text.find(mark); at != std::string::npos)
        text.replace(at, mark.size(), pasted[i]);
    }
    return text;
  }
};

LineReader::LineReader() {
  if (isatty(STDIN_FILENO) != 1 || isatty(STDOUT_FILENO) != 1) return;
  std::setlocale(LC_CTYPE, "");  // characters as the terminal writes them; numbers stay as they are
  editor_ = std::make_unique<Editor>();
}

LineReader::~LineReader() = default;

std::optional<std::string> LineReader::next_line(bool goes_on) {
  std::string text;
  if (!editor_) {
    if (!std::getline(std::cin, text)) return std::nullopt;
  } else {
    int count = 0;
    editor_->goes_on = goes_on;
    const char* read = el_gets(editor_->line, &count);
    if (!read || count <= 0) {
      std::fputs("\n", stdout);  // the shell's own prompt is to begin a line
      return std::nullopt;
    }
    text.assign(read, static_cast<size_t>(count));
    if (text.find_first_not_of(" \t\n") != std::string::npos)
      history(editor_->past, &editor_->event, H_ENTER, text.c_str());
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

std::optional<std::string> LineReader::next() {
  std::string message;
  std::optional<std::string> line = next_line(false);
  if (!line) return std::nullopt;
  while (line && line->ends_with('\\')) {
    line->back() = '\n';
    message += *line;
    line = next_line(true);
  }
  if (line) message += *line;
  if (!editor_) return message;
  message = editor_->with_pasted(std::move(message));
  editor_->pasted.clear();
  return message;
}

}  // namespace fathom
