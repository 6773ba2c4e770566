#include "infer/draft.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/format.h"
#include "skip/harm_order.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

// Plain English of several kinds; what it says does not matter.
constexpr const char* kText =
    "The harbour was quiet when the first boats came in. Anna counted the crates twice, wrote 42 in her "
    "book, "
    "and asked the captain why the ice had not lasted. \"It was the heat,\" he said, \"and we had to wait a "
    "day "
    "for the wind.\" Water boils at a lower temperature on a mountain, because the air presses on it less. "
    "To "
    "add two fractions, first bring them to the same denominator.";

// Of a plain pass, what no draft leaves out: norms, decisions, the choice of a token, the threads' meetings.
// (Fitted to a few runs on SmolLM2: with half of the blocks about 0.66 of a plain pass, by bytes 0.61.)
constexpr double kFixed = 0.1;

// Cycles of a Neoverse-V1 core for 128 weights: of products whose weights are near; and what memory gives it.
// (docs/benchmarks.md: one and two rows of Q8_0 take what memory takes, 11.3; four 10.6 near and 13.4 from
// memory.)
struct Cycles {
  double two_rows, four_rows;
};
constexpr Cycles kBlockCycles{7.1, 10.6}, kFloatCycles{16, 32};
constexpr double kBytesACycle = 12;
// Of a plain pass, what is no product, and what each further row takes for itself: attention, activations,
// the choice of a token. The narrower a model, the more. (Two, four and eight rows of SmolLM2 in Q8_0
// took 1.13, 1.50 and 2.60 passes, of a width of 2048 1.07, 1.29 and 2.51.)
constexpr double kOtherOfWidth = 173, kOtherMost = 0.5;
constexpr double kRowFixed = 0.02, kRowOfWidth = 59, kRowMost = 0.3;

int64_t attention_bytes(const BlockWeights& block) {
  return block.q.nbytes() + block.k.nbytes() + block.v.nbytes() + block.o.nbytes();
}

int64_t ffn_bytes(const BlockWeights& block) {
  return block.gate.nbytes() + block.up.nbytes() + block.down.nbytes();
}

}  // namespace

std::span<const std::string_view> enum_names(DraftKind) {
  static constexpr std::array<std::string_view, 4> kNames{"method", "harm_order", "exit", "lookup"};
  return kNames;
}

DraftRule exit_draft(const ModelConfig& config, double budget) {
  const auto blocks =
      std::clamp<int64_t>(std::llround(budget * static_cast<double>(config.layers)), 1, config.layers);
  DraftRule rule;
  rule.dropped.assign(static_cast<size_t>(2 * config.layers), 0);
  std::fill(rule.dropped.begin() + 2 * blocks, rule.dropped.end(), uint8_t{1});
  return rule;
}

std::vector<int32_t> measure_harm_order(Context& ctx, const Model& model, const std::atomic<bool>* cancel,
                                        std::string_view text, int64_t rows) {
  if (!model.tokenizer) fail("the harm order needs the model's tokenizer, to be measured on text");
  std::vector<int32_t> ids = model.tokenizer->encode(text.empty() ? kText : text);
  ids.resize(std::min<size_t>(ids.size(), static_cast<size_t>(std::min(rows, model.config.context))));
  std::vector<BatchRow> batch;
  for (const int32_t id : ids) batch.push_back({id, static_cast<int32_t>(batch.size()), 0, true});
  const ArenaScope scope(ctx);
  const std::vector<Batch> batches{make_batch(ctx, batch)};
  const std::vector<int32_t> protect;
  const PrepareInput input{model, batches, SkippedKv::kHide, true, protect, cancel};
  const std::vector<int64_t> harmless_first = harm_order(ctx, input, rows);
  return {harmless_first.begin(), harmless_first.end()};
}

DraftRule harm_order_draft(const ModelConfig& config, std::span<const int32_t> order, double budget) {
  DraftRule rule;
  rule.dropped.assign(static_cast<size_t>(2 * config.layers), 0);
  const size_t gone = units_beyond(config, order, budget, SkippedKv::kHide, kHarmRows);
  for (const int32_t unit : order.first(gone)) rule.dropped[static_cast<size_t>(unit)] = 1;
  return rule;
}

std::optional<DraftKind> draft_kind(const DraftOptions& options, bool calibrated) {
  if (options.kind || options.drafts == 0) return options.kind;
  return calibrated ? DraftKind::kMethod : DraftKind::kHarmOrder;
}

