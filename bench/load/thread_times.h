// CPU time of another process, by the names of its threads (Linux).
#pragma once

#include <map>
#include <string>

namespace fathom {

// Seconds since the process began.
std::map<std::string, double> thread_times(int64_t pid);

// What each name took between the two.
std::map<std::string, double> difference(std::map<std::string, double> after,
                                         const std::map<std::string, double>& before);

}  // namespace fathom
