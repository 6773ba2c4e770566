#include "infer/generate.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/format.h"
#include "infer/broken_unit.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool cancelled(const GenerateOptions& options) {
  return options.cancel && options.cancel->load(std::memory_order_relaxed);
}

// The feeder's passes are recorded there for a while.
class Recording {
 public:
  Recording(Feeder& feeder, Trace& trace) : feeder_(feeder), before_(feeder.recorded()) {
    feeder_.record(&trace);
  }
  ~Recording() { feeder_.record(before_); }

 private:
  Feeder& feeder_;
  Trace* before_;
};

}  // namespace

double GenerateResult::prefill_tokens_per_s() const {
  return prefill_seconds > 0 ? static_cast<double>(prompt_tokens - reused_tokens) / prefill_seconds : 0;
}

double GenerateResult::decode_tokens_per_s() const {
  return decode_seconds > 0 ? static_cast<double>(decode_steps) / decode_seconds : 0;
}

struct Generator::Run {
  const GenerateOptions& options;
  GenerateResult result;
  Writer writer;
  std::vector<float> logits;
  std::optional<Drafter> drafter;
  Trace trace{Trace::Scores::kLeftOut};  // of rounds, where the feeder records for nobody else
  bool gave = false;                     // the drafter has tokens that are not written yet

  Run(const Model& model, const GenerateOptions& o, std::span<const int32_t> prompt)
      : options(o), writer(model, o, prompt), logits(static_cast<size_t>(model.config.vocab)) {}

  // Into the text; does it end there?
  std::optional<FinishReason> put(const Writer::Written& written, double depth) {
    if (writer.generated() > std::ssize(result.depth)) result.depth.push_back(depth);
    show(written.text);
    return written.finish;
  }

  void show(std::string_view text) {
    if (text.empty()) return;
    result.text += text;
    if (options.on_text) options.on_text({text, result.depth.empty() ? 0.0 : result.depth.back()});
  }
};

void Generator::keep_logits(const Tensor& row, std::vector<float>& logits) {
  copy_to_host(feeder_.context(), row, logits);
}

// The next tokens, in one pass. The depth of the token it will give: its last row's where the feeder records,
// else the pass's mean.
Tensor Generator::feed(std::span<const int32_t> tokens, LogitsFor logits) {
  const uint64_t before = feeder_.work().unit_rows;
  const Tensor row = feeder_.feed(sequence_, tokens, logits);
  const auto units = static_cast<double>(feeder_.work().unit_rows - before);
  const bool counted = feeder_.context().device() == Device::kCpu;
  depth_ = counted ? units / static_cast<double>(2 * tokens.size())
                   : static_cast<double>(feeder_.model().config.layers);
  if (const Trace* recorded = feeder_.recorded()) depth_ = recorded->depth(recorded->rows() - 1);
  return row;
}

// false: cancelled on the way.
bool Generator::feed_prompt(std::span<const int32_t> tokens, const GenerateOptions& options,
                            std::vector<float>& logits) {
  const size_t most = feeder_.policy().needs_whole_prompt()
                          ? tokens.size()
                          : static_cast<size_t>(std::max<int64_t>(1, options.chunk));
  while (!tokens.empty()) {
    if (cancelled(options)) return false;
    const size_t count = std::min(tokens.size(), most);
    const bool last = count == tokens.size();
    const ArenaScope scope(feeder_.context());
    const Tensor row = feed(tokens.first(count), last ? LogitsFor::kLast : LogitsFor::kNone);
    if (last) keep_logits(row, logits);
    fed_.insert(fed_.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count));
    tokens = tokens.subspan(count);
  }
  return true;
}

void Generator::feed_one(int32_t token, std::vector<float>& logits) {
  const ArenaScope scope(feeder_.context());
  keep_logits(feed({&token, 1}, LogitsFor::kLast), logits);
  fed_.push_back(token);
}

// The context is full: a leading BOS and the newer half of the rest are fed again from position 0. Moving the
// cached keys instead would keep what they know of the forgotten tokens, and give a text that no prompt
// gives.
bool Generator::shift_context(const GenerateOptions& options, std::vector<float>& logits) {
  const std::vector<int32_t> all = std::move(fed_);
  const size_t fixed = all.front() == feeder_.model().config.bos ? 1 : 0;
  const size_t dropped = std::max<size_t>(1, (all.size() - fixed) / 2);
  std::vector<int32_t> kept(all.begin(), all.begin() + static_cast<ptrdiff_t>(fixed));
  kept.insert(kept.end(), all.begin() + static_cast<ptrdiff_t>(fixed + dropped), all.end());
  fed_.clear();
  feeder_.truncate(sequence_, 0);
  return feed_prompt(kept, options, logits);
}

