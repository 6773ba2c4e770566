// MindSkip with Router-Tuning: a frozen backbone, and a router R = σ(W·x̄) per routed layer that runs or skips
// it where R ≥ τ; x̄ is the mean of a sequence's rows, or the row itself. Straight-through: ∂M/∂R = 1.
//
// W·x̄ is taken as the mean of W·x over the rows, so that what a sequence has to remember is a number per row.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "base/format.h"
#include "model/transformer.h"
#include "ops/rows/assign.h"
#include "ops/rows/by_position.h"
#include "ops/rows/by_sequence.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/reduce.h"
#include "ops/rows/select_rows.h"
#include "skip/harm_order.h"
#include "skip/methods.h"
#include "tensor/memory.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

enum class Routed : uint8_t { kAttention, kMlp, kBlock };
enum class Level : uint8_t { kSequence, kToken };
enum class Loss : uint8_t { kL0, kTarget };
enum class RouterInput : uint8_t { kOwn, kAttentionNorm };
std::span<const std::string_view> enum_names(Routed) {
  static constexpr std::array<std::string_view, 3> kNames{"attention", "mlp", "block"};
  return kNames;
}
std::span<const std::string_view> enum_names(Level) {
  static constexpr std::array<std::string_view, 2> kNames{"sequence", "token"};
  return kNames;
}
std::span<const std::string_view> enum_names(Loss) {
  static constexpr std::array<std::string_view, 2> kNames{"l0", "target"};
  return kNames;
}
std::span<const std::string_view> enum_names(RouterInput) {
  static constexpr std::array<std::string_view, 2> kNames{"own", "attention_norm"};
  return kNames;
}

struct MindSkipConfig {
  Routed units = Routed::kAttention;
  Level level = Level::kSequence;
  Loss loss = Loss::kL0;
  float loss_weight = 0.01f;
  std::string pool = "prefix:64";
  std::vector<int32_t> layers;
  RouterInput router_input = RouterInput::kOwn;
  float threshold = 0.5f;
  bool bias = false;

  template <class V>
  void visit(V& v) {
    v("units", units, "the units that have a router", "unit");
    v("level", level, "a decision for the whole sequence, or for each row");
    v("loss", loss, "l0: mean of the mask; target: how far that mean is above the kept share");
    v("loss_weight", loss_weight, "λ, of each routed layer's loss");
    v("pool", pool,
      "rows that decide for the sequence: prefix:N, the first N, which run everything; prompt: those of the "
      "first pass; full: those of each pass. The last two look ahead and need an unsplit prompt");
    v("layers", layers, "the routed layers; none named: L/2 − 1 … L − 2");
    v("router_input", router_input,
      "the unit's own normalised input, or the attention norm's output (the released code's mlp router)");
    v("threshold", threshold, "τ: runs where R ≥ τ");
    v("bias", bias, "the routers have a bias; init harm_order needs it");
  }
};

struct MindRouter {
  Tensor weight, bias;  // (1, width), (1) or undefined
};

enum class Pool : uint8_t { kPrefix, kPrompt, kFull };
struct PoolRule {
  Pool pool = Pool::kFull;
  int64_t rows = 0;  // of a prefix
};

constexpr std::string_view kPrefixPool = "prefix:";

PoolRule parse_pool(const std::string& text) {
  if (text == "prompt") return {Pool::kPrompt, 0};
  if (text == "full") return {Pool::kFull, 0};
  int64_t rows = 0;
  if (text.starts_with(kPrefixPool)) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + kPrefixPool.size(), end, rows);
    if (error == std::errc() && stop == end && rows > 0 && rows <= 1 << 20) return {Pool::kPrefix, rows};
  }
  fail("mind_skip: pool must be prefix:N with N from 1 to 1048576, prompt or full, got '{}'",
       printable(text));
}

// mask: f32 (rows), 0 or 1. Returns +∞ where it is 1, else 0. (0 · ∞ would be NaN.)
Tensor infinite_where(Context& ctx, const Tensor& mask) {
  constexpr float kMost = std::numeric_limits<float>::max();
  return affine(ctx, affine(ctx, mask, kMost, 0.0f), kMost, 0.0f);
}

