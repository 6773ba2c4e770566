// How far a long job is: a bar on stderr, only when that is a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fathom {

class Progress {
 public:
  // after: when the bar first appears. Most jobs end sooner.
  Progress(std::string label, int64_t total,
           std::chrono::milliseconds after = std::chrono::milliseconds(100));
  ~Progress();  // wipes the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(int64_t done);         // draws at most ten times a second
  void leave_out(int64_t count);  // `count` fewer than the total are to be done
  bool shown() const { return shown_; }

 private:
  void draw() const;

  std::string label_;
  int64_t total_, done_ = 0;
  bool shown_, drawn_once_ = false;
  std::chrono::milliseconds after_;
  std::chrono::steady_clock::time_point start_, drawn_;
};

// "  1.2 GiB", "345 KiB"
std::string bytes_text(int64_t bytes);

}  // namespace fathom
