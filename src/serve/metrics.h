// What Prometheus asks for: counters and histograms, under vLLM's names with the prefix `fathom:`.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "infer/fathom.h"

namespace fathom {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);  // rising; values above the last one count too
  void add(double value);
  // Appends the lines of the text format. `labels`: `model_name="x"`.
  void write(std::string& out, const std::string& name, const std::string& help,
             const std::string& labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;  // one more than the bounds
  double sum_ = 0;
  int64_t count_ = 0;
};

// Of one request that has ended.
struct RequestTimes {
  double queue_seconds = 0, total_seconds = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0;
  double skip_ratio = 0;
};

// Any thread may call.
class Metrics {
 public:
  void first_token(double seconds);
  void token(double seconds_since_last, double depth_share);
  void depth(double share);  // of an answer's first token
  void request(const RequestTimes& times, const std::string& finished_reason);
  void reply(int status);

  // The page. `stats`: of the engine, null while there is none.
  std::string text(const EngineStats* stats, const std::string& model) const;

 private:
  void write_histograms(std::string& out, const std::string& labels) const;

  mutable std::mutex mutex_;
  Histogram first_token_{
      {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}};
  Histogram between_{
      {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5}};
  Histogram total_{{0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960}};
  Histogram queue_{{0.001, 0.01, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120}};
  Histogram prompt_tokens_{{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000}};
  Histogram generated_tokens_{{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000}};
  Histogram depth_{{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}};
  Histogram skipped_{{0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1}};
  std::map<std::string, int64_t> finished_;  // by reason
  std::map<int, int64_t> replies_;           // by status
};

}  // namespace fathom
