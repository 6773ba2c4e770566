#include "infer/score.h"

#include <algorithm>

#include "base/format.h"
#include "infer/broken_unit.h"
#include "tensor/arena.h"

namespace fathom {

double ScoreResult::mean_nll(int64_t from) const {
  double sum = 0;
  const auto first = static_cast<size_t>(std::max<int64_t>(1, from));
  for (size_t i = first; i < logprobs.size(); ++i) sum -= logprobs[i];
  return logprobs.size() > first ? sum / static_cast<double>(logprobs.size() - first) : 0;
}

ScoreResult score(Feeder& feeder, std::span<const int32_t> ids, const ScoreOptions& options,
                  int32_t sequence) {
  Context& ctx = feeder.context();
  KvCache& cache = feeder.cache();
  const auto total = static_cast<int64_t>(ids.size());
  if (total == 0) fail("score: the text has no tokens");
  if (total > cache.context())
    fail("score: the text has {} tokens, the context {}: shorten it or use a longer context", total,
         cache.context());
  feeder.truncate(sequence, 0);

  ScoreResult result;
  result.logprobs.reserve(ids.size());
  result.logprobs.push_back(0);
  if (options.top > 0) result.top.emplace_back();
  const int64_t chunk = options.chunk > 0 ? options.chunk : most_logit_rows(feeder.model().config.vocab);
  // The last token is fed too: its keys and values belong to the text, and the work counted is the text's.
  for (int64_t begin = 0; begin < total; begin += chunk) {
    if (options.cancel && options.cancel->load(std::memory_order_relaxed)) {
      result.cancelled = true;
      return result;
    }
    const ArenaScope scope(ctx);
    const int64_t count = std::min(chunk, total - begin);
    const auto at = [&](int64_t i) { return ids.subspan(static_cast<size_t>(i)); };
    const Tensor logits = feeder.feed(sequence, at(begin).first(static_cast<size_t>(count)), LogitsFor::kAll);
    const int64_t targets = std::min(count, total - begin - 1);  // row i predicts token begin + i + 1
    if (options.on_progress) options.on_progress(count);
    if (targets == 0) break;
    append_log_probs(ctx, logits.rows(0, targets), at(begin + 1).first(static_cast<size_t>(targets)),
                     options.top, result);
  }
  if (const int64_t at = first_nan(result); at >= 0) {
    fail_where_it_broke(
        "score: a log-probability is not a number; the model's weights or the arithmetic are broken", feeder,
        sequence, ids.first(static_cast<size_t>(at)));
  }
  return result;
}

}  // namespace fathom
