// A policy at work on a session's model, with its own cache and state. Several take turns in one run.
#pragma once

#include <optional>

#include "cli/session.h"

namespace fathom {

class BenchRunner {
 public:
  struct Options {
    std::string method{};  // JSON; "": dense
    // What stays of skipped rows, whatever the method says: also of units that no row runs, which a fixed
    // list would not ask for.
    std::optional<SkippedKv> skipped_kv{};
    float threshold = 0;  // of every unit, where there is one to have
    bool has_threshold = false;
    int64_t tokens = 0, sequences = 1;  // of the cache
    int64_t chunk = 512;                // rows of a prefill pass
  };
  BenchRunner(Session& session, const Options& options);

  // Each -> tokens a second.
  double prefill(int64_t count);
  double decode(int64_t context, int64_t steps);  // all sequences, after `context` tokens of each
  double verify(int64_t context, int64_t rows, int64_t passes);

  // Of the last of these: what the kernels counted for a token of a prefill, and for a pass of a decode.
  double prefill_madds() const { return prefill_madds_; }
  double decode_bytes() const { return decode_bytes_; }
  Savings savings() const { return running_->feeder().savings(); }

 private:
  Feeder& feeder() { return running_->feeder(); }
  void bring_to(int32_t sequence, int64_t context);

  Options options_;
  DensePolicy dense_;
  std::unique_ptr<MethodPolicy> method_;
  std::unique_ptr<SkipPolicy> keeping_;  // the method with options_.skipped_kv
  std::unique_ptr<Sequences> running_;
  std::vector<int32_t> sequences_;
  double prefill_madds_ = 0, decode_bytes_ = 0;
};

}  // namespace fathom
