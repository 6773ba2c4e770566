#include "cli/line_reader.h"

#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <iostream>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace fathom {
namespace {

// A terminal that is asked to puts what is pasted between these.
constexpr const char *kAsk = "\x1b[?2004h", *kAskNoMore = "\x1b[?2004l";
constexpr const char* kPasteBegins = "\x1b[200~";
constexpr std::wstring_view kPasteEnds = L"\x1b[201~";
constexpr size_t kMostPasted = size_t{1} << 24;
constexpr std::string_view kMarkBegins = "[pasted text ";

// Numbers stay as they are. Plain ASCII, which an unknown locale falls back to, would lose every other
// character.
void use_terminals_characters() {
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) == "ANSI_X3.4-1968") std::setlocale(LC_CTYPE, "C.UTF-8");
}

// The C library's wide characters are code points in every locale.
std::string utf8_of(std::wstring_view text) {
  std::string out;
  for (const wchar_t each : text) {
    const auto value = static_cast<char32_t>(each);
    const bool valid = value < 0xD800 || (value > 0xDFFF && value <= 0x10FFFF);
    append_utf8(out, valid ? value : U'\uFFFD');
  }
  return out;
}

struct Paste {
  std::string mark, text;
};

}  // namespace

struct LineReader::Editor {
  EditLine* line = nullptr;
  HistoryW* past = nullptr;
  HistEventW event{};
  bool goes_on = false;       // the prompt of a line that continues another
  std::vector<Paste> pasted;  // texts of several lines. All stay: the history keeps their marks.

  Editor() {
    line = el_init("fathom", stdin, stdout, stderr);
    past = history_winit();
    history_w(past, &event, H_SETSIZE, 1000);
    char* (*prompt)(EditLine*) = [](EditLine* of) {
      static char first[] = "> ", further[] = ". ";
      return self(of).goes_on ? further : first;
    };
    unsigned char (*paste)(EditLine*, int) = [](EditLine* of, int) { return self(of).take_paste(); };
    el_set(line, EL_CLIENTDATA, this);
    el_set(line, EL_PROMPT, prompt);
    el_set(line, EL_EDITOR, "emacs");
    el_wset(line, EL_HIST, history_w, past);
    el_set(line, EL_SIGNAL, 1);  // Ctrl-C gives the terminal back before our handler sees it
    el_set(line, EL_ADDFN, "fathom-paste", "Take what is pasted", paste);
    el_set(line, EL_BIND, kPasteBegins, "fathom-paste", nullptr);
    ask(kAsk);
  }
  ~Editor() {
    ask(kAskNoMore);
    history_wend(past);
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

  // One line of text goes into the line as it is. More become a mark, which next() replaces.
  unsigned char take_paste() {
    std::wstring text;
    wchar_t c = 0;
    while (!text.ends_with(kPasteEnds) && text.size() < kMostPasted && el_wgetc(line, &c) == 1)
      text += c == L'\r' ? L'\n' : c;
    if (text.ends_with(kPasteEnds)) text.resize(text.size() - kPasteEnds.size());
    while (text.ends_with(L'\n')) text.pop_back();
    if (const auto ends = std::count(text.begin(), text.end(), L'\n'); ends > 0) {
      const std::string mark = std::string(kMarkBegins) + std::to_string(pasted.size() + 1) + ", " +
                               std::to_string(ends + 1) + " lines]";
      pasted.push_back({mark, utf8_of(text)});
      text.assign(mark.begin(), mark.end());
    }
    el_winsertstr(line, text.c_str());
    return CC_REFRESH;
  }
  // A mark inside a pasted text is text.
  std::string with_pasted(std::string text) const {
    for (size_t at = 0; (at = text.find(kMarkBegins, at)) != std::string::npos;) {
      const auto paste = std::find_if(pasted.begin(), pasted.end(), [&](const Paste& each) {
        return text.compare(at, each.mark.size(), each.mark) == 0;
      });
      if (paste != pasted.end()) text.replace(at, paste->mark.size(), paste->text);
      at += paste != pasted.end() ? paste->text.size() : kMarkBegins.size();
    }
    return text;
  }
};

LineReader::LineReader() {
  if (isatty(STDIN_FILENO) != 1 || isatty(STDOUT_FILENO) != 1) return;
  use_terminals_characters();
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
    const wchar_t* read = el_wgets(editor_->line, &count);
    if (!read || count <= 0) {
      std::fputs("\n", stdout);  // the shell's own prompt is to begin a line
      return std::nullopt;
    }
    const std::wstring typed(read, static_cast<size_t>(count));
    if (typed.find_first_not_of(L" \t\n") != std::wstring::npos)
      history_w(editor_->past, &editor_->event, H_ENTER, typed.c_str());
    text = utf8_of(typed);
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
  if (!line) return std::nullopt;  // a person who gives up did not mean to send the half
  return editor_->with_pasted(std::move(message));
}

}  // namespace fathom
