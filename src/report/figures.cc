#include "report/figures.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/format.h"
#include "base/log.h"
#include "io/atomic_file.h"

namespace fathom {

Figures::Figures(const std::string& folder) : folder_(folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::error_code unseen;
  if (!std::filesystem::is_directory(folder, unseen))
    fail("{}: the folder cannot be made: {}", printable(folder),
         error ? error.message() : "something else is there");
  if (access(folder.c_str(), W_OK) != 0)
    fail("{}: the folder cannot be written to: {}", printable(folder), std::strerror(errno));
  const std::string why = why_no_gnuplot();
  if (why.empty()) return;
  png_ = false;
  log_warn(fmt::format("no PNG figures, only SVG and HTML: {} (Debian package gnuplot-nox)", why));
}

void Figures::write(const std::string& name, const std::string& text) {
  write_file_atomically(folder_ + "/" + name, text);
  files_.push_back(name);
}

std::string Figures::add(const std::string& name, std::string svg, const Plot& plot) {
  write(name + ".svg", svg);
  if (!png_) return svg;
  try {
    write_png(folder_ + "/" + name + ".png", plot);
    files_.push_back(name + ".png");
  } catch (const UserError& error) {
    png_ = false;
    log_warn(fmt::format("no more PNG figures, only SVG and HTML: {}", error.what()));
  }
  return svg;
}

}  // namespace fathom
