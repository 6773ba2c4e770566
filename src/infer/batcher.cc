#include "infer/batcher.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/format.h"
#include "model/flops.h"
#include "tensor/arena.h"

namespace fathom {

Batcher::Batcher(Feeder& feeder, BatcherOptions options)
    : feeder_(feeder),
      options_(std::move(options)),
      whole_prompts_(feeder.policy().needs_whole_prompt()),
      model_ends_(end_token_ids(feeder.model())),
      slots_(feeder, !whole_prompts_, options_.keep_prefixes) {
  const int64_t sequences = feeder.cache().sequences();
  if (options_.rows <= sequences)
    fail("engine: a pass needs more rows than the cache has sequences ({}), got {}", sequences,
         options_.rows);
  if (options_.tokens_ahead < 1 || options_.ageing < 1)
    fail("engine: tokens_ahead and ageing must be 1 or more, got {} and {}", options_.tokens_ahead,
         options_.ageing);
  stats_.unit_rows.resize(static_cast<size_t>(2 * feeder.model().config.layers));
  if (options_.records) feeder_.record(&trace_);
}

Batcher::~Batcher() {
  end_all(FinishReason::kCancelled);
  if (options_.records) feeder_.record(nullptr);
}

void Batcher::add(std::unique_ptr<Lane> lane) {
  lane->arrival = arrivals_++;
  lane->served = stats_.passes;
  lanes_.push_back(std::move(lane));
}

bool Batcher::step() {
  ended_ = 0;
  end_unwanted();
  admit();
  plan();
  if (!parts_.empty()) run_parts(parts_);
  remove_ended();
  refresh_stats();
  return !parts_.empty() || ended_ > 0;
}

void Batcher::end_unwanted() {
  const Moment now = options_.now();
  for (const auto& lane : lanes_) {
    const auto& deadline = lane->request().deadline;
    if (lane->out->cancelled()) {
      end(*lane, FinishReason::kCancelled);
    } else if (deadline && now >= *deadline) {
      end(*lane, FinishReason::kDeadline);
    }
  }
  remove_ended();
}

// In order: no answer overtakes one that waits for room, or large requests would wait for ever.
void Batcher::admit() {
  int64_t held_back =
      0;  // answers that wait for another one's prefix; as many as there are places are enough
  for (Lane* lane : in_order(false)) {
    if (held_back == feeder_.cache().sequences()) return;
    if (lane->request().max_tokens == 0 && !lane->scores_prompt()) {
      end(*lane, FinishReason::kLength);
      continue;
    }
    if (lane->paused() || waits_for_sibling(*lane)) continue;
    if (waits_for_prefix(*lane)) {
      ++held_back;
      continue;
    }
    if (!make_place(*lane)) break;
    if (lane->writer) continue;  // it has been here before
    try {
      begin_writing(*lane);
    } catch (const std::exception& error) {  // a mask that cannot be made ends its own answer
      end(*lane, FinishReason::kError, error.what());
    }
  }
}

void Batcher::begin_writing(Lane& lane) {
  lane.admitted = options_.now();
  lane.stats.reused_tokens = lane.fed;
  const Request& request = lane.request();
  AnswerOptions options = request;
  options.sampler.seed = answer_seed(request.sampler.seed, lane.index);
  if (request.mask) lane.mask = request.mask();
  lane.writer.emplace(feeder_.model(), options, request.prompt, lane.mask.get());
  if (const auto& how = lane.shared->speculation)
    lane.drafter.emplace(feeder_, *how, options, lane.shared->prompt_tokens(), lane.mask.get());
}

// The answers of a request fork from the first one, once that has computed the prompt.
bool Batcher::waits_for_sibling(const Lane& lane) const {
  const int64_t shared_tokens = lane.shared->prompt_tokens() - 1;
  return !whole_prompts_ && std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& other) {
    return other->shared == lane.shared && other->running() &&
           (other->fed < shared_tokens || lane.scores_prompt());
  });
}

