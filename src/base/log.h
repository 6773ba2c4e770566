// Messages for people, on stderr. Results go to stdout and never through here.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace fathom {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarn, kQuiet };

void set_log_level(LogLevel level);  // kInfo by default
LogLevel log_level();

// Takes the messages that the level lets through, in place of stderr; from any thread. Set before others run.
using LogSink = std::function<void(LogLevel level, std::string_view message)>;
void set_log_sink(LogSink sink);  // none: stderr

// One line each. Control characters in the message are escaped.
void log_debug(std::string_view message);
void log_info(std::string_view message);
void log_warn(std::string_view message);  // with "warning: " before it

}  // namespace fathom
