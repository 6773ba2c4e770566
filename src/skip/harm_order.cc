#include "skip/harm_order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/format.h"
#include "base/progress.h"
#include "ops/loss/cross_entropy.h"
#include "skip/dense_walk.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

int64_t logit_count(Context& ctx, const Batch& batch) {
  if (batch.logit_rows.is_none()) return 0;
  if (batch.logit_rows.is_all()) return batch.rows();
  int32_t count = 0;
  copy_to_host(ctx, batch.logit_rows.count(), std::span(&count, 1));
  return count;
}

// Adds Σ over the batch's rows of KL(full depth ‖ without `gone` and the unit) for every unit that is left.
// Each run without a unit starts from the state below it: half the work of whole passes, and two states in
// memory.
void add_harm(Context& ctx, const PrepareInput& input, const Batch& batch, int64_t rows,
              std::span<const uint8_t> gone, std::vector<double>& harm, Progress& progress) {
  const ArenaScope pass(ctx);
  const DenseWalk dense(ctx, input.model, batch), walk(ctx, input.model, batch, gone);
  Tensor h = walk.start();
  const Tensor full = dense.finish(0, h);
  const std::vector<float> ones(static_cast<size_t>(rows), 1.0f);
  const Tensor weights = Tensor::from(ctx, ones, {rows});
  for (int64_t unit = 0; unit < walk.units(); ++unit) {
    if (input.cancel && input.cancel->load(std::memory_order_relaxed)) throw PrepareCancelled{};
    if (walk.is_gone(unit)) continue;
    const ArenaScope scope(ctx);
    float sum = 0;
    copy_to_host(ctx, kl_divergence(ctx, full, walk.finish(unit + 1, h), weights), std::span(&sum, 1));
    harm[static_cast<size_t>(unit)] += double{sum};
    walk.run(unit, h);
    progress.add(1);
  }
}

// Mean over the rows.
std::vector<double> measured_harm(Context& ctx, const PrepareInput& input, std::span<const uint8_t> gone,
                                  Progress& progress) {
  std::vector<double> harm(static_cast<size_t>(2 * input.model.config.layers), 0.0);
  int64_t total = 0;
  for (const Batch& batch : input.batches) {
    const int64_t rows = logit_count(ctx, batch);
    if (rows == 0) continue;
    add_harm(ctx, input, batch, rows, gone, harm, progress);
    total += rows;
  }
  if (total == 0) fail("the harm order needs text: no row of the batches it got wants logits");
  for (double& each : harm) each /= static_cast<double>(total);
  return harm;
}

// The same, kept; infinite where a unit is gone.
std::vector<double> mean_harm(Context& ctx, const PrepareInput& input, std::span<const uint8_t> gone,
                              Progress& progress) {
  std::string name = "harm";
  for (size_t unit = 0; unit < gone.size(); ++unit) {
    if (gone[unit]) name += fmt::format("{} {}", name == "harm" ? " without" : "", unit);
  }
  std::vector<double> harm =
      kept_or_measured(input.kept, name, static_cast<size_t>(2 * input.model.config.layers),
                       [&] { return measured_harm(ctx, input, gone, progress); });
  for (size_t unit = 0; unit < gone.size(); ++unit) {
    if (gone[unit]) harm[unit] = INFINITY;
  }
  return harm;
}

// Harm over cost, in place; infinite in protected layers.
void rate_by_cost(const PrepareInput& input, int64_t cost_context, std::vector<double>& harm) {
  for (size_t unit = 0; unit < harm.size(); ++unit) {
    const auto index = static_cast<int64_t>(unit);
    harm[unit] /= avoided_madds_at(input.model.config, index, input.skipped_kv, cost_context);
    const auto layer = static_cast<int32_t>(unit / 2);
    const bool kept = std::find(input.protect.begin(), input.protect.end(), layer) != input.protect.end();
    if (kept || std::isnan(harm[unit])) harm[unit] = INFINITY;
  }
}

int64_t passes(const PrepareInput& input) {
  return static_cast<int64_t>(input.batches.size());
}

}  // namespace

double avoided_madds(const ModelConfig& config, Unit unit, SkippedKv skipped_kv, int64_t context) {
  const auto width = static_cast<double>(config.width);
  if (unit == Unit::kFfn) return 3.0 * width * static_cast<double>(config.ffn_width);
  const auto q_width = static_cast<double>(config.heads * config.head_dim),
             kv_width = static_cast<double>(config.kv_heads * config.head_dim);
  const double queries = 2.0 * width * q_width + 2.0 * static_cast<double>(context) * q_width;
  return skipped_kv == SkippedKv::kProject ? queries : queries + 2.0 * width * kv_width;
}