// Another answer is about to compute the beginning that this one has in common with it: this one forks it
// then.
bool Batcher::waits_for_prefix(const Lane& lane) const {
  constexpr int64_t kWorthWaiting = 16;  // tokens
  if (whole_prompts_ || lane.scores_prompt()) return false;
  const PrefixKey key = key_of(lane);
  int64_t coming = 0;  // the longest beginning that is not computed yet
  for (const auto& other : lanes_) {
    if (!other->running() || other->paused() || key_of(*other) != key) continue;
    const int64_t common = std::min(common_prefix(lane.tokens(), other->tokens()),
                                    static_cast<int64_t>(lane.tokens().size()) - 1);
    if (other->fed < common) coming = std::max(coming, common);
  }
  return coming >= kWorthWaiting && coming >= slots_.shared_with(lane) + kWorthWaiting;
}

// A place in the cache; where there is none, those of answers whose readers have fallen behind.
bool Batcher::make_place(Lane& lane) {
  while (!slots_.place(lane, stats_.passes)) {
    Lane* behind = nullptr;
    for (Lane* other : in_order(true)) {
      if (other->paused()) behind = other;
    }
    if (!behind) return false;
    preempt(*behind);
  }
  return true;
}

void Batcher::plan() {
  slots_.make_ready(options_.rows);
  feeder_.begin();
  parts_.clear();
  rows_left_ = options_.rows;
  logit_rows_left_ = most_logit_rows(feeder_.model().config.vocab);
  std::vector<Lane*> lanes = in_order(true);
  // Asked once: a reader may catch up meanwhile, and who started no round must not be decoded past one.
  std::erase_if(lanes, [](const Lane* lane) { return lane->paused(); });
  if (start_rounds(lanes)) {
    for (Lane* lane : lanes) {
      if (lane->running() && lane->phase() == Phase::kDraft) plan_round(*lane);
    }
    if (!parts_.empty()) return;
  }
  for (const bool decoding : {true, false}) {
    for (Lane* lane : lanes) {
      if (lane->running() && lane->decodes() == decoding) plan_rows(*lane);
    }
  }
}

// Returns whether every lane is in a round. Then the drafts go before the verification, so that their pass
// reads only the weights that drafts need, unless a lane has waited for as many passes as a round has drafts.
bool Batcher::start_rounds(const std::vector<Lane*>& lanes) {
  bool all = true;
  for (Lane* lane : lanes) {
    const bool drafts = lane->speculates() && lane->decodes() && start_round(*lane);
    all = all && drafts && stats_.passes - lane->served <= kMostDrafts;
  }
  return all;
}

// Returns false where the lane is decoded plainly this time.
bool Batcher::start_round(Lane& lane) {
  const int64_t tokens = lane.request().max_tokens,
                left = tokens < 0 ? INT64_MAX : tokens - lane.writer->generated();
  const int64_t room = lane.request().context - lane.fed;
  return lane.drafter->start(lane.slot, lane.writer->history(), std::min(left, room) - 1);
}

void Batcher::plan_rows(Lane& lane) {
  if (lane.phase() != Phase::kPlain) return plan_round(lane);
  int64_t rows = rows_for(lane);
  while (rows > 0 && !make_room(lane, rows)) rows = whole_prompts_ ? 0 : rows / 2;
  if (rows == 0) return;
  const auto first = lane.tokens().begin() + static_cast<ptrdiff_t>(lane.fed);
  add_part(lane, {lane.slot, {first, first + static_cast<ptrdiff_t>(rows)}, logits_for(lane, rows)});
}

// A round's rows come whole. Where they do not fit, the round waits for a pass in which they do: what it
// drafts does not depend on the room there is.
void Batcher::plan_round(Lane& lane) {
  const Feed feed = lane.drafter->feed();
  const int64_t rows = std::ssize(feed.tokens);
  const bool fits = rows <= std::min(rows_left_, logit_rows_left_) || parts_.empty();
  if (fits && make_room(lane, rows - feed.again)) add_part(lane, feed);
}

