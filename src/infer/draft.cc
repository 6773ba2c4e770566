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

int64_t attention_bytes(const BlockWeights& block) {
  return block.q.nbytes() + block.k.nbytes() + block.v.nbytes() + block.o.nbytes();
}

int64_t ffn_bytes(const BlockWeights& block) {
  return block.gate.nbytes() + block.up.nbytes() + block.down.nbytes();
}

}  // namespace

std::span<const std::string_view> enum_names(DraftKind) {
  static constexpr std::array<std::string_view, 3> kNames{"method", "harm_order", "exit"};
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

std::vector<int32_t> measure_harm_order(Context& ctx, const Model& model, std::string_view text,
                                        int64_t rows) {
  if (!model.tokenizer) fail("the harm order needs the model's tokenizer, to be measured on text");
  std::vector<int32_t> ids = model.tokenizer->encode(text.empty() ? kText : text);
  ids.resize(std::min<size_t>(ids.size(), static_cast<size_t>(std::min(rows, model.config.context))));
  std::vector<BatchRow> batch;
  for (const int32_t id : ids) batch.push_back({id, static_cast<int32_t>(batch.size()), 0, true});
  const ArenaScope scope(ctx);
  const std::vector<Batch> batches{make_batch(ctx, batch)};
  const std::vector<int32_t> protect;
  const PrepareInput input{model, batches, SkippedKv::kHide, true, protect};
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

Speculation make_speculation(const Model& model, const DraftSource& source, const DraftOptions& options,
                             double budget) {
  if (options.drafts < 0 || options.drafts > kMostDrafts)
    fail("a round has from 1 to {} drafts, or 0 (as many as pay), got {}", kMostDrafts, options.drafts);
  if (!(options.budget > 0 && options.budget < 1))
    fail("a draft budget must be above 0 and below 1, got {:g}", options.budget);
  const bool calibrated = source.budgets && !source.budgets->empty();
  const DraftKind kind = options.kind.value_or(calibrated ? DraftKind::kMethod : DraftKind::kHarmOrder);
  DraftRule rule;
  switch (kind) {
    case DraftKind::kMethod:
      if (!calibrated) fail("a draft by the method needs a model with a calibration table");
      if (options.budget >= budget)
        fail("a draft budget must be below the output's, {:g}, got {:g}", budget, options.budget);
      rule.thresholds = source.budgets->thresholds(options.budget);
      break;
    case DraftKind::kHarmOrder:
      if (source.harm_order.empty()) fail("a draft by the harm order needs one, and none was measured");
      rule = harm_order_draft(model.config, source.harm_order, options.budget);
      break;
    case DraftKind::kExit:
      rule = exit_draft(model.config, options.budget);
      break;
  }
  const DraftLength length = options.drafts > 0
                                 ? DraftLength::fixed(options.drafts)
                                 : DraftLength::adaptive(draft_cost(model, rule, options.budget));
  return {std::move(rule), length};
}

DraftCost draft_cost(const Model& model, const DraftRule& rule, double budget) {
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
  return {.draft = kFixed + (1 - kFixed) * (run + head) / (all + head)};
}

}  // namespace fathom