// The same rows (dimension 0), and room for more.
Tensor with_room(Context& ctx, const Tensor& old, const Shape& shape) {
  Tensor table = Tensor::owned(ctx.device(), DType::kF32, shape);
  if (old)
    copy_bytes(ctx, table.raw(), ctx.device(), old.raw(), ctx.device(), static_cast<size_t>(old.nbytes()));
  return table;
}

struct MindSkipState final : MethodState {
  MindSkipState(PoolRule rule, bool attention) : pool(rule), skips_attention(attention) {}
  int64_t truncate(Context& ctx, int32_t sequence, int64_t position) override;
  int64_t fork(Context& ctx, int32_t from, int32_t to, int64_t position) override;
  int64_t settle(Context& ctx, int32_t sequence, int64_t rows) override;
  uint8_t& is_settled(int32_t sequence) {
    const auto at = static_cast<size_t>(sequence);
    if (at >= settled.size()) settled.resize(at + 1);
    return settled[at];
  }

  PoolRule pool;  // a prefix of 0 rows where every row decides for itself
  bool skips_attention;
  // Of each routed layer, f32 (sequences, N): W·x of the first N rows; f32 (sequences): the prompt's mean.
  // A sequence that is emptied or truncated overwrites the old values before they are read again.
  std::vector<Tensor> memory;
  // (sequences): 1 when the sequence has decided; skipped layers may then have freed the first N rows' pages.
  std::vector<uint8_t> settled;
  // Of this pass:
  Tensor early;  // f32 (rows): 1 for the first N rows of a sequence; undefined: the pool is not a prefix
  RowSet early_rows = RowSet::none(0);
  Tensor always;  // f32 (rows): +∞ for the same rows, else 0; undefined as `early`
  Tensor fresh;   // f32 (sequences): 1 where the sequence's first row is in the pass (pool prompt)
  Tensor passed;  // the mlp's score, when it is made at attention; lives as long as its block
};

int64_t MindSkipState::truncate(Context&, int32_t sequence, int64_t position) {
  if (pool.pool != Pool::kPrefix) return 0;  // the decision used the whole prompt and cannot forget its end
  if (position >= pool.rows) return position;
  uint8_t& gone = is_settled(sequence);
  return std::exchange(gone, 0) ? 0 : position;
}

int64_t MindSkipState::fork(Context& ctx, int32_t from, int32_t to, int64_t position) {
  if (pool.pool != Pool::kPrefix) return 0;
  is_settled(to) = 0;
  if (is_settled(from)) {
    if (position < pool.rows) return 0;
    is_settled(to) = 1;
  }
  for (Tensor& table : memory) {
    if (from >= table.dim(0)) continue;
    if (to >= table.dim(0)) table = with_room(ctx, table, {to + 1, table.dim(1)});
    Tensor copy = table.rows(to, 1);
    copy_bytes(ctx, copy.raw(), ctx.device(), table.rows(from, 1).raw(), ctx.device(),
               static_cast<size_t>(copy.nbytes()));
  }
  return position;
}

int64_t MindSkipState::settle(Context&, int32_t sequence, int64_t rows) {
  const bool falls = skips_attention && pool.pool == Pool::kPrefix && pool.rows > 0 && rows > pool.rows;
  return falls && !std::exchange(is_settled(sequence), 1) ? pool.rows : -1;
}

class MindSkip final : public Method {
 public:
  std::vector<Field> fields() override { return fields_of(config_); }
  void check(const ModelConfig& config) const override { routed_layers(config); }
  std::vector<MethodParameter> parameters(const ModelConfig& config) override;
  std::unique_ptr<MethodState> make_state(Context&, const ModelConfig&, int64_t) const override {
    // begin() makes room for the sequences that come.
    const PoolRule each_row{Pool::kPrefix, 0};
    return std::make_unique<MindSkipState>(
        config_.level == Level::kSequence ? parse_pool(config_.pool) : each_row,
        config_.units != Routed::kMlp);
  }
  void check_training(float) const override {
    if (config_.level == Level::kToken && config_.pool != MindSkipConfig().pool)
      fail("mind_skip: pool ({}) is for level: sequence, and does nothing with level: token: leave it out",
           printable(config_.pool));
    if (config_.router_input != MindSkipConfig().router_input && config_.units != Routed::kMlp)
      fail("mind_skip: router_input is for units: mlp, whose own input is another: leave it out");
  }
  void prepare(Context& ctx, const PrepareInput& input) override;

