#include "base/system_memory.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace fathom {

std::span<const std::byte> whole_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)),
             at = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t begin = (at + page - 1) / page * page, end = (at + bytes.size()) / page * page;
  if (begin >= end) return {};
  return bytes.subspan(begin - at, end - begin);
}

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    long long kilobytes = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lld kB", &kilobytes) == 1) return kilobytes * 1024;
  }
  return INT64_MAX;
}

}  // namespace fathom
