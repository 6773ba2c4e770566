#include "cli/bench_runner.h"

#include <algorithm>

#include "cli/bench_passes.h"

namespace fathom {
namespace {

class KeepingPolicy final : public ForwardingPolicy {
 public:
  KeepingPolicy(const SkipPolicy& inner, SkippedKv rule) : ForwardingPolicy(inner), rule_(rule) {}
  Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const override {
    Decision decision = ForwardingPolicy::decide(ctx, input, state);
    const bool first =
        rule_ == SkippedKv::kCopyFromBelow && copied_layer(input.model.config, input.layer) < 0;
    decision.skipped_kv = first ? SkippedKv::kProject : rule_;
    return decision;
  }

 private:
  SkippedKv rule_;
};

}  // namespace

BenchRunner::BenchRunner(Session& session, const Options& options) : options_(options) {
  Context& ctx = session.ctx();
  const Model& model = session.model();
  if (!options.method.empty()) {
    method_ = MethodPolicy::from_json(options.method, "bench");
    method_->check(model.config);
    method_->initialise(model.config, 1);
  }
  const SkipPolicy& own = method_ ? static_cast<const SkipPolicy&>(*method_) : dense_;
  if (options.skipped_kv) keeping_ = std::make_unique<KeepingPolicy>(own, *options.skipped_kv);
  const SkipPolicy& policy = keeping_ ? *keeping_ : own;
  Sequences::Options how{session.cache_options()};
  how.cache.sequences = options.sequences;
  how.cache.context = options.tokens;
  if (options.has_threshold)
    how.thresholds.assign(static_cast<size_t>(2 * model.config.layers), options.threshold);
  running_ = std::make_unique<Sequences>(ctx, model, policy, how);
  for (int32_t s = 0; s < options.sequences; ++s) sequences_.push_back(s);
}

void BenchRunner::bring_to(int32_t sequence, int64_t context) {
  const bool there = context > 0 && running_->cache().rows(sequence) >= context;
  if (!there || feeder().truncate(sequence, context) < context)
    time_prefill(feeder(), sequence, context, options_.chunk);
}

double BenchRunner::prefill(int64_t count) {
  const Work before = feeder().work();
  const double seconds = time_prefill(feeder(), 0, count, options_.chunk);
  prefill_madds_ = static_cast<double>((feeder().work() - before).madds) / static_cast<double>(count);
  return static_cast<double>(count) / seconds;
}

double BenchRunner::decode(int64_t context, int64_t steps) {
  for (const int32_t s : sequences_) bring_to(s, context);
  const Work before = feeder().work();
  const double seconds = time_decode(feeder(), sequences_, steps);
  const Work work = feeder().work() - before;
  decode_bytes_ = static_cast<double>(work.weight_bytes + work.cache_bytes) / static_cast<double>(steps);
  return static_cast<double>(steps * std::ssize(sequences_)) / seconds;
}

double BenchRunner::verify(int64_t context, int64_t rows, int64_t passes) {
  bring_to(0, context);
  return static_cast<double>(rows * passes) / time_verify(feeder(), context, rows, passes);
}

}  // namespace fathom
