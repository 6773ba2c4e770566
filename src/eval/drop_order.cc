#include "eval/drop_order.h"

#include <algorithm>

#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int64_t kRowsOfAPass = 512;

// Short sequences share a pass. One that is longer than `most` rows has its own.
std::vector<Batch> passes(Context& ctx, std::span<const std::vector<int32_t>> sequences, size_t most) {
  std::vector<Batch> batches;
  std::vector<BatchRow> rows;
  const auto end_pass = [&] {
    if (!rows.empty()) batches.push_back(make_batch(ctx, rows));
    rows.clear();
  };
  for (const std::vector<int32_t>& ids : sequences) {
    if (rows.size() + ids.size() > most) end_pass();
    const int32_t sequence = rows.empty() ? 0 : rows.back().sequence + 1;
    int32_t position = 0;
    for (const int32_t id : ids) rows.push_back({id, position++, sequence, true});
  }
  end_pass();
  return batches;
}

}  // namespace

std::optional<DropOrder> drop_order(Context& ctx, const Model& model,
                                    std::span<const std::vector<int32_t>> sequences,
                                    const DropOrderOptions& options, const std::string& folder) {
  const ArenaScope scope(ctx);
  const int64_t length = std::min(kRowsOfAPass, model.config.context);
  const std::vector<Batch> batches = passes(ctx, sequences, static_cast<size_t>(length));
  const std::vector<int32_t> protect;
  Measurements kept(ctx, folder, model, batches);
  const PrepareInput input{model, batches, SkippedKv::kHide, true, protect, options.cancel, &kept};
  try {
    const std::vector<int64_t> found = found_order(ctx, input, options.search, options.until, length);
    return DropOrder{{found.begin(), found.end()}, !kept.measured()};
  } catch (const PrepareCancelled&) {
    return std::nullopt;
  }
}

}  // namespace fathom
