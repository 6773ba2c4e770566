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

// The same without the bar, for a file.
std::string line_text(int64_t step, int64_t last, const StepFigures& figures, double seconds_left);

class TrainBar {
 public:
  // lines: where stderr is no terminal, a line of the log comes this often.
  TrainBar(int64_t first, int64_t last, std::chrono::seconds lines = std::chrono::minutes(1));
  ~TrainBar();  // wipes the line
  TrainBar(const TrainBar&) = delete;
  TrainBar& operator=(const TrainBar&) = delete;

  // On a terminal at most ten times a second.
  void show(int64_t step, const StepFigures& figures);

 private:
  int64_t first_, last_;
  bool shown_, drawn_ = false;
  std::chrono::milliseconds every_;
  std::chrono::steady_clock::time_point start_, last_drawn_;
};

}  // namespace fathom
