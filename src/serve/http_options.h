// What an HTTP server is told: where it listens, whom it answers, and how much it takes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "serve/api_keys.h"
#include "serve/http_framing.h"

namespace fathom {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0: any free one
  int threads = 2;

  HttpLimits limits = {};              // of one request
  std::size_t connections = 1024;      // more are answered with 503
  std::size_t all_bodies = 256 << 20;  // bytes of the requests that are being read, together: more is 503
  std::size_t most_unsent = 16 << 20;  // bytes of a reply in pieces that may wait for its reader

  std::chrono::milliseconds request_time{30'000};  // for a request to come whole, and for TLS's handshake
  std::chrono::milliseconds idle_time{75'000};     // between two requests of a connection
  std::chrono::milliseconds stall_time{
      30'000};  // without a byte taken: a reader that does not read is dropped
  std::chrono::milliseconds ping_time{15'000};  // without a piece written: the reply's ping is sent

  // Hosts that requests may name beside the loopback's names and `host`; "*": any.
  std::vector<std::string> allow_hosts = {};
  std::vector<std::string> allow_origins = {};  // SCHEME://NAME[:PORT] of pages that may ask; "*": any

  std::string key_file = "";         // see read_api_keys; with `keys`. "": none
  std::vector<ApiKey> keys = {};     // where there are any, every path but /health needs one
  std::string tls_certificate = "";  // PEM files; both or neither
  std::string tls_key = "";
};

}  // namespace fathom