double avoided_madds_at(const ModelConfig& config, int64_t unit, SkippedKv skipped_kv, int64_t context) {
  const bool first = skipped_kv == SkippedKv::kCopyFromBelow && copied_layer(config, unit / 2) < 0;
  return avoided_madds(config, unit % 2 == 0 ? Unit::kAttention : Unit::kFfn,
                       first ? SkippedKv::kProject : skipped_kv, context);
}

double unit_madds(const ModelConfig& config, int64_t unit, int64_t context) {
  return avoided_madds(config, unit % 2 == 0 ? Unit::kAttention : Unit::kFfn, SkippedKv::kHide, context);
}

std::vector<double> shares_left(const ModelConfig& config, std::span<const int32_t> order,
                                SkippedKv skipped_kv, int64_t cost_context) {
  const double total = static_cast<double>(config.layers) *
                       (unit_madds(config, 0, cost_context) + unit_madds(config, 1, cost_context));
  std::vector<double> shares;
  double left = total;
  for (const int32_t unit : order) {
    left -= avoided_madds_at(config, unit, skipped_kv, cost_context);
    shares.push_back(left / total);
  }
  return shares;
}

size_t units_gone(std::span<const double> left, double share) {
  size_t gone = 0;
  while (gone < left.size() && goes_at(share, gone == 0 ? 1.0 : left[gone - 1])) ++gone;
  return gone;
}

size_t units_beyond(const ModelConfig& config, std::span<const int32_t> order, double share,
                    SkippedKv skipped_kv, int64_t cost_context) {
  return units_gone(shares_left(config, order, skipped_kv, cost_context), share);
}

std::vector<double> unit_harm(Context& ctx, const PrepareInput& input, std::span<const uint8_t> gone) {
  Progress progress("harm of each unit", 2 * input.model.config.layers * passes(input));
  return mean_harm(ctx, input, gone, progress);
}

std::vector<double> harm_rate(Context& ctx, const PrepareInput& input, int64_t cost_context) {
  std::vector<double> rate = unit_harm(ctx, input);
  rate_by_cost(input, cost_context, rate);
  return rate;
}

std::vector<int64_t> order_of(std::span<const double> rate) {
  std::vector<int64_t> order(rate.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return rate[static_cast<size_t>(a)] < rate[static_cast<size_t>(b)];
  });
  return order;
}

std::vector<int64_t> harm_order(Context& ctx, const PrepareInput& input, int64_t cost_context) {
  return order_of(harm_rate(ctx, input, cost_context));
}

std::vector<int64_t> greedy_harm_order(Context& ctx, const PrepareInput& input, double until,
                                       int64_t cost_context) {
  const ModelConfig& config = input.model.config;
  const auto units = static_cast<size_t>(2 * config.layers);
  double total = 0;
  for (int64_t unit = 0; unit < 2 * config.layers; ++unit) total += unit_madds(config, unit, cost_context);
  Progress progress("harm of each unit, greedily", config.layers * (2 * config.layers + 1) * passes(input));
  std::vector<uint8_t> gone(units, 0);
  std::vector<int64_t> order;
  double left = total;
  while (true) {
    std::vector<double> rate = mean_harm(ctx, input, gone, progress);
    rate_by_cost(input, cost_context, rate);
    const auto least = std::min_element(rate.begin(), rate.end()) - rate.begin();
    const bool none = std::isinf(rate[static_cast<size_t>(least)]);  // only protected ones are left
    if (!none) {
      order.push_back(least);
      gone[static_cast<size_t>(least)] = 1;
      left -= avoided_madds_at(config, least, input.skipped_kv, cost_context);
    }
    if (!none && left > until * total) continue;
    for (const int64_t unit : order_of(rate)) {
      if (!gone[static_cast<size_t>(unit)]) order.push_back(unit);
    }
    return order;
  }
}

std::span<const std::string_view> enum_names(OrderSearch) {
  static constexpr std::array<std::string_view, 2> kNames{"once", "greedily"};
  return kNames;
}

std::vector<int64_t> found_order(Context& ctx, const PrepareInput& input, OrderSearch search, double until,
                                 int64_t cost_context) {
  if (search == OrderSearch::kOnce) return harm_order(ctx, input, cost_context);
  return greedy_harm_order(ctx, input, until, cost_context);
}

}  // namespace fathom
