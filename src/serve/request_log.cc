#include "serve/request_log.h"

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/format.h"
#include "serve/token_text.h"

namespace fathom {
namespace {

constexpr int64_t kMostLines = 20;
constexpr std::chrono::seconds kLineTime{10};

double milliseconds(double seconds) {
  return std::round(seconds * 1e6) / 1e3;
}

std::string as_json(const RequestRecord& r, WallTime when) {
  nlohmann::ordered_json json;
  json["time"] = utc_text(when);
  json["id"] = r.id;
  json["method"] = r.method;
  json["path"] = r.path;
  json["status"] = r.status;
  if (!r.client_id.empty()) json["client_id"] = r.client_id;
  if (!r.key.empty()) json["key"] = r.key;
  json["total_ms"] = milliseconds(r.total_seconds);
  if (r.ran) {
    json["queue_ms"] = milliseconds(r.queue_seconds);
    if (r.first_token_seconds) json["first_token_ms"] = milliseconds(*r.first_token_seconds);
    json["answers"] = r.answers;
    json["prompt_tokens"] = r.prompt_tokens;
    json["generated_tokens"] = r.generated_tokens;
    json["depth"] = r.depth;
    if (r.budget) json["budget"] = shortest_decimal(*r.budget);
    if (!r.finish.empty()) json["finish"] = r.finish;
  }
  if (!r.error.empty()) json["error"] = r.error;
  if (!r.prompt.empty()) json["prompt"] = r.prompt;
  return to_line(json);
}

std::string as_text(const RequestRecord& r, WallTime when) {
  std::string line = fmt::format("{} {} {} {} {} {:.1f} ms", utc_text(when), r.id, r.method,
                                 printable(r.path), r.status, milliseconds(r.total_seconds));
  if (r.ran) {
    line += fmt::format(", queue {:.1f} ms", milliseconds(r.queue_seconds));
    if (r.first_token_seconds)
      line += fmt::format(", first token {:.1f} ms", milliseconds(*r.first_token_seconds));
    line += fmt::format(", {} + {} tokens, depth {:.2f}", r.prompt_tokens, r.generated_tokens, r.depth);
    if (r.answers > 1) line += fmt::format(", {} answers", r.answers);
    if (r.budget) line += fmt::format(", budget {:g}", *r.budget);
    if (!r.finish.empty()) line += ", " + r.finish;
  }
  if (!r.key.empty()) line += ", key " + printable(r.key);
  if (!r.client_id.empty()) line += ", client's id " + printable(r.client_id);
  if (!r.error.empty()) line += ": " + printable(r.error);
  if (!r.prompt.empty()) line += ", prompt: " + printable(r.prompt, 2000);
  return line;
}

}  // namespace

std::string utc_text(WallTime when) {
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(when.time_since_epoch()).count();
  const auto now = static_cast<std::time_t>(since / 1000);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, since % 1000);
}

std::string log_line(const RequestRecord& record, bool json, WallTime when) {
  return json ? as_json(record, when) : as_text(record, when);
}

std::string json_message(const char* level, std::string_view message, WallTime when) {
  return to_line({{"time", utc_text(when)}, {"level", level}, {"message", message}});
}

std::optional<int64_t> LineLimit::next(Moment now) {
  const std::lock_guard lock(mutex_);
  if (!begin_ || now - *begin_ >= kLineTime) {
    begin_ = now;
    lines_ = 0;
  }
  if (lines_ == kMostLines) {
    ++left_out_;
    return std::nullopt;
  }
  ++lines_;
  return std::exchange(left_out_, 0);
}

}  // namespace fathom
