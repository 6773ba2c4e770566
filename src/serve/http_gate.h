// Which clients may ask: judged from a request's head, before its body is read. Pure.
//
// A page that the user's browser has loaded from elsewhere can send requests to a server on the loopback.
// Against that: the Host must be ours (DNS rebinding), an Origin must be ours or named (CSRF), and a POST
// must be application/json, which a browser sends across origins only after a preflight.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/api_keys.h"
#include "serve/http_framing.h"

namespace fathom {

struct GateOptions {
  std::vector<std::string> hosts = {};    // beside the loopback's: NAME (any port) or NAME:PORT; "*": any
  std::vector<std::string> origins = {};  // SCHEME://NAME[:PORT]; "*": any
  std::vector<ApiKey> keys = {};          // none: no key is needed
};

struct GateVerdict {
  int status = 0;  // 0: the request may go on; 204: a preflight that is answered by the headers alone
  std::string message = {}, code = {};
  HttpHeaders headers = {};  // of the reply, an error's too
  std::string key = {};      // the key's label
};

GateVerdict judge_request(const GateOptions& options, const RequestHead& head);

// Whether a request can match it: an entry of GateOptions::hosts, one of GateOptions::origins.
bool is_host_entry(std::string_view text);
bool is_origin_entry(std::string_view text);

// Whether `host`, a Host header, is localhost, 127.0.0.0/8 or [::1], with any port.
bool is_loopback(std::string_view host);

}  // namespace fathom
