#include "train/train_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/format.h"
#include "base/log.h"

namespace fathom {
namespace {

std::string duration(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  if (seconds < 5400) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

}  // namespace

std::string bar_text(int64_t step, int64_t last, const StepFigures& figures, double seconds_left) {
  static constexpr int64_t kWidth = 20;
  const int64_t full = last > 0 ? std::clamp<int64_t>(step * kWidth / last, 0, kWidth) : 0;
  std::string bar;
  for (int64_t i = 0; i < kWidth; ++i) bar += i < full ? "█" : "░";
  return fmt::format("step {}/{} {}  loss {:.4f}  {:.0f} tok/s  skipped {:.1f} %  {} left", step, last, bar,
                     figures.loss, figures.tokens_per_s, 100 * figures.skip_ratio, duration(seconds_left));
}

std::string line_text(int64_t step, int64_t last, const StepFigures& figures, double seconds_left) {
  return fmt::format("step {} of {}: loss {:.4f}, {:.0f} tokens/s, skipped {:.1f} %, {} left", step, last,
                     figures.loss, figures.tokens_per_s, 100 * figures.skip_ratio, duration(seconds_left));
}

TrainBar::TrainBar(int64_t first, int64_t last, std::chrono::seconds lines)
    : first_(first), last_(last), start_(std::chrono::steady_clock::now()), last_drawn_(start_) {
  const char* terminal = std::getenv("TERM");
  shown_ = isatty(STDERR_FILENO) == 1 && terminal && std::string_view(terminal) != "dumb";
  every_ = shown_ ? std::chrono::milliseconds(100) : lines;
}

TrainBar::~TrainBar() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void TrainBar::show(int64_t step, const StepFigures& figures) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_drawn_ < every_) return;
  last_drawn_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const auto done = static_cast<double>(std::max<int64_t>(1, step - first_));
  const double left = elapsed / done * static_cast<double>(last_ - step);
  if (!shown_) return log_info(line_text(step, last_, figures, left));
  drawn_ = true;
  std::fputs(("\r\x1b[K" + bar_text(step, last_, figures, left)).c_str(), stderr);
}

}  // namespace fathom
