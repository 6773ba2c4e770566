#include "serve/exchange.h"

#include <algorithm>

#include "base/format.h"
#include "serve/token_text.h"

namespace fathom {
namespace {

constexpr const char* kEvents = "text/event-stream";
constexpr const char* kJsonType = "application/json";

ApiError error_of(const AnswerEnd& end, bool cut) {
  switch (end.reason) {
    case FinishReason::kDeadline:
      return ApiError(504, "the request took longer than its time limit", "", "timeout");
    case FinishReason::kCancelled:
      return cut ? ApiError(503, "the server is shutting down", "", "shutting_down")
                 : ApiError(500, "the answer was cancelled", "", "cancelled");
    default:
      return ApiError(500, end.error.empty() ? "the answer failed" : end.error, "", "internal_error");
  }
}

}  // namespace

Exchange::Exchange(std::shared_ptr<ApiState> state, std::shared_ptr<HttpReply> reply, ExchangePlan plan,
                   std::vector<Answer> answers)
    : state_(std::move(state)), reply_(std::move(reply)), plan_(std::move(plan)) {
  choices_.reserve(answers.size());
  for (Answer& answer : answers) {
    const size_t index = choices_.size();
    Choice choice{
        .answer = std::move(answer), .part = {}, .prompt = index / static_cast<size_t>(plan_.answers)};
    choice.part.index = static_cast<int64_t>(index);
    choices_.push_back(std::move(choice));
  }
  plan_.record.ran = true;
  plan_.record.answers = std::ssize(choices_);
  plan_.record.prompt_tokens = plan_.usage.prompt_tokens;
  plan_.record.budget = plan_.usage.budget;
}

void Exchange::start() {
  const std::weak_ptr<Exchange> weak = weak_from_this();
  state_->exchanges.add(shared_from_this(), double{plan_.usage.budget.value_or(1.0f)});
  reply_->on_gone([weak] {
    if (const auto self = weak.lock()) self->client_gone();
  });
  if (over_) return;
  const auto wake = [weak] {
    if (const auto self = weak.lock()) self->schedule();
  };
  if (plan_.stream) {
    begin();  // while the answers wait for a place, pings come
    reply_->on_sent(wake);
  }
  for (Choice& choice : choices_) choice.answer.on_ready(wake);
}

void Exchange::cut() {
  cut_ = true;
  for (Choice& choice : choices_) choice.answer.cancel();
}

// Called by the engine's thread, too: it must not throw. Where there is no memory for this call, the next
// token tries again.
void Exchange::schedule() {
  if (over_ || scheduled_.exchange(true)) return;
  try {
    // The reply may keep this call for longer than the exchange lives.
    reply_->post([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->pump();
    });
  } catch (const std::exception&) {
    scheduled_ = false;
  }
}

void Exchange::pump() {
  scheduled_ = false;
  if (over_) return;
  try {
    for (Choice& choice : choices_) {
      read(choice);
      if (over_) return;
    }
    flush();
    const bool all = std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.ended; });
    if (all) finish();
  } catch (const std::bad_alloc&) {
    fail(ApiError(500, "out of memory", "", "internal_error"));
  } catch (const std::exception& error) {
    fail(ApiError(500, error.what(), "", "internal_error"));
  }
}

bool Exchange::blocked() const {
  return plan_.stream && reply_->unsent() + out_.size() > state_->options.unsent_bytes;
}

void Exchange::read(Choice& choice) {
  using std::chrono::milliseconds;
  while (!choice.ended && !over_) {
    if (blocked()) {
      flush();
      if (blocked()) {  // the client's fault, not this thread's
        choice.behind = true;
        return;
      }
    }
    if (!choice.answer.ready_within(milliseconds(0))) {
      choice.behind = false;  // it has caught up
      return;
    }
    std::optional<Token> token = choice.answer.next();
    if (!token) return end(choice);
    take(choice, std::move(*token));
  }
}

// Before the first token of a choice, or its end without one: the role, the prompt that is echoed.
void Exchange::open(Choice& choice) {
  if (plan_.stream) out_ += plan_.format->opening(choice.part.index);
  if (plan_.echoes.empty()) return;
  choice.part.text = plan_.echoes[choice.prompt];
  choice.part.prompt = &plan_.prompts[choice.prompt];
  choice.part.prompt_log_probs = choice.answer.prompt_log_probs();
}

bool Exchange::keeps_tokens() const {
  const ReplyHead& head = plan_.format->head();
  return head.log_probs >= 0 || head.depth != DepthDetail::kNone;
}

void Exchange::take(Choice& choice, Token token) {
  if (!choice.last_token) open(choice);
  count(choice, token);
  choice.part.text += token.text;
  if (keeps_tokens()) choice.part.tokens.push_back(std::move(token));
  if (plan_.stream && !choice.part.text.empty()) emit(choice);
}

