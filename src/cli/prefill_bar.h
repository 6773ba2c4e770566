// How far a prompt has been read: a bar on a terminal, after a second.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "base/progress.h"

namespace fathom {

class PrefillBar {
 public:
  explicit PrefillBar(int64_t tokens) { bar_.emplace("reading the prompt", tokens, std::chrono::seconds(1)); }

  // rows: of the prompt, in the cache by now.
  void read(int64_t rows) {
    if (bar_) bar_->add(rows - std::exchange(read_, rows));
  }
  void end() { bar_.reset(); }  // wipes it

 private:
  int64_t read_ = 0;
  std::optional<Progress> bar_;
};

}  // namespace fathom
