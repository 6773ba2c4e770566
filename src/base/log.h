// Messages for people, on stderr. Results go to stdout and never through here.
#pragma once

#include <cstdint>
#include <string_view>

namespace fathom {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarn, kQuiet };

void set_log_level(LogLevel level);  // kInfo by default
LogLevel log_level();

// One line each. Control characters in the message are escaped.
void log_debug(std::string_view message);
void log_info(std::string_view message);
void log_warn(std::string_view message);  // with "warning: " before it

}  // namespace fathom
