#include "infer/sequences.h"

namespace fathom {
namespace {

KvCacheOptions with_bias(KvCacheOptions options, const SkipPolicy& policy) {
  options.key_bias = policy.has_key_bias();
  return options;
}

}  // namespace

Sequences::Sequences(Context& ctx, const Model& model, const SkipPolicy& policy, const Options& options)
    : cache_(ctx, model.config, with_bias(options.cache, policy)),
      state_(policy.make_state(ctx, model.config, options.cache.sequences)),
      feeder_(ctx, model, cache_, policy, *state_) {
  if (options.thresholds.empty()) return;
  for (int32_t s = 0; s < options.cache.sequences; ++s) state_->set_thresholds(ctx, s, options.thresholds);
}

}  // namespace fathom