  MethodTraits traits() const override {
    constexpr std::array kUnits{Units::kAttention, Units::kFfn, Units::kBlock};
    const bool whole = config_.level == Level::kSequence && !config_.pool.starts_with(kPrefixPool);
    return {.units = kUnits[static_cast<size_t>(config_.units)],
            .needs_whole_prompt = whole,
            .straight_through = true,
            .freezes_backbone = true,
            .starts_by_harm = true,
            .reads_share = config_.loss == Loss::kTarget,
            .own_rule = "what its routers rate above 0.5 runs",
            .own_rule_skips = true};
  }
  void begin(Context& ctx, const Model& model, const Batch& batch, SkipState& state) const override;
  void score(UnitCall& call, Decision& decision) const override;
  RowSet decide(UnitCall& call, const Decision& decision) const override;
  // One τ for all routers, as the paper has one.
  float threshold_weight(const ModelConfig&, int64_t, SkippedKv) const override { return 1; }
  // A sequence that skips is skipped by all its later rows: nobody would look. In training the skipped
  // branch is computed for its gradient, as it would have been: over all its keys.
  SkippedKv skipped_kv(bool training) const override {
    return config_.level == Level::kSequence && !training ? SkippedKv::kHide : SkippedKv::kProject;
  }
  Tensor penalty(Context& ctx, const LossInput& input) const override;

 private:
  std::vector<int32_t> routed_layers(const ModelConfig& config) const;
  Tensor rate(UnitCall& call, size_t router, const RowSet& rows) const;
  Tensor mean_rate(UnitCall& call, size_t router) const;
  Tensor held_rate(UnitCall& call, size_t router) const;
  Tensor score_of(UnitCall& call, size_t router) const;

  MindSkipConfig config_;
  PoolRule pool_;
  std::vector<MindRouter> routers_;
  std::vector<int32_t> router_of_;  // (layers): which router, or -1
};

std::vector<int32_t> MindSkip::routed_layers(const ModelConfig& config) const {
  parse_pool(config_.pool);
  std::vector<int32_t> layers = config_.layers;
  if (layers.empty()) {
    for (int64_t i = std::max<int64_t>(0, config.layers / 2 - 1); i < std::max<int64_t>(1, config.layers - 1);
         ++i)
      layers.push_back(static_cast<int32_t>(i));
  }
  std::vector<bool> seen(static_cast<size_t>(config.layers));
  for (const int32_t layer : layers) {
    if (layer < 0 || layer >= config.layers)
      fail("mind_skip: layers must be from 0 to {}, got {}", config.layers - 1, layer);
    if (seen[static_cast<size_t>(layer)]) fail("mind_skip: layer {} is named twice", layer);
    seen[static_cast<size_t>(layer)] = true;
  }
  return layers;
}

std::vector<MethodParameter> MindSkip::parameters(const ModelConfig& config) {
  pool_ = parse_pool(config_.pool);
  const std::vector<int32_t> layers = routed_layers(config);
  routers_.resize(layers.size());
  router_of_.assign(static_cast<size_t>(config.layers), -1);
  std::vector<MethodParameter> all;
  for (size_t i = 0; i < layers.size(); ++i) {
    router_of_[static_cast<size_t>(layers[i])] = static_cast<int32_t>(i);
    const std::string prefix = fmt::format("layers.{}.router.", layers[i]);
    all.push_back({prefix + "weight", &routers_[i].weight, {1, config.width}});
    if (config_.bias) all.push_back({prefix + "bias", &routers_[i].bias, {1}, 0, 0, false});
  }
  return all;
}

