#include "cli/bench_passes.h"

#include <algorithm>
#include <chrono>

#include "base/rng.h"
#include "cli/interrupt.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

std::vector<int32_t> random_tokens(const Model& model, int64_t count) {
  Rng rng(1);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint32_t>(model.config.vocab)));
  return ids;
}

double time_prefill(Feeder& feeder, int32_t sequence, int64_t count, int64_t chunk) {
  const std::vector<int32_t> ids = random_tokens(feeder.model(), count);
  feeder.truncate(sequence, 0);
  const Stopwatch watch;
  for (int64_t at = 0; at < count; at += chunk) {
    const int64_t rows = std::min(chunk, count - at);
    const ArenaScope scope(feeder.context());
    feeder.feed(sequence, std::span(ids).subspan(static_cast<size_t>(at), static_cast<size_t>(rows)),
                at + rows == count ? LogitsFor::kLast : LogitsFor::kNone);
  }
  return watch.seconds();
}

double time_decode(Feeder& feeder, std::span<const int32_t> sequences, int64_t steps) {
  const size_t each = sequences.size();
  const std::vector<int32_t> ids = random_tokens(feeder.model(), steps * std::ssize(sequences));
  const Stopwatch watch;
  for (size_t step = 0; step < static_cast<size_t>(steps) && !interrupted(); ++step) {
    const ArenaScope scope(feeder.context());
    feeder.feed_each(sequences, std::span(ids).subspan(step * each, each));
  }
  return watch.seconds();
}

double time_verify(Feeder& feeder, int64_t position, int64_t rows, int64_t passes) {
  const std::vector<int32_t> ids = random_tokens(feeder.model(), rows);
  const Stopwatch watch;
  for (int64_t pass = 0; pass < passes && !interrupted(); ++pass) {
    feeder.truncate(0, position);
    const ArenaScope scope(feeder.context());
    feeder.feed(0, ids, LogitsFor::kAll);
  }
  return watch.seconds();
}

}  // namespace fathom
