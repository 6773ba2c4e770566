// The options of fathom serve.
#pragma once

#include "cli/session.h"
#include "cli/verbs.h"
#include "serve/api_options.h"
#include "serve/http_options.h"

namespace fathom {

struct ServeOptions {
  ModelOptions model;
  HttpServerOptions http;
  ApiOptions api;
  std::string chat_template;
  int64_t cache_bytes = 0;  // 0: half of the free memory, or as many as full contexts need
  int64_t drain_seconds = 30;
  bool speculate = false;
};

// Returns false after -h.
bool parse_serve_options(Args& args, ServeOptions& options, const Arguments& arguments);

// "512M", "4G", "1000000": bytes. Anything else is a UsageError that begins with `name`.
int64_t parse_bytes(const std::string& name, const std::string& text);

}  // namespace fathom
