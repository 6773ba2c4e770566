// An answer written without the batcher: the oracle of what it writes. One sequence, one token (or one round
// of drafts) after the other.
#pragma once

#include "infer/batcher.h"
#include "tensor/arena.h"

namespace fathom {

struct PlainAnswer {
  std::string text;
  std::vector<int32_t> ids;   // without the token that ended the text
  std::vector<double> depth;  // of each
  FinishReason finish = FinishReason::kLength;
  SpeculationCounts speculation;
};

class PlainWriter {
 public:
  PlainWriter(Feeder& feeder, const AnswerOptions& options, std::span<const int32_t> prompt,
              const Speculation* speculation = nullptr)
      : feeder_(feeder),
        most_(options.max_tokens),
        writer_(feeder.model(), options, prompt),
        logits_(static_cast<size_t>(feeder.model().config.vocab)) {
    if (speculation) drafter_.emplace(feeder, *speculation, options, static_cast<int64_t>(prompt.size()));
    feeder.truncate(0, 0);
    feeder.record(&trace_);
    const ArenaScope scope(feeder.context());
    if (options.max_tokens != 0)
      copy_to_host(feeder.context(), feeder.feed(0, prompt, LogitsFor::kLast), logits_);
  }
  ~PlainWriter() { feeder_.record(nullptr); }

  PlainAnswer run() {
    std::optional<FinishReason> end;
    if (most_ == 0) end = FinishReason::kLength;
    if (!end) end = put(writer_.take(writer_.draw(logits_)), trace_.depth(trace_.rows() - 1));
    while (!end) {
      if (feeder_.cache().rows(0) == feeder_.cache().context()) {
        end = FinishReason::kLength;
      } else if (drafter_ && drafter_->start(0, writer_.history(), room() - 1)) {
        end = round();
      } else {
        end = step();
      }
    }
    answer_.finish = *end;
    answer_.text += writer_.flush();
    if (drafter_) answer_.speculation = drafter_->counts();
    return answer_;
  }

 private:
  int64_t room() const {
    const int64_t left = most_ < 0 ? INT64_MAX : most_ - writer_.generated();
    return std::min(left, feeder_.cache().context() - feeder_.cache().rows(0));
  }
  std::optional<FinishReason> put(const Writer::Written& written, double depth) {
    if (!written.ends) {
      answer_.ids.push_back(written.id);
      answer_.depth.push_back(depth);
    }
    answer_.text += written.text;
    return written.finish;
  }
  std::optional<FinishReason> step() {
    const ArenaScope scope(feeder_.context());
    const int32_t token = writer_.history().back();
    copy_to_host(feeder_.context(), feeder_.feed(0, {&token, 1}, LogitsFor::kLast), logits_);
    return put(writer_.take(writer_.draw(logits_)), trace_.depth(trace_.rows() - 1));
  }
  std::optional<FinishReason> round() {
    for (bool over = false; !over;) {
      const ArenaScope scope(feeder_.context());
      const Tensor logits = feeder_.feed(drafter_->feed());
      over = drafter_->take(logits, trace_, trace_.rows() - static_cast<size_t>(logits.dim(0)));
    }
    std::optional<FinishReason> end;
    for (size_t i = 0; i < drafter_->tokens().size() && !end; ++i)
      end = put(writer_.take(drafter_->tokens()[i]), drafter_->depth(i));
    return end;
  }

  Feeder& feeder_;
  int64_t most_;
  Writer writer_;
  std::optional<Drafter> drafter_;
  std::vector<float> logits_;
  Trace trace_{Trace::Scores::kLeftOut};
  PlainAnswer answer_;
};

}  // namespace fathom
