#include "infer/score.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "ops/token_log_probs.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

// f32 logits of a chunk stay below 32 MB: they are the largest thing a score makes.
int64_t default_chunk(int64_t vocab) {
  return std::clamp<int64_t>((int64_t{8} << 20) / vocab, 16, 512);
}

// ids of the `count` largest of a row, best first, ties to the lower id.
void best_of(std::span<const float> row, size_t count, std::vector<int32_t>& order) {
  order.resize(row.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto better = [&](int32_t a, int32_t b) {
    const float x = row[static_cast<size_t>(a)], y = row[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  count = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(), better);
  order.resize(count);
}

// Of each row of logits (rows, vocab). Their log-probabilities come from the same op as the text's own, so
// that a token that is the most likely has exactly the number of the first one here.
void append_top(Context& ctx, const Tensor& logits, size_t count,
                std::vector<std::vector<TokenLogProb>>& out) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1);
  std::vector<float> row(static_cast<size_t>(vocab));
  std::vector<int32_t> best;
  for (int64_t r = 0; r < rows; ++r) {
    const ArenaScope scope(ctx);
    const Tensor one = logits.rows(r, 1);
    copy_to_host(ctx, one, row);
    best_of(row, count, best);
    std::vector<TokenLogProb>& top = out.emplace_back();
    for (int32_t id : best) {
      float logprob = 0;
      copy_to_host(ctx, token_log_probs(ctx, one, Tensor::from(ctx, std::span<const int32_t>(&id, 1), {1})),
                   {&logprob, 1});
      top.push_back({id, logprob});
    }
  }
}

}  // namespace

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
    fail("score: the text has {} tokens, the context {}: shorten it or raise -c", total, cache.context());
  feeder.truncate(sequence, 0);

  ScoreResult result;
  result.logprobs.assign(ids.size(), 0.0f);
  if (options.top > 0) result.top.emplace_back();
  const int64_t chunk = options.chunk > 0 ? options.chunk : default_chunk(feeder.model().config.vocab);
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
    const Tensor rows = logits.rows(0, targets);
    const Tensor next = Tensor::from(ctx, at(begin + 1).first(static_cast<size_t>(targets)), {targets});
    const std::span<float> out(result.logprobs.data() + begin + 1, static_cast<size_t>(targets));
    copy_to_host(ctx, token_log_probs(ctx, rows, next), out);
    if (options.top > 0) append_top(ctx, rows, static_cast<size_t>(options.top), result.top);
  }
  for (float logprob : result.logprobs) {
    if (std::isnan(logprob))
      fail("score: a log-probability is not a number; the model's weights or the arithmetic are broken");
  }
  return result;
}

}  // namespace fathom