namespace {

void check_options(const Model& model, const DraftOptions& options) {
  if (options.drafts < 0 || options.drafts > kMostDrafts)
    fail("a round has from 1 to {} drafts, or 0 (as many as pay), got {}", kMostDrafts, options.drafts);
  if (!(options.budget > 0 && options.budget < 1))
    fail("a draft budget must be above 0 and below 1, got {:g}", options.budget);
  if (options.vocab < 0 || options.vocab > model.config.vocab)
    fail("drafts are drawn from 1 to {} tokens (the model's vocabulary), or 0 (all), got {}",
         model.config.vocab, options.vocab);
  if (options.vocab > 0 && options.kind == DraftKind::kLookup)
    fail("drafts that are looked up are drawn from no vocabulary: theirs must be 0, got {}", options.vocab);
}

DraftRule rule_of(const Model& model, const DraftSource& source, DraftKind kind, double draft_budget,
                  double budget) {
  switch (kind) {
    case DraftKind::kMethod: {
      if (!source.budgets || source.budgets->empty())
        fail("a draft by the method needs a model with a calibration table");
      if (draft_budget >= budget)
        fail("a draft budget must be below the output's, {:g}, got {:g}", budget, draft_budget);
      DraftRule rule;
      rule.thresholds = source.budgets->thresholds(draft_budget);
      return rule;
    }
    case DraftKind::kHarmOrder:
      if (source.harm_order.empty()) fail("a draft by the harm order needs one, and none was measured");
      return harm_order_draft(model.config, source.harm_order, draft_budget);
    case DraftKind::kExit:
      return exit_draft(model.config, draft_budget);
    case DraftKind::kLookup:
      break;
  }
  return {};
}

}  // namespace

Speculation make_speculation(const Model& model, const DraftSource& source, const DraftOptions& options,
                             double budget) {
  check_options(model, options);
  const bool calibrated = source.budgets && !source.budgets->empty();
  std::optional<DraftKind> kind = options.kind;
  Speculation made;
  made.vocab = options.vocab;
  if (!kind && calibrated && options.budget < budget) {
    kind = DraftKind::kMethod;
  } else if (!kind && !source.harm_order.empty()) {
    kind = DraftKind::kHarmOrder;
  }
  const bool chooses = !options.kind && options.drafts == 0;
  const bool by_lookup = chooses || !kind || kind == DraftKind::kLookup;
  const bool by_model = kind && kind != DraftKind::kLookup;
  const double stake = by_lookup && by_model ? kDraftStake / 2 : kDraftStake;
  if (by_model) {
    made.rule = rule_of(model, source, *kind, options.budget, budget);
    made.length.model =
        options.drafts > 0
            ? DraftLength::fixed(options.drafts)
            : DraftLength::adaptive(draft_cost(model, made.rule, options.budget, options.vocab), stake);
  }
  if (by_lookup) {
    made.length.lookup = options.drafts > 0 ? LookupLength::fixed(options.drafts)
                                            : LookupLength::adaptive(pass_cost(model), stake);
  }
  return made;
}

DraftCost pass_cost(const Model& model) {
  const DType type = model.weights.output.dtype();
  if (model.weights.output.device() == Device::kCuda)
    return {.row = 0.005, .first_four = 1, .further_four = 0};
  double bytes = 0, elements = 0;
  const auto add = [&](const Tensor& weight) {
    bytes += static_cast<double>(weight.nbytes());
    elements += static_cast<double>(weight.numel());
  };
  for (const BlockWeights& block : model.weights.blocks) {
    for (const Tensor* weight :
         {&block.q, &block.k, &block.v, &block.o, &block.gate, &block.up, &block.down}) {
      if (*weight) add(*weight);
    }
  }
  add(model.weights.output);
  const Cycles& near = is_block_format(type) ? kBlockCycles : kFloatCycles;
  const double memory = 128 * bytes / elements / kBytesACycle, one = std::max(memory, near.two_rows);
  const auto width = static_cast<double>(model.config.width);
  const double other = std::min(kOtherMost, kOtherOfWidth / width), products = 1 - other;
  return {.row = std::min(kRowMost, kRowFixed + kRowOfWidth / width),
          .first_four = other + products * std::max(1.0, (near.four_rows + memory / 4) / one),
          .further_four = products * near.four_rows / one};
}

DraftCost draft_cost(const Model& model, const DraftRule& rule, double budget, int64_t vocab) {
  const auto& blocks = model.weights.blocks;
  double all = 0, run = 0;
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    const std::array<int64_t, 2> bytes{attention_bytes(blocks[layer]), ffn_bytes(blocks[layer])};
    for (size_t unit = 0; unit < 2; ++unit) {
      all += static_cast<double>(bytes[unit]);
      const bool dropped = !rule.dropped.empty() && rule.dropped[2 * layer + unit];
      run += dropped ? 0.0 : static_cast<double>(bytes[unit]);
    }
  }
  if (!rule.thresholds.empty()) run *= budget;
  const auto head = static_cast<double>(model.weights.output.nbytes());
  const double read =
      vocab > 0 ? static_cast<double>(vocab) / static_cast<double>(model.config.vocab) * head : head;
  DraftCost cost = pass_cost(model);
  cost.draft = kFixed + (1 - kFixed) * (run + read) / (all + head);
  return cost;
}

}  // namespace fathom
