#include "eval/batch_generate.h"

#include "infer/batcher.h"
#include "text/utf8_stream.h"

namespace fathom {
namespace {

// Greedy, until a stop string, an end token or the last token that the rules allow. The end tokens are those
// of generate. The harness ends at the tokenizer's EOS and at what generation_config.json lists, which in
// chat models is the end of a turn too; a GGUF file of the same model names one of them only.
Request request_for(const ItemRequests& item, const GenerationRules& rules) {
  Request request;
  request.prompt = item.front().tokens;
  request.sampler.temperature = 0;
  request.max_tokens = rules.max_tokens;
  request.stops = rules.stops;
  return request;
}

// Reads all of the answer. Its tokens are decoded as a text of their own, as lm-evaluation-harness does. What
// breaks is a UserError.
std::string answer_text(Answer& answer, const Tokenizer& tokenizer, const GenerationRules& rules) {
  std::vector<int32_t> ids;
  while (const std::optional<Token> token = answer.next()) {
    if (!token->ends) ids.push_back(token->id);
  }
  const AnswerEnd& end = answer.end();
  if (end.reason == FinishReason::kError) throw UserError(end.error);
  const std::string text = tokenizer.decode(ids);
  return to_valid_utf8(before_stops(text, rules.stops));
}

struct Asked {
  size_t item = 0;
  Answer answer;
};

}  // namespace

std::vector<std::string> generate_items(Feeder& feeder, std::span<const ItemRequests> prompts,
                                        std::span<const size_t> order, const GenerationRules& rules,
                                        const BatchOptions& options) {
  BatcherOptions how;
  how.rows = std::max(options.rows, feeder.cache().sequences() + 1);
  how.tokens_ahead = rules.max_tokens + 1;
  how.records = false;
  how.thresholds = options.thresholds;
  Batcher batcher(feeder, how);
  std::vector<Asked> asked;
  for (const size_t item : order) {
    std::unique_ptr<Lane> lane = std::move(batcher.prepare(request_for(prompts[item], rules)).front());
    asked.push_back({item, make_answer(lane->out)});
    batcher.add(std::move(lane));
  }
  const Tokenizer& tokenizer = *feeder.model().tokenizer;
  std::vector<std::string> texts(prompts.size());
  const auto cancelled = [&] { return options.cancel && options.cancel->load(std::memory_order_relaxed); };
  while (!asked.empty() && !cancelled()) {
    batcher.step();
    const size_t done = std::erase_if(asked, [&](Asked& each) {
      if (!each.answer.ended()) return false;
      texts[each.item] = answer_text(each.answer, tokenizer, rules);
      return true;
    });
    if (options.on_progress && done > 0) options.on_progress(static_cast<int64_t>(done));
  }
  return texts;
}

}  // namespace fathom
