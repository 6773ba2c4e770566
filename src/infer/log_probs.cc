#include "infer/log_probs.h"

#include <algorithm>
#include <cmath>

#include "ops/loss/token_log_probs.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

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

}  // namespace

std::vector<TokenLogProb> top_log_probs(Context& ctx, const Tensor& logits, int64_t count) {
  std::vector<float> row(static_cast<size_t>(logits.dim(1)));
  copy_to_host(ctx, logits, row);
  std::vector<int32_t> best;
  best_of(row, static_cast<size_t>(count), best);
  std::vector<TokenLogProb> top;
  for (const int32_t id : best) {
    const ArenaScope scope(ctx);
    float logprob = 0;
    const Tensor one = Tensor::from(ctx, std::span<const int32_t>(&id, 1), {1});
    copy_to_host(ctx, token_log_probs(ctx, logits, one), {&logprob, 1});
    top.push_back({id, logprob});
  }
  return top;
}

void append_log_probs(Context& ctx, const Tensor& logits, std::span<const int32_t> next, int64_t top,
                      LogProbs& out) {
  const int64_t rows = logits.dim(0);
  const size_t before = out.logprobs.size();
  out.logprobs.resize(before + next.size());
  const Tensor targets = Tensor::from(ctx, next, {rows});
  copy_to_host(ctx, token_log_probs(ctx, logits, targets), std::span(out.logprobs).subspan(before));
  if (top <= 0) return;
  for (int64_t row = 0; row < rows; ++row) out.top.push_back(top_log_probs(ctx, logits.rows(row, 1), top));
}

int64_t first_nan(const LogProbs& log_probs) {
  const std::vector<float>& all = log_probs.logprobs;
  const auto at = std::find_if(all.begin(), all.end(), [](float x) { return std::isnan(x); });
  return at == all.end() ? -1 : at - all.begin();
}

int64_t most_logit_rows(int64_t vocab) {
  return std::clamp<int64_t>((int64_t{8} << 20) / vocab, 16, 512);
}

}  // namespace fathom
