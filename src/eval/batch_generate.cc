#include "eval/batch_generate.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "eval/prefix_slots.h"
#include "infer/writer.h"
#include "tensor/arena.h"
#include "text/utf8_stream.h"

namespace fathom {
namespace {

// A prompt at work in a sequence.
struct Job {
  size_t item = 0;
  int32_t slot = 0;
  std::vector<int32_t> tokens;  // the prompt and what came after it
  size_t prompt = 0;            // of them
  int64_t at = -1;              // fed; -1: not begun
  int64_t taking = 0;           // in this pass
  bool done = false;

  int64_t left() const { return static_cast<int64_t>(tokens.size()) - at; }
  std::span<const int32_t> next() const {  // what this pass takes
    return std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(taking));
  }
};

class GreedyBatch {
 public:
  GreedyBatch(Feeder& feeder, std::span<const ItemRequests> prompts, std::span<const size_t> order,
              const GenerationRules& rules, const BatchOptions& options)
      : feeder_(feeder),
        tokenizer_(*feeder.model().tokenizer),
        prompts_(prompts),
        order_(order),
        rules_(rules),
        options_(options),
        slots_(feeder),
        ends_(end_token_ids(feeder.model())),
        texts_(prompts.size()) {}

  std::vector<std::string> run() {
    while (next_ < order_.size() || !jobs_.empty()) {
      if (options_.cancel && options_.cancel->load(std::memory_order_relaxed)) return std::move(texts_);
      while (slots_.any_free() && next_ < order_.size()) start(order_[next_++]);
      pass();
      const size_t done = std::erase_if(jobs_, [](const Job& job) { return job.done; });
      if (options_.on_progress && done > 0) options_.on_progress(static_cast<int64_t>(done));
    }
    return std::move(texts_);
  }

 private:
  void start(size_t item) {
    Job job;
    job.item = item;
    job.tokens = prompts_[item].front().tokens;
    job.prompt = job.tokens.size();
    job.slot = slots_.take(job.tokens);
    jobs_.push_back(std::move(job));
  }

  // Rows that another sequence holds are taken over before any of this pass are added.
  void begin_prompts() {
    for (Job& job : jobs_) {
      const auto most = static_cast<int64_t>(job.prompt) - 1;  // the last row's logits are needed
      if (job.at < 0) job.at = slots_.begin(job.slot, job.tokens, options_.whole ? 0 : most);
    }
  }

  void pass() {
    const ArenaScope scope(feeder_.context());
    begin_prompts();
    feeder_.begin();
    int64_t rows_left = options_.rows;
    for (Job& job : jobs_) {
      job.taking = 0;
      if (job.at < 0) continue;
      const bool whole = options_.whole && rows_left == options_.rows;
      job.taking = whole ? job.left() : std::min(job.left(), rows_left);
      if (options_.whole && job.taking < job.left()) job.taking = 0;
      if (job.taking == 0) continue;
      feeder_.add({job.slot, job.next(), job.taking == job.left() ? LogitsFor::kLast : LogitsFor::kNone});
      rows_left = std::max<int64_t>(0, rows_left - job.taking);
    }
    const Tensor logits = feeder_.run();
    std::vector<float> values(static_cast<size_t>(feeder_.model().config.vocab));
    int64_t row = 0;
    for (Job& job : jobs_) {
      if (job.taking == 0) continue;
      slots_.fed(job.slot, job.next());
      job.at += job.taking;
      if (job.left() > 0) continue;
      copy_to_host(feeder_.context(), logits.rows(row++, 1), values);
      take(job, most_likely(values));
    }
  }

  static int32_t most_likely(std::span<const float> logits) {
    const auto best = std::max_element(logits.begin(), logits.end());
    if (!std::isfinite(*best))
      fail("eval: the largest logit is {}: the model or the arithmetic is broken", *best);
    return static_cast<int32_t>(best - logits.begin());
  }

  void take(Job& job, int32_t token) {
    const bool end = std::find(ends_.begin(), ends_.end(), token) != ends_.end();
    if (!end) job.tokens.push_back(token);
    const auto count = static_cast<int64_t>(job.tokens.size() - job.prompt);
    const std::string text =
        tokenizer_.decode({job.tokens.begin() + static_cast<ptrdiff_t>(job.prompt), job.tokens.end()});
    const std::string_view answer = before_stops(text, rules_.stops);
    if (!end && count < rules_.max_tokens && answer.size() == text.size()) return;
    texts_[job.item] = to_valid_utf8(answer);
    job.done = true;
    slots_.give_back(job.slot);
  }

  Feeder& feeder_;
  const Tokenizer& tokenizer_;
  std::span<const ItemRequests> prompts_;
  std::span<const size_t> order_;
  const GenerationRules& rules_;
  const BatchOptions& options_;
  PrefixSlots slots_;
  // As in generate. The harness ends at the tokenizer's EOS and at what generation_config.json lists, which
  // in chat models is the end of a turn too; a GGUF file of the same model names one of them only.
  const std::vector<int32_t> ends_;
  size_t next_ = 0;  // of order_
  std::vector<Job> jobs_;
  std::vector<std::string> texts_;
};

}  // namespace

std::vector<std::string> generate_items(Feeder& feeder, std::span<const ItemRequests> prompts,
                                        std::span<const size_t> order, const GenerationRules& rules,
                                        const BatchOptions& options) {
  return GreedyBatch(feeder, prompts, order, rules, options).run();
}

}  // namespace fathom
