// Random skipping, the first baseline: a row runs a unit with a fixed probability, keyed by (seed, sequence,
// position, unit), at inference only or trained with it. And dense: nobody skips.
#include "ops/noise.h"
#include "skip/methods.h"

namespace fathom {
namespace {

struct RandomConfig {
  float rows_kept = 0.8f;
  uint64_t seed = 0;
  Units units = Units::kBoth;

  template <class V>
  void visit(V& v) {
    v("rows_kept", rows_kept, "probability that a row runs a unit at inference");
    v("seed", seed, "of the choice at inference");
    v("units", units, "what is chosen for: attention, mlp, both (each for itself) or block");
  }
};

class Random final : public Method {
 public:
  std::vector<Field> fields() override { return fields_of(config_); }
  Units units() const override { return config_.units; }

  void score(UnitCall& call, Decision& decision) const override {
    if (config_.units == Units::kBlock && call.input.unit == Unit::kFfn) return;
    const SkipState& state = call.state;
    const Batch& batch = call.input.batch;
    decision.score = uniform_noise(call.ctx, state.training ? state.seed : config_.seed,
                                   static_cast<uint32_t>(state.training ? state.step : 0),
                                   static_cast<uint32_t>(call.input.index()), batch.keys, batch.positions);
  }

  RowSet decide(UnitCall& call, const Decision& decision) const override {
    const float kept = call.state.training ? call.state.share : config_.rows_kept;
    return above_threshold(call, decision.score, 1.0f - kept);
  }

 private:
  RandomConfig config_;
};

}  // namespace

std::unique_ptr<Method> make_random() {
  return std::make_unique<Random>();
}

std::unique_ptr<Method> make_dense() {
  return std::make_unique<Method>();
}

}  // namespace fathom
