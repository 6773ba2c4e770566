// Log lines on their way to a file descriptor that may not take them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace fathom {

// write() returns at once: another thread waits for the reader. Where more than `most` lines wait,
// further ones are dropped and counted, and a line says how many.
class LogWriter {
 public:
  explicit LogWriter(int descriptor, std::size_t most = 4096);
  ~LogWriter();  // gives the lines that wait one second
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  void write(std::string line);  // without its end of line

 private:
  void work();
  bool put(const std::string& text);  // false: the reader takes nothing any more

  int descriptor_;
  std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> lines_;
  int64_t dropped_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace fathom
