// An offline batch: many requests through the batcher, their answers as lines of a file, in order.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "infer/batch_source.h"
#include "infer/batcher.h"
#include "io/line_file.h"

namespace fathom {

// Names and values of what the answers depend on.
using BatchIdentity = std::vector<std::pair<std::string, std::string>>;

// The answers' file. Beside it stands FILE.run.json with the identity of what they were made from.
class BatchOutput {
 public:
  // Goes on with a file that is there already: another identity, or lines that are no answers, are a
  // UserError. `restart`: begins again instead.
  BatchOutput(const std::string& path, const BatchIdentity& identity, bool restart);

  int64_t done() const { return file_->lines(); }
  int64_t failed() const { return failed_; }  // of those: requests that could not be answered
  void add(const std::string& line, bool failed);
  void sync() { file_->sync(); }

 private:
  void take(std::string_view line);

  std::string path_;
  int64_t taken_ = 0, failed_ = 0;
  std::unique_ptr<LineFile> file_;
};

struct BatchRunOptions {
  bool ids = false;  // the lines hold the answers' tokens
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(int64_t lines)> on_done = nullptr;              // more lines are written
  std::function<void(const std::string& why)> on_failure = nullptr;  // of one request
};

struct BatchRunResult {
  int64_t generated = 0;  // tokens of the answers that this run wrote
  SpeculationCounts speculation = {};
  bool cancelled = false;
};

struct BatchPlan {
  // Tokens that the longest request may come to, prompt included; 0: no request can be read. -1: as many as
  // the context holds.
  int64_t longest = 0;
  bool own_budgets = false;  // some request names its own
};
// Of the requests from number `first` on; no further than `cancel`.
BatchPlan plan_batch(const BatchSource& source, int64_t first, const std::atomic<bool>* cancel = nullptr);

// Answers the requests that the output does not have yet. What a line says does not depend on how many
// requests share a pass. A request that cannot be answered becomes a line with an error.
BatchRunResult run_batch(Batcher& batcher, const BatchSource& source, BatchOutput& output,
                         const BatchRunOptions& options);

}  // namespace fathom
