// Random skipping, the first baseline: a row runs a unit with a fixed probability, keyed by (seed, sequence,
// position, unit), at inference only or trained with it. And dense: nobody skips.
#include <algorithm>
#include <array>

#include "base/format.h"
#include "base/rng.h"
#include "ops/rows/noise.h"
#include "skip/methods.h"

namespace fathom {
namespace {

enum class KeyedBy : uint8_t { kSequence, kText };
std::span<const std::string_view> enum_names(KeyedBy) {
  static constexpr std::array<std::string_view, 2> kNames{"sequence", "text"};
  return kNames;
}

struct RandomConfig {
  float rows_kept = 0.8f;
  uint64_t seed = 0;
  KeyedBy keyed_by = KeyedBy::kSequence;
  Units units = Units::kBoth;

  template <class V>
  void visit(V& v) {
    v("rows_kept", rows_kept, "probability that a row runs a unit at inference");
    v("seed", seed, "of the choice at inference");
    v("keyed_by", keyed_by,
      "what draws depend on at inference: sequence, its key; text, all tokens up to the row, so that texts "
      "that begin alike can share that beginning");
    v("units", units, "what is chosen for: attention, mlp, both (each for itself) or block");
  }
};

// A number for the text of each sequence up to each of its rows.
struct TextKeys final : MethodState {
  explicit TextKeys(int64_t longest) : context(longest) {}
  int64_t truncate(Context&, int32_t sequence, int64_t position) override {
    of(sequence).resize(static_cast<size_t>(position));
    return position;
  }
  int64_t fork(Context&, int32_t from, int32_t to, int64_t position) override {
    of(std::max(from, to));  // room first: a reference would not outlive it
    const std::vector<int32_t>& kept = of(from);
    of(to).assign(kept.begin(), kept.begin() + static_cast<ptrdiff_t>(position));
    return position;
  }
  std::vector<int32_t>& of(int32_t sequence) {
    const auto at = static_cast<size_t>(sequence);
    if (at >= keys.size()) keys.resize(at + 1);
    if (keys[at].capacity() == 0) keys[at].reserve(static_cast<size_t>(context));
    return keys[at];
  }
  int32_t add(int32_t sequence, int32_t position, int32_t token) {
    std::vector<int32_t>& own = of(sequence);
    const auto at = static_cast<size_t>(position);
    if (at > own.size()) fail("random by text: row {} of a sequence came before row {}", at, own.size());
    const int32_t before = at == 0 ? 0 : own[at - 1];
    const auto mixed = philox({static_cast<uint32_t>(before), static_cast<uint32_t>(token), 0, 0}, {0, 0});
    own.resize(at + 1);
    return own[at] = static_cast<int32_t>(mixed[0]);
  }

  int64_t context;                         // room for so many rows: later ones allocate nothing
  std::vector<std::vector<int32_t>> keys;  // (sequences, rows)
  // Of this pass, (rows):
  std::vector<BatchRow> room;
  std::vector<int32_t> numbers;
  Tensor rows;  // i32: the numbers
};

class Random final : public Method {
 public:
  std::vector<Field> fields() override { return fields_of(config_); }
  MethodTraits traits() const override {
    return {
        .units = config_.units, .reads_share = true, .own_rule = "a share of the rows runs, drawn at random"};
  }
  std::unique_ptr<MethodState> make_state(Context&, const ModelConfig& config, int64_t) const override {
    if (config_.keyed_by == KeyedBy::kText) return std::make_unique<TextKeys>(config.context);
    return std::make_unique<MethodState>();
  }

  void begin(Context& ctx, const Model&, const Batch& batch, SkipState& state) const override {
    if (state.training || config_.keyed_by == KeyedBy::kSequence) return;
    auto& texts = state.of<TextKeys>(*this);
    texts.numbers.clear();
    for (const BatchRow& row : rows_on_host(ctx, batch, texts.room))
      texts.numbers.push_back(texts.add(row.sequence, row.position, row.token));
    texts.rows = Tensor::from(ctx, texts.numbers, {batch.rows()});
  }

  void score(UnitCall& call, Decision& decision) const override {
    if (config_.units == Units::kBlock && call.input.unit == Unit::kFfn) return;
    SkipState& state = call.state;
    const Batch& batch = call.input.batch;
    const bool by_text = !state.training && config_.keyed_by == KeyedBy::kText;
    decision.score = uniform_noise(call.ctx, state.training ? state.training.seed : config_.seed,
                                   static_cast<uint32_t>(state.training ? state.training.step : 0),
                                   static_cast<uint32_t>(call.input.index()),
                                   by_text ? state.of<TextKeys>(*this).rows : batch.keys, batch.positions);
  }

  RowSet decide(UnitCall& call, const Decision& decision) const override {
    const float kept = call.state.training ? call.state.training.share : config_.rows_kept;
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
