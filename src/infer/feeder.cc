#include "infer/feeder.h"

#include <algorithm>

#include "base/format.h"
#include "model/flops.h"

namespace fathom {

void Feeder::check_token(int32_t token) const {
  if (token >= 0 && token < model_.config.vocab) return;
  fail("token {} is not in the model's vocabulary of {}", token, model_.config.vocab);
}

void Feeder::begin() {
  rows_.clear();
  tentative_.clear();
  vocab_ = 0;
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
  if (from < count) vocab_ = std::max(vocab_, feed.vocab > 0 ? feed.vocab : model_.config.vocab);
  if (feed.tentative) return tentative_.push_back(feed.sequence);
  add_dense(count, past, count - from);
  counted_rows_ += count;
  counted_logits_ = counted_logits_ || from < count;
}

void Feeder::add_plain(int64_t count, int64_t past, int64_t since) {
  for (int64_t i = 0; i < count; ++i) add_dense(1, past + i, 1);
  for (; dense_passes_ < since + count; ++dense_passes_)
    books_.dense.weight_bytes += dense_weight_bytes(model_, 1, true);
}

void Feeder::add_dense(int64_t count, int64_t past, int64_t logit_rows) {
  const DenseWork one = dense_work(model_.config, count, past, logit_rows);
  const uint64_t cache_bytes = one.cache_entries * static_cast<uint64_t>(cache_.bytes_per_entry());
  books_.dense_output_madds += one.output_madds;
  books_.dense = books_.dense + Work{.madds = one.block_madds + one.output_madds,
                                     .cache_bytes = cache_bytes,
                                     .unit_rows = one.unit_rows};
}

Tensor Feeder::feed_each(std::span<const int32_t> sequences, std::span<const int32_t> tokens) {
  begin();
  const WorkBooks books = books_;
  try {
    for (size_t i = 0; i < sequences.size(); ++i) add({sequences[i], tokens.subspan(i, 1), LogitsFor::kLast});
  } catch (const UserError&) {  // no room for one of them: none has been fed
    for (const BatchRow& row : rows_) cache_.truncate(ctx_, row.sequence, row.position);
    books_ = books;
    throw;
  }
  return run();
}

int64_t Feeder::truncate(int32_t sequence, int64_t position) {
  int64_t held = state_.truncate(ctx_, sequence, position);
  if (!cache_.keeps(sequence, held)) held = state_.truncate(ctx_, sequence, 0);
  cache_.truncate(ctx_, sequence, held);
  return held;
}

int64_t Feeder::fork(int32_t from, int32_t to, int64_t position) {
  cache_.settle(ctx_, from);  // a fork settles it, and what that gives back is not there for the fork
  if (!cache_.keeps(from, position)) return 0;
  const int64_t held = state_.fork(ctx_, from, to, position);
  cache_.fork(ctx_, from, to, held);
  return held;
}

void Feeder::settle(int32_t sequence) {
  cache_.settle(ctx_, sequence, state_.settle(ctx_, sequence, cache_.rows(sequence)));
}

Tensor Feeder::run() {
  if (counted_rows_ > 0) {
    books_.dense.weight_bytes += dense_weight_bytes(model_, counted_rows_, counted_logits_);
    ++dense_passes_;
  }
  const Work before = ctx_.counters().total();
  Batch batch = make_batch(ctx_, rows_);
  batch.given = rows_;
  batch.vocab = vocab_ < model_.config.vocab ? vocab_ : 0;
  Tensor out = recorded_ ? forward(ctx_, model_, batch, cache_, TracingPolicy(policy_, *recorded_), state_)
                         : forward(ctx_, model_, batch, cache_, policy_, state_);
  books_.ran = books_.ran + (ctx_.counters().total() - before);
  if (settles_) settle_pass();
  return out;
}

// Rows that may go again have decided nothing for good: their policy is not told.
void Feeder::settle_pass() {
  for (size_t i = 0; i < rows_.size(); ++i) {
    const int32_t sequence = rows_[i].sequence;
    if (i > 0 && sequence == rows_[i - 1].sequence) continue;
    if (std::find(tentative_.begin(), tentative_.end(), sequence) == tentative_.end()) {
      settle(sequence);
    } else {
      cache_.settle(ctx_, sequence);
    }
  }
}

Savings Feeder::savings() const {
  return books_.savings();
}

WorkBooks operator+(const WorkBooks& a, const WorkBooks& b) {
  return {a.ran + b.ran, a.dense + b.dense, a.dense_output_madds + b.dense_output_madds};
}

WorkBooks operator-(const WorkBooks& a, const WorkBooks& b) {
  return {a.ran - b.ran, a.dense - b.dense, a.dense_output_madds - b.dense_output_madds};
}

Savings WorkBooks::savings() const {
  const auto ratio = [](uint64_t part, uint64_t whole) {
    return whole ? static_cast<double>(part) / static_cast<double>(whole) : 1.0;
  };
  // The output matrix is never skipped: without it and the routers, what the kernels counted is the blocks'.
  const uint64_t others = dense_output_madds + ran.policy_madds;
  const uint64_t block_madds = ran.madds - std::min(ran.madds, others);
  return {.skip_ratio = 1.0 - ratio(ran.unit_rows, dense.unit_rows),
          .block_flops = ratio(block_madds, dense.madds - dense_output_madds),
          .net_flops = ratio(ran.madds, dense.madds),
          .net_bytes = ratio(ran.weight_bytes + ran.cache_bytes, dense.weight_bytes + dense.cache_bytes)};
}

}  // namespace fathom
