#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "base/error.h"

namespace fathom {
namespace {

constexpr size_t kLongest = 4000;  // bytes of a message

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("fathom", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.set_pattern("fathom: %v");
    made.set_level(spdlog::level::info);
    made.flush_on(spdlog::level::debug);
    return made;
  }();
  return instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  static constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                          spdlog::level::warn, spdlog::level::off};
  logger().set_level(kLevels[static_cast<size_t>(level)]);
}

LogLevel log_level() {
  switch (logger().level()) {
    case spdlog::level::debug:
      return LogLevel::kDebug;
    case spdlog::level::info:
      return LogLevel::kInfo;
    case spdlog::level::warn:
      return LogLevel::kWarn;
    default:
      return LogLevel::kQuiet;
  }
}

void log_debug(std::string_view message) {
  if (logger().should_log(spdlog::level::debug)) logger().debug("{}", printable(message, kLongest));
}

void log_info(std::string_view message) {
  if (logger().should_log(spdlog::level::info)) logger().info("{}", printable(message, kLongest));
}

void log_warn(std::string_view message) {
  if (logger().should_log(spdlog::level::warn)) logger().warn("warning: {}", printable(message, kLongest));
}

}  // namespace fathom
