#include "eval/sweep_runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/format.h"
#include "infer/sequences.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int64_t kRowsBeforeDecode = 80;

// Sequences under a run's policy.
class SweepLane {
 public:
  SweepLane(const SweepRun& run, const RunnerOptions& options, int64_t context, int64_t sequences)
      : policy_(run.policy ? static_cast<const SkipPolicy&>(*run.policy) : dense_),
        running_(run.model.ctx, run.model.model, policy_,
                 {.cache = {.sequences = sequences,
                            .context = context,
                            .k_type = options.k_type,
                            .v_type = options.v_type},
                  .thresholds = {run.thresholds.begin(), run.thresholds.end()}}) {}
  Feeder& feeder() { return running_.feeder(); }

  // The sequence holds these tokens, and no others.
  void hold(std::span<const int32_t> tokens) {
    const auto wanted = static_cast<int64_t>(tokens.size());
    if (feeder().truncate(0, std::min(running_.cache().rows(0), wanted)) == wanted) return;
    const ArenaScope scope(feeder().context());
    feeder().truncate(0, 0);
    feeder().feed(0, tokens, LogitsFor::kLast);
  }
  // -> seconds
  double decode(std::span<const int32_t> token) {
    const ArenaScope scope(feeder().context());
    const auto begin = std::chrono::steady_clock::now();
    feeder().feed(0, token, LogitsFor::kLast);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  DensePolicy dense_;
  const SkipPolicy& policy_;
  Sequences running_;
};

// The task's own text, begun again where it is short.
std::vector<int32_t> probe_tokens(const SweepTask& task, size_t count) {
  std::vector<int32_t> tokens;
  while (tokens.size() < count) {
    for (const ItemRequests& item : task.encoded.items)
      tokens.insert(tokens.end(), item.front().tokens.begin(), item.front().tokens.end());
  }
  tokens.resize(count);
  return tokens;
}

}  // namespace

void SweepRunner::stop_if_cancelled() const {
  if (options_.cancel && options_.cancel->load(std::memory_order_relaxed)) throw SweepCancelled{};
}

SweepChunk SweepRunner::run_chunk(Feeder& feeder, const SweepRun& run, const SweepTask& task, size_t begin) {
  const size_t end = std::min(begin + kItemsOfChunk, task.task.items.size());
  Task part;
  part.spec = task.task.spec;
  part.items.assign(task.task.items.begin() + static_cast<ptrdiff_t>(begin),
                    task.task.items.begin() + static_cast<ptrdiff_t>(end));
  EncodedTask encoded;
  encoded.items.assign(task.encoded.items.begin() + static_cast<ptrdiff_t>(begin),
                       task.encoded.items.begin() + static_cast<ptrdiff_t>(end));
  BatchOptions batch;
  batch.thresholds.assign(run.thresholds.begin(), run.thresholds.end());
  batch.whole = run.policy && run.policy->needs_whole_prompt();
  batch.cancel = options_.cancel;
  batch.on_progress = options_.on_progress;
  const WorkBooks before = feeder.books();
  TaskResult result = evaluate(feeder, part, encoded, batch);
  if (result.cancelled) throw SweepCancelled{};
  return {std::move(result.items), feeder.books() - before, result.seconds};
}

// Token by token in turns with the dense model, so that a busy machine slows both; of several rounds each
// token's least disturbed one counts.
SweepSpeed SweepRunner::measure(const SweepRun& run, const SweepTask& task) {
  const int64_t room = run.model.model.config.context;
  const auto count = static_cast<size_t>(std::min(options_.decode_tokens, room / 2));
  const std::vector<int32_t> text =
      probe_tokens(task, static_cast<size_t>(std::min<int64_t>(kRowsBeforeDecode, room / 2)) + count);
  const std::span<const int32_t> tokens(text), before = tokens.first(text.size() - count);
  const auto total = static_cast<int64_t>(text.size());
  SweepLane lane(run, options_, total, 1), dense({.name = "", .model = run.model}, options_, total, 1);
  std::vector<double> times(count, INFINITY), dense_times(count, INFINITY);
  SweepSpeed speed;
  for (int64_t round = 0; round < options_.rounds; ++round) {
    stop_if_cancelled();
    lane.hold(before);
    dense.hold(before);
    const WorkBooks start = lane.feeder().books();
    for (size_t i = 0; i < count; ++i) {
      const auto token = tokens.subspan(before.size() + i, 1);
      times[i] = std::min(times[i], lane.decode(token));
      dense_times[i] = run.policy ? std::min(dense_times[i], dense.decode(token)) : times[i];
    }
    speed.books = lane.feeder().books() - start;
  }
  const auto rate = [&](const std::vector<double>& seconds) {
    return static_cast<double>(count) / std::accumulate(seconds.begin(), seconds.end(), 0.0);
  };
  speed.tokens_per_s = rate(times);
  speed.dense_tokens_per_s = rate(dense_times);
  return speed;
}

SweepOutcome SweepRunner::run(const SweepRun& run, const SweepTask& task) {
  const auto items = static_cast<int64_t>(task.task.items.size());
  const ModelConfig& config = run.model.model.config;
  std::unique_ptr<SweepLane> lane;
  SweepOutcome outcome;
  const std::string key = run.name + " | " + task.task.spec.name;
  for (size_t begin = 0; begin < task.task.items.size(); begin += kItemsOfChunk) {
    stop_if_cancelled();
    const std::string name = fmt::format("{} | {}", key, begin);
    const SweepChunk* chunk = cache_.chunk(name);
    if (chunk) {
      if (options_.on_kept) options_.on_kept(static_cast<int64_t>(chunk->items.size()));
    } else {
      if (!lane) {
        const KvCacheOptions types{.k_type = options_.k_type, .v_type = options_.v_type};
        const int64_t most = std::min<int64_t>(items, kItemsOfChunk);
        const int64_t sequences = sequences_for(config, types, most, task.encoded.longest);
        lane = std::make_unique<SweepLane>(run, options_, task.encoded.longest, sequences);
      }
      chunk = &cache_.add(name, run_chunk(lane->feeder(), run, task, begin));
    }
    outcome.items.insert(outcome.items.end(), chunk->items.begin(), chunk->items.end());
    outcome.books = outcome.books + chunk->books;
    outcome.seconds += chunk->seconds;
  }
  const SweepSpeed* speed = cache_.speed(key);
  outcome.speed = speed ? *speed : cache_.add(key, measure(run, task));
  return outcome;
}

}  // namespace fathom