// Every layer runs at first, the least harmful ones nearest to their threshold.
void MindSkip::prepare(Context& ctx, const PrepareInput& input) {
  if (!input.harm_order) return;
  if (!config_.bias) fail("mind_skip: init harm_order sets the routers' biases: say bias true as well");
  std::vector<int32_t> routed;  // routers, least harmful first
  for (const int64_t unit : harm_order(ctx, input)) {
    const int32_t router = router_of_[static_cast<size_t>(unit / 2)];
    const bool ours = config_.units == Routed::kMlp ? unit % 2 == 1 : unit % 2 == 0;
    if (router >= 0 && ours) routed.push_back(router);
  }
  for (size_t rank = 0; rank < routed.size(); ++rank) {
    const float start = static_cast<float>(rank) / static_cast<float>(std::max<size_t>(1, routed.size() - 1));
    copy_from_host(ctx, std::span(&start, 1), routers_[static_cast<size_t>(routed[rank])].bias);
  }
}

void MindSkip::begin(Context& ctx, const Model&, const Batch& batch, SkipState& state) const {
  auto& mine = state.of<MindSkipState>(*this);
  mine.early = mine.always = mine.fresh = mine.passed = {};
  if (config_.level == Level::kToken) return;
  if (pool_.pool == Pool::kPrefix) {
    mine.early = before_position(ctx, batch.positions, pool_.rows);
    mine.early_rows = select_rows(ctx, mine.early, Compare::kAbove, scalar(ctx, 0));
    mine.always = infinite_where(ctx, mine.early);
  } else if (pool_.pool == Pool::kPrompt && !state.training) {
    const Tensor first = before_position(ctx, batch.positions, 1);
    const Tensor share =
        mean_by_sequence(ctx, first.reshape({first.dim(0), 1}), batch.sequence, {}, batch.sequences);
    mine.fresh =
        row_mask(ctx, select_rows(ctx, share.reshape({batch.sequences}), Compare::kAbove, scalar(ctx, 0)),
                 batch.sequences);
  }
  if (state.training || pool_.pool == Pool::kFull) return;
  mine.memory.resize(routers_.size());
  for (Tensor& memory : mine.memory) {
    if (memory && memory.dim(0) >= batch.sequences) continue;
    memory =
        with_room(ctx, memory,
                  pool_.pool == Pool::kPrefix ? Shape{batch.sequences, pool_.rows} : Shape{batch.sequences});
  }
}

// W·x of the given rows of the unit's input -> (capacity)
Tensor MindSkip::rate(UnitCall& call, size_t router, const RowSet& rows) const {
  const UnitInput& input = call.input;
  const Tensor x =
      unit_input(call.ctx, input.model, input.layer, input.unit, gather_rows(call.ctx, input.h, rows));
  return scalar_head(call.ctx, x, routers_[router].weight, routers_[router].bias);
}

// The mean over each sequence's rows of this pass, of the early ones where there are such. -> (sequences)
Tensor MindSkip::mean_rate(UnitCall& call, size_t router) const {
  const Batch& batch = call.input.batch;
  const Tensor z = rate(call, router, RowSet::all(call.rows()));
  const Tensor& early = call.state.of<MindSkipState>(*this).early;
  return mean_by_sequence(call.ctx, z.reshape({z.dim(0), 1}), batch.sequence, early, batch.sequences)
      .reshape({batch.sequences});
}

// The same at inference, where passes may hold any piece of a sequence: from what its first rows, or its
// first pass, left behind. One fixed order, so any pieces give the same bits. -> (sequences)
Tensor MindSkip::held_rate(UnitCall& call, size_t router) const {
  Context& ctx = call.ctx;
  const Batch& batch = call.input.batch;
  auto& mine = call.state.of<MindSkipState>(*this);
  Tensor memory = mine.memory[router].rows(0, batch.sequences);
  if (pool_.pool == Pool::kPrefix) {
    RowSet rows = mine.early_rows;
    if (const RowSet* present = call.input.present)  // who is not there yet has nothing to leave
      rows = select_rows(ctx, multiply(ctx, mine.early, row_mask(ctx, *present, call.rows())),
                         Compare::kAbove, scalar(ctx, 0));
    store_by_position(ctx, memory, rate(call, router, rows), rows, batch.sequence, batch.positions);
    return mean_columns(ctx, memory);
  }
  const Tensor held = multiply(ctx, memory, affine(ctx, mine.fresh, -1.0f, 1.0f));
  assign(ctx, memory, add(ctx, held, multiply(ctx, mean_rate(call, router), mine.fresh)));
  return memory;
}

