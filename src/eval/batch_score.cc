#include "eval/batch_score.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "eval/plan.h"
#include "eval/prefix_slots.h"
#include "ops/loss/token_log_probs.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

// f32 logits of a pass stay below 32 MB.
int64_t most_logit_rows(int64_t vocab) {
  return std::max<int64_t>(16, (int64_t{8} << 20) / vocab);
}

// Is none larger, and none before it as large? Plain counts: the compiler makes them vectors.
bool is_first_largest(std::span<const float> logits, int32_t token) {
  const auto at = static_cast<size_t>(token);
  const float value = logits[at];
  int larger = 0;
  for (const float other : logits.first(at)) larger += other >= value;
  for (const float other : logits.subspan(at + 1)) larger += other > value;
  return larger == 0;
}

// An item at work in a sequence.
struct Job {
  size_t item = 0;
  int32_t slot = 0;
  std::vector<Path> paths;
  size_t path = 0;     // the one being fed
  int64_t at = -1;     // rows of it that are fed; -1: not begun
  size_t targets = 0;  // of it, done
  int64_t taking = 0;  // rows of it in this pass
  int64_t logits = 0;  // of those, the last so many have logits

  const Path& current() const { return paths[path]; }
  int64_t first_target() const { return current().targets.front().row; }
  std::span<const int32_t> next() const {  // what this pass takes
    return std::span(current().tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(taking));
  }
};

class Scorer {
 public:
  Scorer(Feeder& feeder, std::span<const ItemRequests> items, std::span<const size_t> order,
         const BatchOptions& options)
      : feeder_(feeder), items_(items), order_(order), options_(options), slots_(feeder) {
    scores_.resize(items.size());
  }

  std::vector<std::vector<TextScore>> run() {
    while (next_ < order_.size() || !jobs_.empty()) {
      if (options_.cancel && options_.cancel->load(std::memory_order_relaxed)) return std::move(scores_);
      while (slots_.any_free() && next_ < order_.size()) start(order_[next_++]);
      pass();
      finish();
    }
    return std::move(scores_);
  }

 private:
  void start(size_t item) {
    Job job;
    job.item = item;
    job.paths = plan_paths(items_[item], options_.whole);
    scores_[item].resize(items_[item].size());
    job.slot = slots_.take(job.paths.front().tokens);
    jobs_.push_back(std::move(job));
  }

  // How many rows of the job's path this pass takes, of those it may. 0: it waits.
  void plan(Job& job, int64_t rows_left, int64_t logits_left) {
    job.taking = job.logits = 0;
    if (job.at < 0) return;
    const auto total = static_cast<int64_t>(job.current().tokens.size());
    const int64_t first = std::max(job.at, job.first_target());  // row with logits
    const int64_t left = total - job.at;
    int64_t count = std::min({left, rows_left, first - job.at + logits_left});
    if (options_.whole) count = count == left || rows_left == options_.rows ? left : 0;
    job.taking = count;
    job.logits = std::max<int64_t>(0, job.at + count - first);
  }

  // Rows that another sequence holds are taken over before any of this pass are added.
  void begin_paths() {
    for (Job& job : jobs_) {
      if (job.at < 0)
        job.at = slots_.begin(job.slot, job.current().tokens, options_.whole ? 0 : job.first_target());
    }
  }

  void pass() {
    const ArenaScope scope(feeder_.context());
    begin_paths();
    feeder_.begin();
    int64_t rows_left = options_.rows, logits_left = most_logit_rows(feeder_.model().config.vocab);
    for (Job& job : jobs_) {
      plan(job, rows_left, logits_left);
      if (job.taking == 0) continue;
      feeder_.add({.sequence = job.slot, .tokens = job.next(), .logits_from = job.taking - job.logits});
      rows_left = std::max<int64_t>(0, rows_left - job.taking);
      logits_left = std::max<int64_t>(0, logits_left - job.logits);
    }
    const Tensor logits = feeder_.run();
    if (logits) read(logits);
    for (Job& job : jobs_) {
      if (job.taking == 0) continue;
      slots_.fed(job.slot, job.next());
      job.at += job.taking;
    }
  }

  // Every row with logits predicts one token, most often; where choices part it predicts several.
  void read(const Tensor& logits) {
    Context& ctx = feeder_.context();
    const int64_t rows = logits.dim(0), vocab = logits.dim(1);
    std::vector<int32_t> firsts(static_cast<size_t>(rows), 0);
    each_row([&](Job& job, int64_t row, size_t from, size_t to) {
      if (from < to) firsts[static_cast<size_t>(row)] = job.current().targets[from].token;
    });
    std::vector<float> logprobs(firsts.size()), values(static_cast<size_t>(vocab));
    copy_to_host(ctx, token_log_probs(ctx, logits, Tensor::from(ctx, firsts, {rows})), logprobs);
    each_row([&](Job& job, int64_t row, size_t from, size_t to) {
      if (from == to) return;
      const Tensor one = logits.rows(row, 1);
      copy_to_host(ctx, one, values);
      for (size_t t = from; t < to; ++t) {
        const Target& target = job.current().targets[t];
        float logprob = logprobs[static_cast<size_t>(row)];
        if (t > from) {
          const ArenaScope scope(ctx);
          const Tensor token = Tensor::from(ctx, std::span<const int32_t>(&target.token, 1), {1});
          copy_to_host(ctx, token_log_probs(ctx, one, token), {&logprob, 1});
        }
        add(scores_[job.item][target.request], logprob, is_first_largest(values, target.token));
      }
      job.targets = to;
    });
  }

  static void add(TextScore& score, float logprob, bool best) {
    if (std::isnan(logprob))
      fail("eval: a log-probability is not a number; the model's weights or the arithmetic are broken");
    score.logprob += static_cast<double>(logprob);
    score.greedy = score.greedy && best;
  }

  // Calls fn(job, row of the logits, its targets' begin and end) for every row with logits.
  template <class Fn>
  void each_row(Fn&& fn) {
    int64_t row = 0;
    for (Job& job : jobs_) {
      const std::vector<Target>& targets = job.current().targets;
      size_t from = job.targets;
      for (int64_t at = job.at + job.taking - job.logits; at < job.at + job.taking; ++at, ++row) {
        size_t to = from;
        while (to < targets.size() && targets[to].row == at) ++to;
        fn(job, row, from, to);
        from = to;
      }
    }
  }

  void finish() {
    for (Job& job : jobs_) {
      if (job.at < static_cast<int64_t>(job.current().tokens.size())) continue;
      ++job.path;
      job.at = -1;
      job.targets = 0;
      if (job.path == job.paths.size()) slots_.give_back(job.slot);
    }
    const size_t done = std::erase_if(jobs_, [](const Job& job) { return job.path == job.paths.size(); });
    if (options_.on_progress && done > 0) options_.on_progress(static_cast<int64_t>(done));
  }

  Feeder& feeder_;
  std::span<const ItemRequests> items_;
  std::span<const size_t> order_;
  const BatchOptions& options_;
  PrefixSlots slots_;
  size_t next_ = 0;  // of order_
  std::vector<Job> jobs_;
  std::vector<std::vector<TextScore>> scores_;
};

}  // namespace

std::vector<std::vector<TextScore>> score_items(Feeder& feeder, std::span<const ItemRequests> items,
                                                std::span<const size_t> order, const BatchOptions& options) {
  return Scorer(feeder, items, order, options).run();
}

}  // namespace fathom
