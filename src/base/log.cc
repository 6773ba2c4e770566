#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <utility>

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

LogSink& sink() {
  static LogSink instance;
  return instance;
}

constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                 spdlog::level::warn, spdlog::level::off};

void log(LogLevel level, std::string_view mark, std::string_view message) {
  const spdlog::level::level_enum as = kLevels[static_cast<size_t>(level)];
  if (!logger().should_log(as)) return;
  if (sink()) return sink()(level, printable(message, kLongest));
  logger().log(as, "{}{}", mark, printable(message, kLongest));
}

}  // namespace

void set_log_level(LogLevel level) {
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

void set_log_sink(LogSink to) {
  sink() = std::move(to);
}

void log_debug(std::string_view message) {
  log(LogLevel::kDebug, "", message);
}

void log_info(std::string_view message) {
  log(LogLevel::kInfo, "", message);
}

void log_warn(std::string_view message) {
  log(LogLevel::kWarn, "warning: ", message);
}

}  // namespace fathom
