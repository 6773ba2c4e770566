#include "infer/token_queue.h"

#include <utility>

#include "base/format.h"

namespace fathom {

void Doorbell::ring() {
  {
    const std::lock_guard lock(mutex_);
    ringing_ = true;
  }
  rung_.notify_one();
}

void Doorbell::wait(std::optional<Moment> until) {
  std::unique_lock lock(mutex_);
  const auto ringing = [&] { return ringing_; };
  if (until) {
    rung_.wait_until(lock, *until, ringing);
  } else {
    rung_.wait(lock, ringing);
  }
  ringing_ = false;
}

void TokenQueue::count_in(std::shared_ptr<std::atomic<int64_t>> open) {
  const std::lock_guard lock(mutex_);
  open_ = std::move(open);
  ++*open_;
}

bool TokenQueue::full() const {
  const std::lock_guard lock(mutex_);
  return tokens_.size() >= capacity_;
}

bool TokenQueue::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

void TokenQueue::push(Token token) {
  {
    const std::lock_guard lock(mutex_);
    tokens_.push_back(std::move(token));
  }
  tell_reader();
}

void TokenQueue::set_prompt_log_probs(std::shared_ptr<const LogProbs> log_probs) {
  const std::lock_guard lock(mutex_);
  prompt_log_probs_ = std::move(log_probs);
}

void TokenQueue::close(AnswerEnd end) {
  {
    const std::lock_guard lock(mutex_);
    end_ = std::move(end);
    if (const auto open = std::exchange(open_, nullptr)) --*open;
  }
  tell_reader();
}

// Called without the lock: the reader may read at once.
void TokenQueue::tell_reader() {
  changed_.notify_all();
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex_);
    call = on_ready_;
  }
  if (call) call();
}

void TokenQueue::on_ready(std::function<void()> call) {
  bool ready = false;
  {
    const std::lock_guard lock(mutex_);
    on_ready_ = call;
    ready = !tokens_.empty() || end_;
  }
  if (ready && call) call();
}

std::optional<Token> TokenQueue::pop() {
  std::optional<Token> token;
  bool was_full = false;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !tokens_.empty() || end_; });
    if (tokens_.empty()) return token;
    was_full = tokens_.size() >= capacity_;
    token = std::move(tokens_.front());
    tokens_.pop_front();
  }
  if (was_full) engine_->ring();
  return token;
}

bool TokenQueue::ready_within(std::chrono::milliseconds time) const {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return !tokens_.empty() || end_; };
  return ready() || (time.count() > 0 && changed_.wait_for(lock, time, ready));
}

bool TokenQueue::ended() const {
  const std::lock_guard lock(mutex_);
  return end_.has_value();
}

const AnswerEnd& TokenQueue::end() const {
  const std::lock_guard lock(mutex_);
  if (!end_) fail("the answer has not ended yet");
  return *end_;  // never changes again
}

std::shared_ptr<const LogProbs> TokenQueue::prompt_log_probs() const {
  const std::lock_guard lock(mutex_);
  return prompt_log_probs_;
}

void TokenQueue::cancel() {
  {
    const std::lock_guard lock(mutex_);
    if (end_ || cancelled_) return;
    cancelled_ = true;
  }
  engine_->ring();
}

Answer make_answer(std::shared_ptr<TokenQueue> queue) {
  return Answer(std::move(queue));
}

Answer::Answer(std::shared_ptr<TokenQueue> queue) : queue_(std::move(queue)) {}
Answer::Answer(Answer&&) noexcept = default;
Answer& Answer::operator=(Answer&& other) noexcept {
  if (queue_ && queue_ != other.queue_) queue_->cancel();
  queue_ = std::move(other.queue_);
  return *this;
}
Answer::~Answer() {
  if (queue_) queue_->cancel();
}

std::optional<Token> Answer::next() {
  return queue_->pop();
}
bool Answer::ready_within(std::chrono::milliseconds time) const {
  return queue_->ready_within(time);
}
void Answer::on_ready(std::function<void()> call) {
  queue_->on_ready(std::move(call));
}
bool Answer::ended() const {
  return queue_->ended();
}
const AnswerEnd& Answer::end() const {
  return queue_->end();
}
std::shared_ptr<const LogProbs> Answer::prompt_log_probs() const {
  return queue_->prompt_log_probs();
}
void Answer::cancel() {
  queue_->cancel();
}

}  // namespace fathom
