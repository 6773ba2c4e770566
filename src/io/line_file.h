// A file of lines that grows while a long job works, and is there again when the job goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace fathom {

class LineFile {
 public:
  // Opens the file or makes it. `take` gets every whole line that is there, in order; what a crash or a full
  // disk left of the last one is cut off. `clear`: nothing of it stays. A file that another process is
  // writing to is a UserError.
  LineFile(const std::string& path, const std::function<void(std::string_view)>& take, bool clear = false);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // Adds the line and a line end, in one piece: where the disk is full nothing of it stays, and the UserError
  // says how many lines there are.
  void append(const std::string& line);
  void sync();  // what was appended is on the disk
  int64_t lines() const { return lines_; }

 private:
  void read(const std::function<void(std::string_view)>& take);
  [[noreturn]] void fail_to_write(int error) const;

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0, lines_ = 0;  // of whole lines
  std::chrono::steady_clock::time_point synced_;
};

}  // namespace fathom
