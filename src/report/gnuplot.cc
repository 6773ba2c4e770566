#include "report/gnuplot.h"

#include <cstdlib>
#include <filesystem>

#include "base/format.h"
#include "base/mapped_file.h"
#include "base/process.h"
#include "io/atomic_file.h"
#include "text/unicode.h"

namespace fathom {
namespace {

// A folder of our own for scripts and tables, gone at the end.
class Workshop {
 public:
  Workshop() {
    std::error_code error;
    std::string pattern = (std::filesystem::temp_directory_path(error) / "fathom-plot-XXXXXX").string();
    if (!mkdtemp(pattern.data())) fail("no folder for temporary files could be made: {}", printable(pattern));
    path_ = pattern;
  }
  ~Workshop() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  Workshop(const Workshop&) = delete;
  Workshop& operator=(const Workshop&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Characters that gnuplot reads as something (quotes, escapes, command substitution) become ones that look
// like them.
std::string tamed(std::string_view text) {
  const std::string shown = printable(text, SIZE_MAX);
  std::string out;
  for (const char c : shown) {
    out += c == '"' ? "″" : c == '\'' ? "′" : c == '`' ? "ˋ" : c == '\\' ? "∖" : std::string(1, c);
  }
  return out;
}

}  // namespace

std::string plot_string(std::string_view text) {
  return "'" + tamed(text) + "'";
}

std::string plot_cell(std::string_view text) {
  return "\"" + tamed(text) + "\"";
}

std::string why_no_gnuplot() {
  try {
    const ProcessResult result = run_process({"gnuplot", "--version"});
    return result.exit_code == 0 ? "" : fmt::format("gnuplot --version failed (exit {})", result.exit_code);
  } catch (const UserError& error) {
    return error.what();
  }
}

void write_png(const std::string& path, const Plot& plot) {
  const Workshop folder;
  std::string script = fmt::format(
      "set terminal pngcairo noenhanced font 'DejaVu Sans,10' background '#ffffff' size {:.0f},{:.0f}\n"
      "set output {}\nset datafile separator '\\t'\nset datafile missing 'NaN'\n",
      plot.width, plot.height, plot_string(folder / "figure.png"));
  for (size_t i = 0; i < plot.tables.size(); ++i) {
    const std::string table = folder / fmt::format("table{}", i);
    write_file_atomically(table, plot.tables[i]);
    script += fmt::format("TABLE{} = {}\n", i, plot_string(table));
  }
  write_file_atomically(folder / "script", script + plot.commands);
  const ProcessResult result = run_process({"gnuplot", folder / "script"});
  if (result.exit_code != 0) fail_process("gnuplot", result);
  const std::string png = read_text_file(folder / "figure.png");
  if (png.empty()) fail_process("gnuplot", result);
  write_file_atomically(path, png);
}

}  // namespace fathom
