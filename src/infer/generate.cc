#include "infer/generate.h"

#include "base/format.h"

namespace fathom {
namespace {

double per_second(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

// What has come of the answer so far goes into the result.
void take(Answer& answer, const GenerateOptions& options, GenerateResult& result) {
  const auto show = [&](std::string_view text) {
    if (text.empty()) return;
    result.text += text;
    if (options.on_text) options.on_text({text, result.depth.empty() ? 0.0 : result.depth.back()});
  };
  bool first = result.ids.empty();
  while (answer.ready_within(std::chrono::milliseconds(0))) {
    const std::optional<Token> token = answer.next();
    if (!token) return show(answer.end().text);
    if (!first) ++result.decode_steps;
    first = false;
    if (token->ends) continue;
    result.ids.push_back(token->id);
    result.depth.push_back(token->depth);
    show(token->text);
  }
}

}  // namespace

double GenerateResult::prefill_tokens_per_s() const {
  return per_second(stats.prefill_tokens, stats.prefill_seconds);
}

double GenerateResult::decode_tokens_per_s() const {
  return per_second(decode_steps, stats.decode_seconds);
}

Generator::Generator(Feeder& feeder, BatcherOptions options) : batcher_(feeder, std::move(options)) {}

GenerateResult Generator::run(std::span<const int32_t> prompt, const GenerateOptions& options) {
  Request request = options;
  request.prompt.assign(prompt.begin(), prompt.end());
  request.answers = 1;
  std::vector<std::unique_ptr<Lane>> lanes = batcher_.prepare(std::move(request));
  Answer answer = make_answer(lanes.front()->out);
  const Lane& lane = *lanes.front();  // the batcher's until the answer has ended
  batcher_.add(std::move(lanes.front()));
  GenerateResult result;
  while (!batcher_.idle()) {
    if (options.cancel && options.cancel->load(std::memory_order_relaxed)) answer.cancel();
    batcher_.step();
    if (options.on_prefill && !answer.ended() && !lane.first_token) options.on_prefill(lane.fed);
    take(answer, options, result);
  }
  const AnswerEnd& end = answer.end();
  if (end.reason == FinishReason::kError) throw UserError(end.error);
  result.finish = end.reason;
  result.stats = end.stats;
  return result;
}

}  // namespace fathom