GenerateResult Generator::run(std::span<const int32_t> prompt, const GenerateOptions& options) {
  const auto context = static_cast<size_t>(feeder_.cache().context());
  if (prompt.empty())
    fail("the prompt has no tokens, and this model's tokenizer adds no BOS: give it at least one");
  if (prompt.size() > context) {
    fail("the prompt has {} tokens, the context {}: shorten the prompt or use a longer context",
         prompt.size(), context);
  }
  if (options.context_shift && context < 4)
    fail("shifting the context needs a context of at least 4 tokens, got {}", context);
  Run run(feeder_.model(), options, prompt);
  GenerateResult& result = run.result;
  result.prompt_tokens = static_cast<int64_t>(prompt.size());

  // At least the last token is fed: its logits are needed.
  size_t same = 0;
  while (same < fed_.size() && same + 1 < prompt.size() && fed_[same] == prompt[same]) ++same;
  same = static_cast<size_t>(feeder_.truncate(sequence_, static_cast<int64_t>(same)));
  fed_.resize(same);
  result.reused_tokens = static_cast<int64_t>(same);

  if (options.max_tokens == 0) return std::move(result);
  if (options.speculation) run.drafter.emplace(feeder_, *options.speculation, options, result.prompt_tokens);
  const auto prefill_start = Clock::now();
  const bool whole = feed_prompt(prompt.subspan(same), options, run.logits);
  result.prefill_seconds = seconds_since(prefill_start);

  const auto decode_start = Clock::now();
  result.finish = whole ? decode(run) : FinishReason::kCancelled;
  result.decode_seconds = seconds_since(decode_start);
  run.show(run.writer.flush());
  const auto& history = run.writer.history();
  result.ids.assign(history.begin() + static_cast<ptrdiff_t>(prompt.size()), history.end());
  return std::move(result);
}

const Writer::Written& Generator::write(Run& run) {
  try {
    return run.writer.write(run.logits);
  } catch (const UserError& error) {
    const std::vector<int32_t> fed = std::exchange(fed_, {});  // of no use afterwards
    fail_where_it_broke(error.what(), feeder_, sequence_, fed);
  }
}

FinishReason Generator::decode(Run& run) {
  const GenerateOptions& options = run.options;
  const auto context = static_cast<size_t>(feeder_.cache().context());
  while (!cancelled(options)) {
    std::optional<FinishReason> end;
    if (!run.gave) end = run.put(write(run), depth_);
    for (size_t i = 0; run.gave && !end && i < run.drafter->tokens().size(); ++i)
      end = run.put(run.writer.take(run.drafter->tokens()[i]), run.drafter->depth(i));
    run.gave = false;
    if (end) return *end;
    if (fed_.size() == context) {
      if (!options.context_shift) return FinishReason::kLength;
      ++run.result.context_shifts;
      if (!shift_context(options, run.logits)) return FinishReason::kCancelled;
    }
    if (run.drafter && speculate(run)) continue;
    feed_one(run.writer.history().back(), run.logits);
    ++run.result.decode_steps;
  }
  return FinishReason::kCancelled;
}

// A round from the newest token; false: it is to be decoded plainly.
bool Generator::speculate(Run& run) {
  Drafter& drafter = *run.drafter;
  const std::vector<int32_t>& history = run.writer.history();
  const int64_t left =
      run.options.max_tokens < 0 ? INT64_MAX : run.options.max_tokens - run.writer.generated();
  const int64_t room = feeder_.cache().context() - std::ssize(fed_);
  if (!drafter.start(sequence_, history, std::min(left, room) - 1)) return false;
  while (!feed_round(run)) {
  }
  const std::span<const int32_t> given = drafter.tokens();
  fed_.push_back(history.back());
  fed_.insert(fed_.end(), given.begin(), given.end() - 1);
  run.gave = true;
  run.result.decode_steps += std::ssize(given);
  run.result.speculation = drafter.counts();
  return true;
}

// A pass of a round. -> is it over?
bool Generator::feed_round(Run& run) {
  const ArenaScope scope(feeder_.context());
  Trace& trace = feeder_.recorded() ? *feeder_.recorded() : run.trace;
  const Recording recording(feeder_, trace);
  run.trace.clear();
  const Tensor logits = feeder_.feed(run.drafter->feed());
  try {
    return run.drafter->take(logits, trace, trace.rows() - static_cast<size_t>(logits.dim(0)));
  } catch (const UserError& error) {
    std::vector<int32_t> fed = std::exchange(fed_, {});
    fed.push_back(run.writer.history().back());
    fail_where_it_broke(error.what(), feeder_, sequence_, fed);
  }
}

}  // namespace fathom
