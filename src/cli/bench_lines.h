// Speeds measured in turns, and the lines of a table that compare them.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/samples.h"

namespace fathom {

inline constexpr int kNoMeasure = -1;

struct Note {
  const char* unit = "";
  double value = 0;
};

struct Line {
  std::string name;
  int ours = kNoMeasure;
  int against = kNoMeasure;                 // what it is held against
  double bar = 0;                           // the least ratio to it; 0: none
  int base = kNoMeasure;                    // what it would be without skipping
  std::function<Note(double ours)> note{};  // what else there is to say of the median
};

class BenchLines {
 public:
  // `run` is called once a round and returns tokens a second; `warms`: also once before the first round.
  // Returns its index, for lines.
  int measure(const std::string& name, bool warms, std::function<double()> run);
  void line(Line line) { lines_.push_back(std::move(line)); }

  // Everything once, one after the other: a machine that slows down slows all of it. Ctrl-C ends it early.
  void warm_up();
  void round();

  // [{name, tokens_per_s, against: {name, tokens_per_s}, ratio, bar, met, speed_up, note: {unit, value}}]
  nlohmann::ordered_json json() const;
  const Samples& samples_of(int measure) const { return at(measure).samples; }

 private:
  struct Measure {
    std::string name;
    bool warms;
    std::function<double()> run;
    Samples samples;
  };
  const Measure& at(int index) const { return measures_[static_cast<size_t>(index)]; }
  Samples ratios(int ours, int against) const;  // round by round

  std::vector<Measure> measures_;
  std::vector<Line> lines_;
};

// The lines of json() as text.
std::string lines_text(const nlohmann::ordered_json& lines);

}  // namespace fathom
