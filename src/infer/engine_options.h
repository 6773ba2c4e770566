// What an engine is told, and what it tells.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "infer/calibrate.h"
#include "infer/feeder.h"
#include "infer/request.h"

namespace fathom {

struct EngineOptions {
  int64_t rows = 512;          // of a pass at most; more than the cache's sequences
  int64_t waiting = 1024;      // answers beside those that have a place; more are refused with EngineBusy
  int64_t most_answers = 128;  // of one request
  int64_t tokens_ahead = 64;   // that a reader may be behind before its answer pauses
  int64_t ageing = 32;         // passes without rows after which an answer's priority rises by one
  bool keep_prefixes = true;   // what a finished answer computed stays until its place is needed
  const Calibration* calibration = nullptr;  // for requests with a budget; outlives the engine
  std::optional<float> budget = {};          // of requests that name none; none: the method's own rule
  std::vector<int32_t> harm_order = {};      // for requests that draft by it: measure_harm_order()
  std::function<Moment()> now = std::chrono::steady_clock::now;
};

struct EngineStats {
  // Since the start.
  int64_t passes = 0, rows = 0;
  int64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0;  // of all answers
  int64_t preemptions = 0;            // answers that made room for others, to be computed again
  SpeculationCounts speculation;      // of answers that have ended
  std::array<int64_t, 5> finished{};  // answers by FinishReason
  std::vector<int64_t> unit_rows;     // (2L): rows that ran each unit; over `rows`, its kept share
  Savings savings;
  // Now.
  int64_t running = 0, waiting = 0, paused = 0;  // answers; paused ones run, but for their readers
  int64_t cache_bytes = 0, pool_bytes = 0;       // held, those of kept prefixes included; and all there are
};

}  // namespace fathom
