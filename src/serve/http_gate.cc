#include "serve/http_gate.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"

namespace fathom {
namespace {

struct HostPort {
  std::string name;  // in lower case, with the brackets of an IPv6 address
  std::string port;  // "": none
};

bool is_port(std::string_view text) {
  unsigned port = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, port);
  return parsed.ec == std::errc{} && parsed.ptr == end && port <= 65535;
}

// Returns none where `text` is no NAME[:PORT].
std::optional<HostPort> split_host(std::string_view text) {
  const bool bracketed = text.starts_with('[');
  const std::size_t close = bracketed ? text.find(']') : 0;
  if (close == std::string_view::npos) return std::nullopt;
  const std::size_t colon = std::min(text.find(':', close), text.size());
  if (bracketed && colon != close + 1) return std::nullopt;
  const std::string_view name = text.substr(0, colon);
  const std::string_view port = text.substr(std::min(colon + 1, text.size()));
  const bool plain = name.find_first_of(" \t@/?#,\"") == std::string_view::npos;
  if (name.empty() || !plain || (colon < text.size() && !is_port(port))) return std::nullopt;
  return HostPort{ascii_lower(name), std::string(port)};
}

// 127.A.B.C, each part one to three digits: other spellings of an address are not taken.
bool is_loopback_v4(std::string_view name) {
  int parts = 0;
  for (bool more = true; more; ++parts) {
    const std::size_t dot = std::min(name.find('.'), name.size());
    const std::string_view part = name.substr(0, dot);
    unsigned value = 256;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), value);
    if (part.size() > 3 || parsed.ec != std::errc{} || parsed.ptr != part.data() + part.size()) return false;
    if (value > 255 || (parts == 0 && value != 127)) return false;
    more = dot < name.size();
    name.remove_prefix(std::min(dot + 1, name.size()));
  }
  return parts == 4;
}

bool is_ours(const GateOptions& options, const std::string& host) {
  const std::optional<HostPort> asked = split_host(host);
  if (!asked) return false;
  if (is_loopback(host)) return true;
  return std::any_of(options.hosts.begin(), options.hosts.end(), [&](const std::string& named) {
    if (named == "*") return true;
    const std::optional<HostPort> ours = split_host(named);
    return ours && ours->name == asked->name && (ours->port.empty() || ours->port == asked->port);
  });
}

// The server's own pages send their Origin with a POST: its host is then the request's Host.
bool is_same_origin(const std::string& origin, const std::string* host) {
  const std::size_t scheme = origin.find("://");
  return host && scheme != std::string::npos && ascii_lower(origin.substr(scheme + 3)) == ascii_lower(*host);
}

bool is_named_origin(const GateOptions& options, const std::string& origin) {
  return std::any_of(options.origins.begin(), options.origins.end(), [&](const std::string& named) {
    return named == "*" || ascii_lower(named) == ascii_lower(origin);
  });
}

// What follows "Bearer ", or "".
std::string_view bearer_token(const std::string* authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (!authorization || ascii_lower(authorization->substr(0, kScheme.size())) != kScheme) return {};
  return trimmed(std::string_view(*authorization).substr(kScheme.size()));
}

bool is_json(const std::string* content_type) {
  if (!content_type) return false;
  const std::string_view type = std::string_view(*content_type).substr(0, content_type->find(';'));
  return ascii_lower(trimmed(type)) == "application/json";
}

GateVerdict refusal(int status, std::string message, std::string code, HttpHeaders headers = {}) {
  return {status, std::move(message), std::move(code), std::move(headers), ""};
}

GateVerdict preflight(const RequestHead& head, HttpHeaders headers) {
  headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  const std::string* wanted = head.find("access-control-request-headers");
  headers.emplace_back("Access-Control-Allow-Headers", wanted ? *wanted : "authorization, content-type");
  headers.emplace_back("Access-Control-Max-Age", "600");
  return refusal(204, "", "", std::move(headers));
}

// Checks the key, where keys are needed.
GateVerdict admit(const GateOptions& options, const RequestHead& head, HttpHeaders headers) {
  GateVerdict verdict{.headers = std::move(headers)};
  if (options.keys.empty() || head.path == "/health") return verdict;
  const std::string_view token = bearer_token(head.find("authorization"));
  std::optional<std::string> label = find_api_key(options.keys, token);
  if (label && !token.empty()) {
    verdict.key = std::move(*label);
    return verdict;
  }
  verdict.headers.emplace_back("WWW-Authenticate",
                               token.empty() ? "Bearer" : "Bearer error=\"invalid_token\"");
  return refusal(
      401, token.empty() ? "an API key is needed: Authorization: Bearer KEY" : "the API key is not known",
      "invalid_api_key", std::move(verdict.headers));
}

// A name that a browser or a client can send: visible ASCII, no pattern.
bool is_name_and_port(std::string_view text) {
  const bool plain =
      std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7F && c != '*'; });
  return plain && split_host(text).has_value();
}

}  // namespace

bool is_host_entry(std::string_view text) {
  return text == "*" || is_name_and_port(text);
}

bool is_origin_entry(std::string_view text) {
  if (text == "*") return true;
  const auto letter = [](char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; };
  const std::size_t end = text.find("://");
  if (end == 0 || end == std::string_view::npos || !letter(text.front())) return false;
  const std::string_view scheme = text.substr(0, end);
  const bool good = std::all_of(scheme.begin(), scheme.end(), [&](char c) {
    return letter(c) || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
  });
  return good && is_name_and_port(text.substr(end + 3));
}

bool is_loopback(std::string_view host) {
  const std::optional<HostPort> asked = split_host(host);
  return asked && (asked->name == "localhost" || asked->name == "[::1]" || is_loopback_v4(asked->name));
}

GateVerdict judge_request(const GateOptions& options, const RequestHead& head) {
  const std::string* host = head.find("host");
  if (host && !is_ours(options, *host)) {
    return refusal(403, "this server does not answer for the host '" + printable(*host, 100) + "'",
                   "host_not_allowed");
  }
  HttpHeaders headers;
  if (const std::string* origin = head.find("origin")) {
    if (is_named_origin(options, *origin)) {
      headers = {{"Access-Control-Allow-Origin", *origin}, {"Vary", "Origin"}};
      const bool asks = head.method == "OPTIONS" && head.find("access-control-request-method");
      if (asks) return preflight(head, std::move(headers));
    } else if (!is_same_origin(*origin, host)) {
      return refusal(403, "pages of '" + printable(*origin, 100) + "' may not use this server",
                     "origin_not_allowed");
    }
  }
  GateVerdict verdict = admit(options, head, std::move(headers));
  if (verdict.status != 0) return verdict;
  if (head.method == "OPTIONS") {
    verdict.status = 204;
    verdict.headers.emplace_back("Allow", "GET, HEAD, POST, OPTIONS");
  } else if (head.method == "POST" && !is_json(head.find("content-type"))) {
    return refusal(415, "the Content-Type of a POST must be application/json", "unsupported_media_type",
                   std::move(verdict.headers));
  }
  return verdict;
}

}  // namespace fathom
