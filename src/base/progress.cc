#include "base/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/format.h"

namespace fathom {
namespace {

bool stderr_is_terminal() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && terminal && std::string_view(terminal) != "dumb";
}

}  // namespace

Progress::Progress(std::string label, int64_t total, std::chrono::milliseconds after)
    : label_(std::move(label)),
      total_(std::max<int64_t>(1, total)),
      shown_(stderr_is_terminal()),
      after_(after),
      start_(std::chrono::steady_clock::now()),
      drawn_(start_) {}

Progress::~Progress() {
  if (drawn_once_) std::fputs("\r\x1b[K", stderr);
}

void Progress::add(int64_t done) {
  done_ += done;
  const auto now = std::chrono::steady_clock::now();
  if (!shown_ || now - start_ < after_ || now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;
  drawn_once_ = true;
  draw();
}

void Progress::leave_out(int64_t count) {
  total_ = std::max<int64_t>(1, total_ - count);
}

void Progress::draw() const {
  static constexpr int kWidth = 24;
  const double share = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const double elapsed = std::chrono::duration<double>(drawn_ - start_).count();
  const int full = static_cast<int>(share * kWidth);
  std::string bar;
  for (int i = 0; i < kWidth; ++i) bar += i < full ? "█" : "░";
  const double left = share > 0 ? elapsed / share - elapsed : 0;
  std::fputs(fmt::format("\r\x1b[K{} {} {:3.0f} %  {:.0f} s left", label_, bar, 100 * share, left).c_str(),
             stderr);
}

std::string bytes_text(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  return unit == 0 || value >= 100 ? fmt::format("{:.0f} {}", value, kUnits[unit])
                                   : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace fathom
