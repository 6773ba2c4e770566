// What the API is told when it starts.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "infer/fathom.h"

namespace fathom {

// Seconds, for --timeout and a request's field alike: more would overflow a deadline.
inline constexpr double kMostTimeout = 1e6;

// What one request may ask for. More is a 400 that names the field and the limit.
struct ApiLimits {
  int64_t choices = 128;         // n × prompts; no more than there are places, taken and waiting
  int64_t stops = 16;            // stop strings, and as many stop tokens
  int64_t stop_bytes = 1024;     // of one of them
  int64_t bias_entries = 1024;   // of logit_bias
  int64_t tokens = 1'000'000;    // prompts and answers together
  int64_t log_probs = 200'000;   // of the tokens of a reply and of the likely ones beside them
  int64_t json_depth = 64;       // of a body, ignored fields included
  double timeout_seconds = 600;  // until an answer has ended; 0: no limit
};

// Makes a mask for each answer. What cannot be followed is a UserError that names it.
using MaskMaker = std::function<std::unique_ptr<TokenMask>()>;
struct MaskFactory {
  std::function<MaskMaker()> any_object;                       // none: not served
  std::function<MaskMaker(const std::string& schema)> schema;  // a JSON schema's text
};

struct ApiOptions {
  std::vector<std::string> names = {};  // of the model; the first one is what replies say
  ApiLimits limits = {};
  std::optional<float> budget_floor = {};  // of "auto"; none: the smallest calibrated budget
  double target_latency = 0.1;             // seconds between tokens that "auto" keeps to
  int64_t parallel = 32;                   // answers that have a place
  int64_t queue = 1024;                    // answers that may wait for one
  bool auto_budget = false;                // of requests that name none
  bool context_shift = false;              // Request::context_shift
  bool share_prefixes = false;             // between keys
  bool json_logs = false, log_prompts = false;
  std::size_t unsent_bytes = 256 * 1024;  // of a stream, above which its answers are not read
  // Requests that wait to be parsed, and their bytes together; more are 429.
  int64_t unparsed_requests = 1024;
  std::size_t unparsed_bytes = 16 << 20;
  int64_t retry_seconds = 1;  // what Retry-After says
  std::function<Moment()> now = std::chrono::steady_clock::now;
  std::function<void(const std::string& line)> log = {};  // none: log_info
};

}  // namespace fathom
