#include "infer/stop_strings.h"

#include <algorithm>

#include "base/error.h"

namespace fathom {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) throw UsageError("a stop string must not be empty");
  }
}

std::string StopStrings::feed(std::string_view piece) {
  if (stopped()) return "";
  held_ += piece;

  size_t start = 0, end = std::string::npos;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t at = held_.find(stops_[i]);
    if (at == std::string::npos) continue;
    const size_t until = at + stops_[i].size();
    if (until > end || (until == end && at >= start)) continue;
    start = at;
    end = until;
    match_ = static_cast<int>(i);
  }
  if (stopped()) {
    std::string shown = held_.substr(0, start);
    held_.clear();
    return shown;
  }

  size_t hold = 0;  // the longest tail that is the beginning of a stop string
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > hold; --n) {
      if (std::string_view(held_).substr(held_.size() - n) == std::string_view(stop).substr(0, n)) hold = n;
    }
  }
  std::string shown = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return shown;
}

std::string StopStrings::flush() {
  std::string shown;
  std::swap(shown, held_);
  return shown;
}

}  // namespace fathom