// R of every row. Rows of the prefix run whatever R and the threshold are: theirs is the constant 1.
Tensor MindSkip::score_of(UnitCall& call, size_t router) const {
  Context& ctx = call.ctx;
  if (config_.level == Level::kToken)
    return apply(ctx, Unary::kSigmoid, rate(call, router, RowSet::all(call.rows())));
  const Tensor mean =
      call.state.training || pool_.pool == Pool::kFull ? mean_rate(call, router) : held_rate(call, router);
  const Tensor r = expand_by_sequence(ctx, apply(ctx, Unary::kSigmoid, mean), call.input.batch.sequence);
  const Tensor& early = call.state.of<MindSkipState>(*this).early;
  return early ? add(ctx, multiply(ctx, r, affine(ctx, early, -1.0f, 1.0f)), early) : r;
}

void MindSkip::score(UnitCall& call, Decision& decision) const {
  const int32_t router = router_of_[static_cast<size_t>(call.input.layer)];
  if (router < 0) return;
  const bool attention = call.input.unit == Unit::kAttention, mlp = config_.units == Routed::kMlp;
  Tensor& passed = call.state.of<MindSkipState>(*this).passed;
  const bool before = mlp && config_.router_input == RouterInput::kAttentionNorm;
  if (mlp && !attention) {
    decision.score = before ? passed : score_of(call, static_cast<size_t>(router));
  } else if (attention && before) {
    passed = score_of(call, static_cast<size_t>(router));
  } else if (attention && !mlp) {
    decision.score = score_of(call, static_cast<size_t>(router));
  }
}

RowSet MindSkip::decide(UnitCall& call, const Decision& decision) const {
  if (!decision.score) return RowSet::all(call.rows());
  const Tensor& always = call.state.of<MindSkipState>(*this).always;
  // No finite threshold reaches +∞, and calibration leaves out scores that are not finite. Where another
  // method scores, the first rows have scores like all others.
  const bool forced = always && call.state.alone == this;
  const Tensor score = forced ? add(call.ctx, detach(decision.score), always) : decision.score;
  return above_threshold(call, score, std::nextafter(config_.threshold, -INFINITY));  // R ≥ τ
}

// λ Σ over routed layers of mean(M), or of what it exceeds the target by; the mean over sequences, or over
// rows.
Tensor MindSkip::penalty(Context& ctx, const LossInput& input) const {
  Tensor counted;  // f32 (rows): one row of each sequence that could skip; undefined: every row
  if (config_.level == Level::kSequence) {
    const int64_t row = pool_.pool == Pool::kPrefix ? pool_.rows : 0;
    const Tensor& positions = input.batch.positions;
    counted = add(ctx, before_position(ctx, positions, row + 1),
                  affine(ctx, before_position(ctx, positions, row), -1.0f, 0.0f));
  }
  std::vector<Tensor> terms;
  for (const UnitRecord& unit : input.state.pass.units) {
    const Tensor& r = unit.decision.score;
    if (!r || (config_.units == Routed::kBlock && unit.unit % 2 == 1)) continue;
    const Tensor soft = mean_rows(ctx, r, counted);
    const Tensor ran = mean_rows(ctx, row_mask(ctx, unit.decision.kept, r.dim(0)), counted);
    Tensor m = weighted_sum(ctx, std::array{soft, ran, detach(soft)}, std::array{1.0f, 1.0f, -1.0f});
    if (config_.loss == Loss::kTarget)
      m = apply(ctx, Unary::kRelu, affine(ctx, m, 1.0f, -input.state.training.share));
    terms.push_back(m);
  }
  if (terms.empty()) return {};
  return weighted_sum(ctx, terms, std::vector<float>(terms.size(), config_.loss_weight));
}

}  // namespace

std::unique_ptr<Method> make_mind_skip() {
  return std::make_unique<MindSkip>();
}

}  // namespace fathom