void Exchange::count(Choice& choice, const Token& token) {
  const Moment now = state_->options.now();
  ++plan_.usage.completion_tokens;
  if (!token.ends) {
    depths_ += token.depth;
    ++text_tokens_;
  }
  const double share = token.depth / static_cast<double>(plan_.served->layers());
  // When a token is read tells when it was made only where none waited for the client.
  if (choice.last_token && !choice.behind) {
    const double seconds = std::chrono::duration<double>(now - *choice.last_token).count();
    state_->metrics.token(seconds, share);
    state_->token_times.add(seconds, 1, now);
  } else {
    state_->metrics.depth(share);
  }
  choice.last_token = now;
  if (plan_.record.first_token_seconds) return;
  plan_.record.first_token_seconds = seconds_since_arrival();
  state_->metrics.first_token(*plan_.record.first_token_seconds);
}

void Exchange::end(Choice& choice) {
  const AnswerEnd& end = choice.answer.end();
  const bool first = choice.part.index % plan_.answers == 0;
  AnswerStats stats = end.stats;
  if (!first) stats.reused_tokens = 0;  // the others of a prompt always begin with the first one's rows
  plan_.usage.add(stats);
  plan_.record.queue_seconds = std::max(plan_.record.queue_seconds, stats.wait_seconds);
  if (end.reason != FinishReason::kStop && end.reason != FinishReason::kLength)
    return fail(error_of(end, cut_));
  if (!choice.last_token) open(choice);
  choice.ended = true;
  choice.part.text += end.text;
  choice.part.finish = end.reason;
  if (plan_.record.finish.empty()) plan_.record.finish = name_of(end.reason);
  if (plan_.stream) emit(choice);
}

void Exchange::emit(Choice& choice) {
  AnswerPart& part = choice.part;
  out_ += plan_.format->event(part);
  for (const Token& token : part.tokens) part.characters += characters_in(token.bytes);
  if (part.prompt) part.characters += characters_in(plan_.echoes[choice.prompt]);
  part.text.clear();
  part.tokens.clear();
  part.prompt = nullptr;
  part.prompt_log_probs.reset();
}

void Exchange::begin() {
  reply_->begin(200, kEvents, ": ping\n\n",
                {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}, plan_.record.id_header()});
}

void Exchange::flush() {
  if (out_.empty()) return;
  reply_->write(std::exchange(out_, {}));
}

std::string Exchange::last_bytes() {
  if (plan_.stream) {
    const std::string usage = plan_.include_usage ? plan_.format->usage_event(plan_.usage) : "";
    return out_ + usage + ReplyFormat::done();
  }
  std::vector<AnswerPart> parts;
  for (Choice& choice : choices_) parts.push_back(std::move(choice.part));
  return plan_.format->whole(parts, plan_.usage);
}

// Where there is no memory for the bytes, the exchange is not over yet, and fails.
void Exchange::finish() {
  std::string bytes = last_bytes();
  if (over_.exchange(true)) return;
  if (plan_.stream) {
    reply_->write(std::move(bytes));
    reply_->end();
  } else {
    reply_->send(200, kJsonType, std::move(bytes), {plan_.record.id_header()});
  }
  close(200, plan_.record.finish);
}

void Exchange::fail(const ApiError& error) {
  if (over_.exchange(true)) return;
  for (Choice& choice : choices_) choice.answer.cancel();
  plan_.record.error = error.what();
  if (plan_.stream) {
    reply_->write(std::exchange(out_, {}) + "data: " + error_json(error) + "\n\n");
    reply_->end(true);  // a client that knows no such event sees the end
  } else {
    reply_->send(error.status(), kJsonType, error_json(error), {plan_.record.id_header()});
  }
  close(error.status(), error.status() == 504 ? "timeout" : error.status() == 503 ? "abort" : "error");
}

void Exchange::client_gone() {
  if (over_.exchange(true)) return;
  for (Choice& choice : choices_) choice.answer.cancel();
  close(499, "abort");
}

double Exchange::seconds_since_arrival() const {
  return std::chrono::duration<double>(state_->options.now() - plan_.arrived).count();
}

// The last thing that happens: counts, a line in the log, and the exchange leaves.
void Exchange::close(int status, const std::string& reason) {
  RequestRecord& record = plan_.record;
  record.status = status;
  record.total_seconds = seconds_since_arrival();
  record.generated_tokens = plan_.usage.completion_tokens;
  record.depth = text_tokens_ > 0 ? depths_ / static_cast<double>(text_tokens_) : 0;
  state_->metrics.request({.queue_seconds = record.queue_seconds,
                           .total_seconds = record.total_seconds,
                           .prompt_tokens = record.prompt_tokens,
                           .generated_tokens = record.generated_tokens,
                           .skip_ratio = plan_.usage.skip_ratio()},
                          reason);
  state_->metrics.reply(status);
  state_->log(record);
  state_->exchanges.remove(this);
}

}  // namespace fathom
