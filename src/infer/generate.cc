#include "infer/generate.h"

#include <algorithm>
#include <chrono>

#include "base/format.h"
#include "infer/stop_strings.h"
#include "tensor/arena.h"
#include "text/utf8_stream.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool cancelled(const GenerateOptions& options) {
  return options.cancel && options.cancel->load(std::memory_order_relaxed);
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "?";
}

double GenerateResult::prefill_tokens_per_s() const {
  return prefill_seconds > 0 ? static_cast<double>(prompt_tokens - reused_tokens) / prefill_seconds : 0;
}

double GenerateResult::decode_tokens_per_s() const {
  return decode_seconds > 0 ? static_cast<double>(decode_steps) / decode_seconds : 0;
}

std::vector<int32_t> end_token_ids(const Model& model) {
  std::vector<int32_t> ids = model.config.eos;
  const auto add = [&](int32_t id) {
    if (id >= 0 && !contains(ids, id)) ids.push_back(id);
  };
  if (!model.tokenizer) return ids;
  const Tokenizer& tokenizer = *model.tokenizer;
  add(tokenizer.eos());
  for (const char* name :
       {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"}) {
    const int32_t id = tokenizer.id_of(name);
    if (id >= 0 && tokenizer.is_special(id)) add(id);
  }
  return ids;
}

// Text on its way out: bytes of tokens → whole characters → less what may become a stop string → the caller.
struct Generator::Run {
  const Model& model;
  const GenerateOptions& options;
  GenerateResult result;
  Sampler sampler;
  Utf8Stream utf8;
  StopStrings stops;
  std::vector<int32_t> history;  // prompt and generated tokens
  std::vector<float> logits;
  bool at_start;  // nothing but special tokens so far: the tokenizer's rule for a text's beginning holds

  Run(const Model& m, const GenerateOptions& o, std::span<const int32_t> prompt)
      : model(m),
        options(o),
        sampler(o.sampler, m.config.vocab),
        stops(o.stops),
        history(prompt.begin(), prompt.end()) {
    logits.resize(static_cast<size_t>(m.config.vocab));
    at_start = m.tokenizer && std::all_of(prompt.begin(), prompt.end(),
                                          [&](int32_t id) { return m.tokenizer->is_special(id); });
  }

  void show(std::string_view text) {
    if (text.empty()) return;
    result.text += text;
    if (options.on_text) options.on_text({text, result.depth.empty() ? 0.0 : result.depth.back()});
  }

  void accept(int32_t id, double depth) {
    result.ids.push_back(id);
    result.depth.push_back(depth);
    history.push_back(id);
    if (!model.tokenizer) return;
    show(stops.feed(utf8.feed(at_start ? model.tokenizer->decode({id}) : model.tokenizer->piece(id))));
    at_start = false;
  }

  // At the end of a text: what was held back.
  void flush() {
    if (stops.stopped()) return;
    show(stops.feed(utf8.flush()));
    if (!stops.stopped()) show(stops.flush());
  }
};

void Generator::keep_logits(const Tensor& row, std::vector<float>& logits) {
  copy_to_host(feeder_.context(), row, logits);
}

// The next tokens, in one pass; its mean depth is that of the token it will give.
Tensor Generator::feed(std::span<const int32_t> tokens, LogitsFor logits) {
  const uint64_t before = feeder_.work().unit_rows;
  const Tensor row = feeder_.feed(sequence_, tokens, logits);
  const auto units = static_cast<double>(feeder_.work().unit_rows - before);
  const bool counted = feeder_.context().device() == Device::kCpu;
  depth_ = counted ? units / static_cast<double>(2 * tokens.size())
                   : static_cast<double>(feeder_.model().config.layers);
  return row;
}

// false: cancelled on the way.
bool Generator::feed_prompt(std::span<const int32_t> tokens, const GenerateOptions& options,
                            std::vector<float>& logits) {
  while (!tokens.empty()) {
    if (cancelled(options)) return false;
    const size_t count = std::min(tokens.size(), static_cast<size_t>(std::max<int64_t>(1, options.chunk)));
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
    fail("the prompt has {} tokens, the context {}: shorten the prompt or raise -c", prompt.size(), context);
  }
  if (options.context_shift && context < 4)
    fail("--context-shift needs a context of at least 4 tokens, got {}", context);
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
  const auto prefill_start = Clock::now();
  const bool whole = feed_prompt(prompt.subspan(same), options, run.logits);
  result.prefill_seconds = seconds_since(prefill_start);

  const auto decode_start = Clock::now();
  result.finish = whole ? decode(run) : FinishReason::kCancelled;
  result.decode_seconds = seconds_since(decode_start);
  run.flush();
  return std::move(result);
}

FinishReason Generator::decode(Run& run) {
  const GenerateOptions& options = run.options;
  const auto context = static_cast<size_t>(feeder_.cache().context());
  while (!cancelled(options)) {
    const int32_t id = run.sampler.next(run.logits, run.history, static_cast<int64_t>(run.history.size()));
    if (contains(options.end_ids, id)) return FinishReason::kStop;
    run.accept(id, depth_);
    if (run.stops.stopped()) return FinishReason::kStop;
    if (static_cast<int64_t>(run.result.ids.size()) == options.max_tokens) return FinishReason::kLength;
    if (fed_.size() == context) {
      if (!options.context_shift) return FinishReason::kLength;
      ++run.result.context_shifts;
      if (!shift_context(options, run.logits)) return FinishReason::kCancelled;
    }
    feed_one(id, run.logits);
    ++run.result.decode_steps;
  }
  return FinishReason::kCancelled;
}

}  // namespace fathom