void Batcher::add_part(Lane& lane, const Feed& feed) {
  feeder_.add(feed);
  parts_.push_back({&lane, feed});
  rows_left_ -= parts_.back().rows();
  logit_rows_left_ -= std::max<int64_t>(1, parts_.back().logit_rows());
  lane.served = stats_.passes;
}

// What is not fed yet, as far as the pass has room. A policy that must see the prompt in one pass gets it so,
// however long it is, and the tokens after it one by one, as they came the first time. An answer that
// speculates and comes back stops before its newest token, which a round may begin with.
int64_t Batcher::rows_for(const Lane& lane) const {
  if (rows_left_ <= 0) return 0;
  if (whole_prompts_) return std::max<int64_t>(1, lane.whole_rows() - lane.fed);
  const int64_t newest = lane.speculates() && !lane.decodes() ? 1 : 0;
  const int64_t rows = std::min({lane.unfed() - newest, rows_left_, feeder_.cache().pass_rows()});
  return lane.scores_prompt() ? std::min(rows, std::max<int64_t>(1, logit_rows_left_)) : rows;
}

LogitsFor Batcher::logits_for(const Lane& lane, int64_t rows) const {
  if (lane.scores_prompt()) return LogitsFor::kAll;
  return rows == lane.unfed() ? LogitsFor::kLast : LogitsFor::kNone;
}

bool Batcher::make_room(const Lane& lane, int64_t rows) {
  while (!slots_.fits(lane, rows)) {
    if (slots_.forget_oldest()) continue;
    Lane* victim = victim_for(lane);
    if (!victim) return false;
    preempt(*victim);
  }
  return true;
}

// The last in order that has no rows in this pass yet: one whose reader has fallen behind, or who comes
// after.
Lane* Batcher::victim_for(const Lane& lane) const {
  const auto in_pass = [&](const Lane* other) {
    return std::any_of(parts_.begin(), parts_.end(), [&](const Part& part) { return part.lane == other; });
  };
  Lane* victim = nullptr;
  for (Lane* other : in_order(true)) {
    if (other == &lane || in_pass(other)) continue;
    if (other->paused() || before(lane, *other)) victim = other;
  }
  return victim;
}

// It waits again, and what it had is computed again: the same rows give the same bits.
void Batcher::preempt(Lane& lane) {
  leave(lane, false);
  ++lane.stats.preemptions;
  ++stats_.preemptions;
}

void Batcher::leave(Lane& lane, bool finished) {
  if (lane.drafter) lane.drafter->stop();
  slots_.leave(lane, finished, stats_.passes);
}

// One pass. Where it fails, what failed may be one request's fault, or too much at once: its halves are tried
// each alone, so that one bad request ends alone.
void Batcher::run_parts(std::span<const Part> parts) {
  const ArenaScope scope(feeder_.context());
  trace_.clear();
  Tensor logits;
  try {
    logits = feeder_.run();
    draw_together(parts, logits);
  } catch (const std::exception& error) {
    if (parts.size() > 1) return run_halves(parts, error.what());
    return end(*parts.front().lane, FinishReason::kError, error.what());
  }
  count_rows(parts);
  int64_t row = 0, logit_row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    const int64_t wanted = part.logit_rows();
    deliver(part, wanted > 0 ? logits.rows(logit_row, wanted) : Tensor(), static_cast<size_t>(row),
            drawn_[i]);
    row += part.rows();
    logit_row += wanted;
  }
}

// What the failed pass left behind goes. A round of drafts begins again with the same drafts.
void Batcher::run_halves(std::span<const Part> parts, const std::string& error) {
  std::vector<Part> again;
  for (const Part& part : parts) {
    Lane& lane = *part.lane;
    const bool in_round = lane.phase() != Phase::kPlain;
    if (in_round) lane.drafter->stop();
    if (feeder_.truncate(lane.slot, lane.fed) < lane.fed) {  // its policy cannot go back so far
      end(lane, FinishReason::kError, error);
    } else if (!in_round) {
      again.push_back(part);
    } else if (start_round(lane)) {
      again.push_back({&lane, lane.drafter->feed()});
    }
  }
  const std::span<const Part> all = again;
  const size_t middle = all.size() / 2;
  for (const std::span<const Part> half : {all.first(middle), all.subspan(middle)}) {
    if (half.empty()) continue;
    feeder_.begin();
    for (const Part& part : half) feeder_.add(part.feed);
    run_parts(half);
  }
}

