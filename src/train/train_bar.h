// The line on the terminal while a model trains.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fathom {

struct StepFigures {
  double loss = 0, tokens_per_s = 0, skip_ratio = 0;
};

// "step 40/100 ████░░░░  loss 3.214  1 234 tok/s  skipped 20.1 %  3 min left"
std::string bar_text(int64_t step, int64_t last, const StepFigures& figures, double seconds_left);

class TrainBar {
 public:
  TrainBar(int64_t first, int64_t last);
  ~TrainBar();  // wipes the line
  TrainBar(const TrainBar&) = delete;
  TrainBar& operator=(const TrainBar&) = delete;

  void show(int64_t step, const StepFigures& figures);  // only on a terminal, at most ten times a second

 private:
  int64_t first_, last_;
  bool shown_, drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_drawn_;
};

}  // namespace fathom
