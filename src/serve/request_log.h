// One line for each request.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "infer/fathom.h"

namespace fathom {

struct RequestRecord {
  std::string id, method, path, key;  // key: the label, never the key
  std::string client_id = {};         // HttpRequest::client_id
  int status = 0;                     // 499: the client went away
  double total_seconds = 0;
  // Of a request that reached the engine.
  bool ran = false;
  double queue_seconds = 0;
  std::optional<double> first_token_seconds = {};
  int64_t answers = 0, prompt_tokens = 0, generated_tokens = 0;
  double depth = 0;  // mean layers of a token
  std::optional<float> budget = {};
  std::string finish = {};  // of the first answer
  std::string error = {};   // one line
  std::string prompt = {};  // only where prompts are to be logged

  // By which the client can find its request in the log: a header of every reply.
  std::pair<std::string, std::string> id_header() const {
    return {"X-Request-Id", client_id.empty() ? id : client_id};
  }
};

using WallTime = std::chrono::system_clock::time_point;

// 2026-11-18T09:30:00.125Z
std::string utc_text(WallTime when);

std::string log_line(const RequestRecord& record, bool json, WallTime when);
// A message that is of no request: {"time", "level", "message"}.
std::string json_message(const char* level, std::string_view message, WallTime when);

// Bounds the lines that strangers can cause at will, so that a flood of them does not fill the disk. Any
// thread may call.
class LineLimit {
 public:
  // Returns how many lines were left out before this one, or nothing where this one is left out, too.
  std::optional<int64_t> next(Moment now);

 private:
  std::mutex mutex_;
  std::optional<Moment> begin_;  // of the time in which lines are counted
  int64_t lines_ = 0, left_out_ = 0;
};

}  // namespace fathom
