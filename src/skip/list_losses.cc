#include "skip/list_losses.h"

#include "base/progress.h"
#include "model/transformer.h"
#include "ops/loss/cross_entropy.h"
#include "ops/rows/gather_rows.h"
#include "skip/dense_walk.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

// (rows) on the host; the rows that are there.
std::vector<float> values_of(Context& ctx, const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  copy_to_host(ctx, tensor, values);
  return values;
}

std::vector<uint8_t> without(std::span<const uint8_t> group, int list) {
  std::vector<uint8_t> gone;
  for (const uint8_t each : group) gone.push_back(each > 0 && each <= list);
  return gone;
}

// The logit rows, known to the host to be all there.
Batch with_all_logits(const Batch& batch) {
  Batch all = batch;
  all.logit_rows = RowSet::all(batch.rows());
  return all;
}

}  // namespace

void measure_lists(Context& ctx, const ListMeasure& measure, std::span<const Batch> batches,
                   const std::function<void(const ListLosses&)>& take) {
  Progress progress("harm of each list", std::ssize(batches) * measure.lists);
  for (const Batch& given : batches) {
    const ArenaScope pass(ctx);
    const Batch batch = with_all_logits(given);
    const DenseWalk dense(ctx, measure.model, batch);
    Tensor h = dense.start();
    for (int64_t unit = 0; unit < 2 * measure.layer; ++unit) dense.run(unit, h);
    const Tensor x = unit_input(ctx, measure.model, measure.layer, Unit::kAttention, h);
    const Tensor full = dense.finish(2 * measure.layer, h);
    ListLosses losses{values_of(ctx, x), {}};
    for (int list = 1; list <= measure.lists; ++list) {
      if (measure.cancel && measure.cancel->load(std::memory_order_relaxed)) throw PrepareCancelled{};
      const ArenaScope scope(ctx);
      const std::vector<uint8_t> gone = without(measure.group, list);
      const DenseWalk walk(ctx, measure.model, batch, gone);
      const std::vector<float> kl = values_of(ctx, kl_of_rows(ctx, full, walk.finish(2 * measure.layer, h)));
      losses.kl.emplace_back(kl.begin(), kl.end());
      progress.add(1);
    }
    take(losses);
  }
}

}  // namespace fathom
