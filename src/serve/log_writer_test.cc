#include "serve/log_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

namespace fathom {
namespace {

struct Pipe {
  int ends[2];
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  ~Pipe() {
    close_reader();
    close(ends[1]);
  }
  void close_reader() {
    if (ends[0] >= 0) close(ends[0]);
    ends[0] = -1;
  }
  // Until `end` has been read.
  std::string read_to(const std::string& end) {
    std::string all;
    char room[4096];
    while (all.find(end) == std::string::npos) {
      const ssize_t n = read(ends[0], room, sizeof room);
      if (n <= 0) break;
      all.append(room, static_cast<size_t>(n));
    }
    return all;
  }
};

TEST(LogWriter, LinesComeWholeAndInOrder) {
  Pipe pipe;
  LogWriter writer(pipe.ends[1]);
  std::string expected;
  for (int i = 0; i < 200; ++i) {
    const std::string line = std::to_string(i) + std::string(static_cast<size_t>(i * 7), 'x');
    writer.write(line);
    expected += line + "\n";
  }
  writer.write("end");
  EXPECT_EQ(pipe.read_to("end\n"), expected + "end\n");
}

// A pipe holds 64 KiB: the rest waits or is dropped, and write() returns all the same.
TEST(LogWriter, AReaderThatStopsHoldsNothingUp) {
  Pipe pipe;
  constexpr size_t kMost = 10;
  std::optional<LogWriter> writer(std::in_place, pipe.ends[1], kMost);
  const std::string line(1000, 'x');
  for (int i = 0; i < 300; ++i) writer->write(line);
  const std::string read = pipe.read_to("were not read\n");
  const auto lines = static_cast<size_t>(std::count(read.begin(), read.end(), '\n'));
  EXPECT_LT(lines, 300u);
  EXPECT_NE(read.find("fathom: " + std::to_string(300 - (lines - 1)) + " log lines were dropped"),
            std::string::npos)
      << lines;
  writer->write("later");
  EXPECT_EQ(pipe.read_to("later\n"), "later\n");
  for (int i = 0; i < 300; ++i) writer->write(line);
  writer.reset();  // ends, though nothing is read
}

TEST(LogWriter, WithoutAReaderLinesAreLost) {
  Pipe pipe;
  pipe.close_reader();
  {
    LogWriter writer(pipe.ends[1]);
    for (int i = 0; i < 10; ++i) writer.write("lost");
  }
}

}  // namespace
}  // namespace fathom
