#include "load/thread_times.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/format.h"

namespace fathom {
namespace {

// schedstat counts nanoseconds; the clock ticks of stat are too coarse for threads that run briefly.
double seconds_of(const std::filesystem::path& task) {
  std::ifstream file(task / "schedstat");
  double nanoseconds = 0;
  file >> nanoseconds;
  return nanoseconds * 1e-9;
}

}  // namespace

std::map<std::string, double> thread_times(int64_t pid) {
  std::map<std::string, double> times;
  std::error_code error;
  const std::string folder = fmt::format("/proc/{}/task", pid);
  for (const auto& task : std::filesystem::directory_iterator(folder, error)) {
    std::string name;
    std::ifstream file(task.path() / "comm");
    if (std::getline(file, name)) times[name] += seconds_of(task.path());
  }
  require(!error && !times.empty(), "{} cannot be read: is the process there?", folder);
  return times;
}

std::map<std::string, double> difference(std::map<std::string, double> after,
                                         const std::map<std::string, double>& before) {
  for (const auto& [name, seconds] : before) after[name] -= seconds;
  return after;
}

}  // namespace fathom
