#include "infer/feeder.h"

#include <algorithm>
#include <limits>

#include "base/format.h"
#include "model/flops.h"

namespace fathom {

void Feeder::check_token(int32_t token) const {
  if (token >= 0 && token < model_.config.vocab) return;
  fail("token {} is not in the model's vocabulary of {}", token, model_.config.vocab);
}

void Feeder::begin() {
  rows_.clear();
  counted_rows_ = 0;
  counted_logits_ = false;
}

Tensor Feeder::feed(const Feed& feed) {
  begin();
  add(feed);
  return run();
}

Tensor Feeder::feed(int32_t sequence, std::span<const int32_t> tokens, LogitsFor logits) {
  return feed({sequence, tokens, logits});
}

void Feeder::add(const Feed& feed) {
  for (const int32_t token : feed.tokens) check_token(token);
  const auto count = static_cast<int64_t>(feed.tokens.size());
  const int64_t past = cache_.rows(feed.sequence) - feed.again;
  cache_.reserve(ctx_, feed.sequence, count - feed.again);
  const int64_t from = feed.logits_from >= 0             ? feed.logits_from
                       : feed.logits == LogitsFor::kAll  ? 0
                       : feed.logits == LogitsFor::kLast ? count - 1
                                                         : count;
  for (int64_t i = 0; i < count; ++i) {
    rows_.push_back(
        {feed.tokens[static_cast<size_t>(i)], static_cast<int32_t>(past + i), feed.sequence, i >= from});
  }
  if (feed.tentative) return;
  add_dense(count, past, count - from);
  counted_rows_ += count;
  counted_logits_ = counted_logits_ || from < count;
}

void Feeder::add_plain(int64_t count, int64_t past, int64_t since) {
  for (int64_t i = 0; i < count; ++i) add_dense(1, past + i, 1);
  for (; dense_passes_ < since + count; ++dense_passes_)
    dense_.weight_bytes += dense_weight_bytes(model_, 1, true);
}

void Feeder::add_dense(int64_t count, int64_t past, int64_t logit_rows) {
  const DenseWork one = dense_work(model_.config, count, past, logit_rows);
  dense_output_madds_ += one.output_madds;
  dense_ = dense_ + Work{.madds = one.block_madds + one.output_madds,
                         .cache_bytes = one.cache_entries * static_cast<uint64_t>(cache_.bytes_per_entry()),
                         .unit_rows = one.unit_rows};
}

Tensor Feeder::feed_each(std::span<const int32_t> sequences, std::span<const int32_t> tokens) {
  begin();
  const Work dense = dense_;
  const uint64_t dense_output_madds = dense_output_madds_;
  try {
    for (size_t i = 0; i < sequences.size(); ++i) add({sequences[i], tokens.subspan(i, 1), LogitsFor::kLast});
  } catch (const UserError&) {  // no room for one of them: none has been fed
    for (const BatchRow& row : rows_) cache_.truncate(ctx_, row.sequence, row.position);
    dense_ = dense;
    dense_output_madds_ = dense_output_madds;
    throw;
  }
  return run();
}

int64_t Feeder::truncate(int32_t sequence, int64_t position) {
  const int64_t held = state_.truncate(ctx_, sequence, position);
  cache_.truncate(ctx_, sequence, held);
  return held;
}

int64_t Feeder::fork(int32_t from, int32_t to, int64_t position) {
  const int64_t held = state_.fork(ctx_, from, to, position);
  cache_.fork(ctx_, from, to, held);
  return held;
}

void Feeder::settle(int32_t sequence) {
  cache_.settle(ctx_, sequence, state_.settle(ctx_, sequence, cache_.rows(sequence)));
}

Tensor Feeder::run() {
  if (counted_rows_ > 0) {
    dense_.weight_bytes += dense_weight_bytes(model_, counted_rows_, counted_logits_);
    ++dense_passes_;
  }
  const Work before = ctx_.counters().total();
  const Batch batch = make_batch(ctx_, rows_);
  Tensor out = recorded_ ? forward(ctx_, model_, batch, cache_, TracingPolicy(policy_, *recorded_), state_)
                         : forward(ctx_, model_, batch, cache_, policy_, state_);
  work_ = work_ + (ctx_.counters().total() - before);
  for (size_t i = 0; settles_ && i < rows_.size(); ++i) {
    if (i == 0 || rows_[i].sequence != rows_[i - 1].sequence) settle(rows_[i].sequence);
  }
  return out;
}

Savings Feeder::savings() const {
  if (ctx_.device() !=
      Device::kCpu) {  // the CUDA kernels count only what the host can know: no ratio to give
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    return {kUnknown, kUnknown, kUnknown, kUnknown};
  }
  const auto ratio = [](uint64_t ran, uint64_t dense) {
    return dense ? static_cast<double>(ran) / static_cast<double>(dense) : 1.0;
  };
  // The output matrix is never skipped: without it and the routers, what the kernels counted is the blocks'.
  const uint64_t others = dense_output_madds_ + work_.policy_madds;
  const uint64_t block_madds = work_.madds - std::min(work_.madds, others);
  return {
      .skip_ratio = 1.0 - ratio(work_.unit_rows, dense_.unit_rows),
      .block_flops = ratio(block_madds, dense_.madds - dense_output_madds_),
      .net_flops = ratio(work_.madds, dense_.madds),
      .net_bytes = ratio(work_.weight_bytes + work_.cache_bytes, dense_.weight_bytes + dense_.cache_bytes)};
}

}  // namespace fathom