void Batcher::count_rows(std::span<const Part> parts) {
  ++stats_.passes;
  size_t row = 0;
  for (const Part& part : parts) {
    if (options_.records) count_work(*part.lane, part.rows(), row);
    row += static_cast<size_t>(part.rows());
  }
  stats_.rows += static_cast<int64_t>(row);
  const auto power = static_cast<size_t>(std::bit_width(row == 0 ? 0 : row - 1));
  ++stats_.passes_by_rows[std::min(power, stats_.passes_by_rows.size() - 1)];
}

// `row`: of the trace, the lane's first.
void Batcher::count_work(Lane& lane, int64_t rows, size_t row) {
  const ModelConfig& config = feeder_.model().config;
  for (const size_t end = row + static_cast<size_t>(rows); row < end; ++row) {
    const std::span<const uint8_t> units = trace_.units_of(row);
    for (size_t unit = 0; unit < units.size(); ++unit) stats_.unit_rows[unit] += units[unit];
    const int64_t position = trace_.row(row).position;
    lane.stats.block_madds += static_cast<double>(row_block_madds(config, position, units));
    lane.stats.dense_block_madds += static_cast<double>(dense_work(config, 1, position, 0).block_madds);
    lane.computed_units += std::accumulate(units.begin(), units.end(), int64_t{0});
  }
  lane.computed_rows += rows;
}

void Batcher::end_all(FinishReason reason, const std::string& error) {
  for (const auto& lane : lanes_) {
    if (!lane->ended) end(*lane, reason, error);
  }
  remove_ended();
  refresh_stats();
}

void Batcher::remove_ended() {
  std::erase_if(lanes_, [](const auto& lane) { return lane->ended; });
}

void Batcher::refresh_stats() {
  stats_.running = stats_.waiting = stats_.paused = 0;
  for (const auto& lane : lanes_) {
    ++(lane->running() ? stats_.running : stats_.waiting);
    stats_.paused += lane->running() && lane->paused();
  }
  const KvCache& cache = feeder_.cache();
  stats_.cache_bytes = cache.bytes_held();
  stats_.pool_bytes = cache.pages() * KvCache::kPage * cache.bytes_per_entry();
  stats_.savings = feeder_.savings();
  const Work& ran = feeder_.books().ran;
  stats_.bytes_read = static_cast<double>(ran.weight_bytes + ran.cache_bytes);
}

std::optional<Moment> Batcher::next_deadline() const {
  std::optional<Moment> next;
  for (const auto& lane : lanes_) {
    const auto& deadline = lane->request().deadline;
    if (deadline && (!next || *deadline < *next)) next = deadline;
  }
  return next;
}

// Higher priority first, raised by one for every `ageing` passes without rows, so that no lane waits for
// ever. Of equals, the one that came first.
bool Batcher::before(const Lane& a, const Lane& b) const {
  const auto rank = [&](const Lane& lane) {
    return lane.request().priority + (stats_.passes - lane.served) / options_.ageing;
  };
  return rank(a) != rank(b) ? rank(a) > rank(b) : a.arrival < b.arrival;
}

std::vector<Lane*> Batcher::in_order(bool running) const {
  std::vector<Lane*> lanes;
  for (const auto& lane : lanes_) {
    if (!lane->ended && lane->running() == running) lanes.push_back(lane.get());
  }
  std::sort(lanes.begin(), lanes.end(), [&](const Lane* a, const Lane* b) { return before(*a, *b); });
  return lanes;
}

}  // namespace fathom
