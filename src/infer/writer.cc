#include "infer/writer.h"

#include <algorithm>
#include <limits>

#include "base/format.h"

namespace fathom {
namespace {

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
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "?";
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

Writer::Writer(const Model& model, const AnswerOptions& options, std::span<const int32_t> prompt,
               TokenMask* mask)
    : tokenizer_(model.tokenizer.get()),
      mask_(mask),
      prompt_tokens_(static_cast<int64_t>(prompt.size())),
      max_tokens_(options.max_tokens),
      min_tokens_(options.min_tokens),
      end_ids_(options.end_ids),
      history_(prompt.begin(), prompt.end()),
      sampler_(options.sampler, model.config.vocab, prompt_tokens_),
      stops_(options.stops) {
  if (max_tokens_ < -1) throw UsageError(fmt::format("max tokens must be -1 or more, got {}", max_tokens_));
  if (min_tokens_ < 0) throw UsageError(fmt::format("min tokens must be 0 or more, got {}", min_tokens_));
  if (max_tokens_ >= 0 && min_tokens_ > max_tokens_)
    throw UsageError(
        fmt::format("min tokens ({}) must not be above max tokens ({})", min_tokens_, max_tokens_));
  at_start_ = tokenizer_ && std::all_of(prompt.begin(), prompt.end(),
                                        [&](int32_t id) { return tokenizer_->is_special(id); });
}

std::optional<TokenDraw> Writer::plain_draw(int32_t row) const {
  const bool may_end = generated() >= min_tokens_;
  if (mask_ || !may_end || !sampler_.draws_of_all()) return std::nullopt;
  return sampler_.draw_at(row, static_cast<int64_t>(history_.size()));
}

int32_t Writer::draw(std::span<float> logits) {
  const bool may_end = generated() >= min_tokens_;
  if (!may_end) {
    for (const int32_t id : end_ids_) {
      if (id >= 0 && static_cast<size_t>(id) < logits.size())
        logits[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
    }
  }
  if (mask_) mask_->forbid(logits);
  return sampler_.next(logits, history_, static_cast<int64_t>(history_.size()));
}

const Writer::Written& Writer::take(int32_t id) {
  written_.id = id;
  written_.text.clear();
  written_.bytes.clear();
  if (mask_) mask_->accept(id);
  written_.finish.reset();
  written_.ends = contains(end_ids_, id);
  if (written_.ends) {
    written_.finish = FinishReason::kStop;
    return written_;
  }
  history_.push_back(written_.id);
  if (tokenizer_) written_.text = show(written_.id);
  if (stops_.stopped()) {
    written_.finish = FinishReason::kStop;
  } else if (generated() == max_tokens_) {
    written_.finish = FinishReason::kLength;
  }
  return written_;
}

std::string Writer::show(int32_t id) {
  written_.bytes = at_start_ ? tokenizer_->decode({id}) : tokenizer_->piece(id);
  const std::string text = utf8_.feed(written_.bytes);
  at_start_ = false;
  return generated() <= min_tokens_ ? text : stops_.feed(text);
}

std::string Writer::flush() {
  if (stops_.stopped()) return "";
  std::string text = stops_.feed(utf8_.flush());
  if (!stops_.stopped()) text += stops_.flush();
  return text;
}

}  // namespace fathom
