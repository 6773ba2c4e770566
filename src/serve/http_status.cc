#include "serve/http_status.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

namespace fathom {
namespace {

struct Reason {
  int status;
  const char* phrase;
};

constexpr Reason kReasons[] = {
    {100, "Continue"},
    {200, "OK"},
    {204, "No Content"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {413, "Content Too Large"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {422, "Unprocessable Content"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {499, "Client Closed Request"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
};

// As RFC 9110, 5.6.7 writes it, whatever the locale.
std::string http_date() {
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[64];
  std::snprintf(text, sizeof text, "%s, %02d %s %04d %02d:%02d:%02d GMT", kDays[utc.tm_wday], utc.tm_mday,
                kMonths[utc.tm_mon], utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
  return text;
}

void add_header(std::string& text, std::string_view name, std::string_view value) {
  text.append(name).append(": ");
  for (const char c : value) text += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c;
  text += "\r\n";
}

}  // namespace

const char* reason_phrase(int status) {
  const auto* at = std::find_if(std::begin(kReasons), std::end(kReasons),
                                [&](const Reason& r) { return r.status == status; });
  return at == std::end(kReasons) ? "" : at->phrase;
}

std::string error_object(int status, std::string_view message, std::string_view code) {
  nlohmann::ordered_json error;
  error["message"] = message;
  error["type"] = status >= 500 ? "server_error" : "invalid_request_error";
  error["param"] = nullptr;
  error["code"] = nullptr;
  if (!code.empty()) error["code"] = code;
  return nlohmann::ordered_json{{"error", std::move(error)}}.dump(
      -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string reply_head(int status, const HttpHeaders& headers) {
  std::string text = "HTTP/1.1 " + std::to_string(status) + " " + reason_phrase(status) + "\r\n";
  add_header(text, "Date", http_date());
  for (const auto& [name, value] : headers) add_header(text, name, value);
  return text;
}

}  // namespace fathom
