#include "infer/feeder.h"

#include "base/format.h"
#include "model/flops.h"

namespace fathom {

void Feeder::check_token(int32_t token) const {
  if (token >= 0 && token < model_.config.vocab) return;
  fail("token {} is not in the model's vocabulary of {}", token, model_.config.vocab);
}

Tensor Feeder::feed(int32_t sequence, std::span<const int32_t> tokens, LogitsFor logits) {
  for (int32_t token : tokens) check_token(token);
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t past = cache_.rows(sequence);
  cache_.reserve(ctx_, sequence, count);
  rows_.clear();
  for (int64_t i = 0; i < count; ++i) {
    const bool wants = logits == LogitsFor::kAll || (logits == LogitsFor::kLast && i + 1 == count);
    rows_.push_back({tokens[static_cast<size_t>(i)], static_cast<int32_t>(past + i), sequence, wants});
  }
  const DenseWork dense =
      dense_work(model_.config, count, past, logits == LogitsFor::kAll ? count : logits == LogitsFor::kLast);
  dense_block_madds_ += dense.block_madds;
  dense_output_madds_ += dense.output_madds;
  return run();
}

Tensor Feeder::feed_each(std::span<const int32_t> sequences, std::span<const int32_t> tokens) {
  rows_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    check_token(tokens[i]);
    const int64_t past = cache_.rows(sequences[i]);
    cache_.reserve(ctx_, sequences[i], 1);
    rows_.push_back({tokens[i], static_cast<int32_t>(past), sequences[i], true});
    const DenseWork dense = dense_work(model_.config, 1, past, 1);
    dense_block_madds_ += dense.block_madds;
    dense_output_madds_ += dense.output_madds;
  }
  return run();
}

Tensor Feeder::run() {
  const Work before = ctx_.counters().total();
  Tensor out = forward(ctx_, model_, make_batch(ctx_, rows_), cache_, policy_, state_);
  const Work done = ctx_.counters().total() - before;
  work_.madds += done.madds;
  work_.weight_bytes += done.weight_bytes;
  work_.cache_bytes += done.cache_bytes;
  return out;
}

Savings Feeder::savings() const {
  Savings savings;
  const auto ratio = [](uint64_t ran, uint64_t dense) {
    return dense ? static_cast<double>(ran) / static_cast<double>(dense) : 1.0;
  };
  savings.net_flops = ratio(work_.madds, dense_block_madds_ + dense_output_madds_);
  // The output matrix is never skipped, so the rest of what the kernels counted is the blocks'.
  savings.block_flops = ratio(work_.madds - std::min(work_.madds, dense_output_madds_), dense_block_madds_);
  return savings;
}

}  // namespace fathom
