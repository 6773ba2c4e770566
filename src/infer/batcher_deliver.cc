// Batcher: what comes of a pass.
#include <new>

#include "base/format.h"
#include "infer/batcher.h"
#include "infer/broken_unit.h"

namespace fathom {
namespace {

double seconds(Moment from, Moment to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

// Does the pass give this lane a token by plain decoding, without a mask? (Masks of several answers may share
// what they have computed.)
bool Batcher::draws(const Part& part) const {
  const Lane& lane = *part.lane;
  return lane.phase() == Phase::kPlain && lane.unfed() == part.rows() && part.logit_rows() > 0 &&
         lane.request().max_tokens != 0 && !lane.mask;
}

// Draws for all lanes at once: where the logits are, or, where a sampler cuts or weighs them, on all threads
// of the host. A draw reads the whole vocabulary. One that fails is left to deliver(), which draws again and
// says why.
void Batcher::draw_together(std::span<const Part> parts, const Tensor& logits) {
  drawn_.assign(parts.size(), -1);
  drawing_.clear();
  plain_.clear();
  std::vector<size_t> plain_parts;
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    row += parts[i].logit_rows();
    if (!draws(parts[i])) continue;
    if (const auto plain = parts[i].lane->writer->plain_draw(static_cast<int32_t>(row - 1))) {
      plain_.push_back(*plain);
      plain_parts.push_back(i);
    } else {
      drawing_.push_back({i, row - 1});
    }
  }
  const std::vector<int32_t> tokens = draw_tokens(feeder_.context(), logits, plain_);
  for (size_t i = 0; i < tokens.size(); ++i) drawn_[plain_parts[i]] = tokens[i];
  draw_on_host(parts, logits);
}

void Batcher::draw_on_host(std::span<const Part> parts, const Tensor& logits) {
  if (drawing_.empty()) return;
  const std::span<float> rows = drawn_logits(logits);
  const auto vocab = static_cast<size_t>(feeder_.model().config.vocab);
  const auto draw_some = [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const size_t part = drawing_[i].part;
      try {
        drawn_[part] = parts[part].lane->writer->draw(rows.subspan(i * vocab, vocab));
      } catch (const std::exception&) {
      }
    }
  };
  feeder_.context().pool().parallel_for(std::ssize(drawing_), 1, draw_some);
}

// The rows of drawing_, (rows, vocab), on the host. Neighbours are one copy: on a GPU every copy is a wait.
std::span<float> Batcher::drawn_logits(const Tensor& logits) {
  const int64_t vocab = feeder_.model().config.vocab, rows = std::ssize(drawing_);
  const std::span<float> all = logits_.room(feeder_.context(), static_cast<size_t>(rows * vocab));
  for (int64_t first = 0, end; first < rows; first = end) {
    const int64_t row = drawing_[static_cast<size_t>(first)].row;
    for (end = first + 1; end < rows && drawing_[static_cast<size_t>(end)].row == row + end - first;) ++end;
    copy_to_host(feeder_.context(), logits.rows(row, end - first),
                 all.subspan(static_cast<size_t>(first * vocab), static_cast<size_t>((end - first) * vocab)));
  }
  return all;
}

// What a pass gave a lane. Its error ends that lane alone, also where memory or a mask fails. logits: (rows
// that wanted them, vocab); `row`: of the trace, the lane's first; `drawn`: its next token, -1: not drawn
// yet.
void Batcher::deliver(const Part& part, const Tensor& logits, size_t row, int32_t drawn) {
  Lane& lane = *part.lane;
  try {
    if (lane.phase() != Phase::kPlain) return deliver_round(lane, logits, row);
    lane.fed += part.rows();
    if (part.feed.logits == LogitsFor::kAll) score_prompt(lane, lane.fed - part.rows(), logits);
    if (lane.unfed() > 0) return;
    if (lane.request().max_tokens == 0) return end(lane, FinishReason::kLength);
    const Tensor last = logits.rows(logits.dim(0) - 1, 1);
    if (drawn < 0) drawn = draw(lane, last);
    put(lane, lane.writer->take(drawn), last, ran_by(lane, row + static_cast<size_t>(part.rows()) - 1));
  } catch (const std::bad_alloc&) {
    if (!lane.ended) end(lane, FinishReason::kError, "out of memory");
  } catch (const std::exception& error) {
    if (!lane.ended) end(lane, FinishReason::kError, error.what());
  }
}

void Batcher::deliver_round(Lane& lane, const Tensor& logits, size_t row) {
  const auto take = [&] {
    try {
      return lane.drafter->take(logits, trace_, row);
    } catch (const UserError& error) {
      fail_where_it_broke(error.what(), feeder_, lane.slot, lane.tokens());
    }
  };
  if (!take()) return;
  const std::span<const int32_t> tokens = lane.drafter->tokens();
  for (size_t i = 0; i < tokens.size() && !lane.ended; ++i) {
    ++lane.fed;  // the row that gave this one
    const std::span<const uint8_t> units = lane.drafter->units(i);
    Ran ran{lane.drafter->depth(i), {}};
    if (lane.request().units) ran.units.assign(units.begin(), units.end());
    put(lane, lane.writer->take(tokens[i]), logits.rows(static_cast<int64_t>(i), 1), std::move(ran));
  }
}

// logits: of the rows from `first` on; each predicts the token after it.
void Batcher::score_prompt(Lane& lane, int64_t first, const Tensor& logits) {
  const std::span<const int32_t> prompt = lane.request().prompt;
  const int64_t top = lane.request().log_probs;
  LogProbs& scored = lane.prompt_log_probs;
  if (first == 0) {
    scored = {.logprobs = {0}, .top = {}};
    if (top > 0) scored.top.emplace_back();
  }
  const auto next = prompt.subspan(static_cast<size_t>(first) + 1);
  const auto targets = std::min(next.size(), static_cast<size_t>(logits.dim(0)));
  if (targets > 0) {
    append_log_probs(feeder_.context(), logits.rows(0, static_cast<int64_t>(targets)), next.first(targets),
                     top, scored);
  }
  if (const int64_t at = first_nan(scored); at >= 0) {
    fail_where_it_broke("a log-probability of the prompt is not a number", feeder_, lane.slot,
                        prompt.first(static_cast<size_t>(at)));
  }
  if (scored.logprobs.size() == prompt.size())
    lane.shared->prompt_log_probs = std::make_shared<const LogProbs>(std::move(scored));
}

int32_t Batcher::draw(Lane& lane, const Tensor& logits) {
  const auto row = logits_.room(feeder_.context(), static_cast<size_t>(feeder_.model().config.vocab));
  copy_to_host(feeder_.context(), logits, row);
  try {
    return lane.writer->draw(row);
  } catch (const UserError& error) {
    fail_where_it_broke(error.what(), feeder_, lane.slot, lane.tokens());
  }
}

// `row`: of the trace.
Batcher::Ran Batcher::ran_by(const Lane& lane, size_t row) const {
  if (!options_.records) return {};
  Ran ran{trace_.depth(row), {}};
  const std::span<const uint8_t> units = trace_.units_of(row);
  if (lane.request().units) ran.units.assign(units.begin(), units.end());
  return ran;
}

// A token that was written, with what goes with it. logits: the row that gave it.
void Batcher::put(Lane& lane, const Writer::Written& written, const Tensor& logits, Ran ran) {
  Token token{.id = written.id,
              .text = written.text,
              .bytes = written.bytes,
              .depth = ran.depth,
              .units = std::move(ran.units),
              .ends = written.ends};
  if (lane.request().log_probs >= 0) {
    LogProbs one;
    append_log_probs(feeder_.context(), logits, {&token.id, 1}, lane.request().log_probs, one);
    token.logprob = one.logprobs.front();
    if (!one.top.empty()) token.top = std::move(one.top.front());
  }
  if (!lane.first_token) {
    lane.first_token = options_.now();
    lane.out->set_prompt_log_probs(lane.shared->prompt_log_probs);
  }
  ++stats_.generated_tokens;
  if (!token.ends) {
    lane.depths += ran.depth;
    if (!lane.shifted.empty()) lane.shifted.push_back(token.id);
  }
  lane.out->push(std::move(token));
  if (written.finish) return end(lane, *written.finish);
  if (static_cast<int64_t>(lane.tokens().size()) <= lane.request().context) return;
  if (!lane.request().context_shift) return end(lane, FinishReason::kLength);  // the last one cannot be fed
  shift_context(lane);
}

// The context is full: a leading BOS and the newer half of the rest are fed again from position 0, then the
// token that did not fit. Moving the cached keys instead would keep what they know of the forgotten tokens,
// and give a text that no prompt gives.
void Batcher::shift_context(Lane& lane) {
  const std::vector<int32_t> all = lane.tokens();
  const size_t fixed = all.front() == feeder_.model().config.bos ? 1 : 0;
  const size_t dropped = std::max<size_t>(1, (all.size() - 1 - fixed) / 2);
  lane.shifted.assign(all.begin(), all.begin() + static_cast<ptrdiff_t>(fixed));
  lane.shifted.insert(lane.shifted.end(), all.begin() + static_cast<ptrdiff_t>(fixed + dropped), all.end());
  lane.shifted_prompt = std::ssize(lane.shifted) - 1;
  lane.fed = 0;
  feeder_.truncate(lane.slot, 0);
  ++lane.stats.context_shifts;
}

void Batcher::end(Lane& lane, FinishReason reason, const std::string& error) {
  const Moment now = options_.now();
  AnswerEnd end{.reason = reason, .text = "", .error = error, .stats = lane.stats};
  AnswerStats& stats = end.stats;
  stats.prompt_tokens = lane.shared->prompt_tokens();
  stats.wait_seconds = seconds(lane.came, lane.writer ? lane.admitted : now);
  if (lane.writer) {
    end.text = lane.writer->flush();
    stats.generated = lane.writer->generated();
    const Moment wrote = lane.first_token.value_or(now);
    const int64_t fed = lane.first_token ? stats.prompt_tokens : std::min(lane.fed, stats.prompt_tokens);
    stats.prefill_tokens = std::max<int64_t>(0, fed - stats.reused_tokens);
    stats.prefill_seconds = seconds(lane.admitted, wrote);
    stats.decode_seconds = seconds(wrote, now);
    if (stats.generated > 0) stats.depth = lane.depths / static_cast<double>(stats.generated);
    const auto pairs = static_cast<double>(lane.computed_rows * 2 * feeder_.model().config.layers);
    if (pairs > 0) stats.skip_ratio = 1 - static_cast<double>(lane.computed_units) / pairs;
  }
  stats_.prompt_tokens += stats.prompt_tokens;
  stats_.reused_tokens += stats.reused_tokens;
  if (lane.drafter) stats.speculation = lane.drafter->counts();
  stats_.speculation += stats.speculation;
  ++stats_.finished[static_cast<size_t>(reason)];
  if (lane.running()) leave(lane, reason != FinishReason::kError);
  lane.ended = true;
  ++ended_;
  lane.out->set_prompt_log_probs(lane.shared->prompt_log_probs);
  lane.out->close(std::move(end));
}

}  // namespace fathom
