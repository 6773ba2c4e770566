#include "serve/http_reply.h"

#include <cassert>
#include <cstdio>
#include <utility>

#include "serve/http_status.h"

namespace fathom {

ServerReply::ServerReply(ReplyForm form, std::function<void()> wake,
                         std::function<void(std::function<void()>)> post)
    : wake_(std::move(wake)), post_(std::move(post)), form_(std::move(form)) {}

void ServerReply::send(int status, std::string content_type, std::string body, HttpHeaders headers) {
  {
    const std::lock_guard lock(mutex_);
    assert(state_ != State::kStreaming && "a reply is sent whole or in pieces");
    if (state_ != State::kWaiting) return;
    HttpHeaders framing;
    if (status != 204) framing.emplace_back("Content-Length", std::to_string(body.size()));
    put_head(status, std::move(content_type), std::move(headers), std::move(framing));
    if (!form_.head_only && status != 204) out_ += body;
    state_ = State::kWhole;
    on_gone_ = nullptr;
    woken_ = true;
  }
  wake_();
}

void ServerReply::begin(int status, std::string content_type, std::string ping, HttpHeaders headers) {
  {
    const std::lock_guard lock(mutex_);
    assert(state_ != State::kStreaming && "a reply begins once");
    if (state_ != State::kWaiting) return;
    HttpHeaders framing;
    if (form_.minor >= 1) {
      framing.emplace_back("Transfer-Encoding", "chunked");
    } else {
      form_.keep_alive = false;
    }
    put_head(status, std::move(content_type), std::move(headers), std::move(framing));
    ping_ = std::move(ping);
    state_ = State::kStreaming;
    woken_ = true;
  }
  wake_();
}

void ServerReply::put_head(int status, std::string content_type, HttpHeaders headers, HttpHeaders framing) {
  HttpHeaders all = std::move(framing);
  if (form_.closing && form_.closing()) form_.keep_alive = false;
  if (!content_type.empty()) all.emplace_back("Content-Type", std::move(content_type));
  all.emplace_back("X-Content-Type-Options", "nosniff");
  if (!form_.keep_alive) all.emplace_back("Connection", "close");
  if (form_.keep_alive && form_.minor == 0) all.emplace_back("Connection", "keep-alive");
  for (HttpHeaders* more : {&form_.headers, &headers}) {
    for (auto& header : *more) all.push_back(std::move(header));
  }
  out_ += reply_head(status, all) + "\r\n";
}

void ServerReply::put_piece(std::string_view piece) {
  if (form_.head_only) return;
  if (form_.minor == 0) {
    out_ += piece;
    return;
  }
  char size[20];
  std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
  out_.append(size).append(piece).append("\r\n");
}

void ServerReply::write(std::string piece) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kStreaming || piece.empty()) return;  // an empty chunk would end the reply
    put_piece(piece);
    const bool too_much = out_.size() + taken_ > form_.most_unsent;
    if (too_much) state_ = State::kBroken;
    wake = !std::exchange(woken_, true) || too_much;
  }
  if (wake) wake_();
}

void ServerReply::end(bool close) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kStreaming) return;
    if (form_.minor >= 1 && !form_.head_only) out_ += "0\r\n\r\n";
    if (close) form_.keep_alive = false;
    state_ = State::kWhole;
    on_gone_ = nullptr;
    woken_ = true;
  }
  wake_();
}

void ServerReply::abort() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kWaiting && state_ != State::kStreaming) return;
    state_ = State::kBroken;
    on_gone_ = nullptr;  // the holder broke it off: there is no news for it
  }
  wake_();
}

void ServerReply::abandoned() {
  bool waiting = false;
  {
    const std::lock_guard lock(mutex_);
    waiting = state_ == State::kWaiting;
  }
  if (waiting) {
    send(500, "application/json", error_object(500, "the server gave no answer", "no_answer"));
  } else {
    abort();
  }
}

std::size_t ServerReply::unsent() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kGone ? 0 : out_.size() + taken_;
}

void ServerReply::on_sent(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kGone) on_sent_ = std::move(call);
}

void ServerReply::on_gone(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kWhole) return;
    if (state_ != State::kGone) {
      on_gone_ = std::move(call);
      return;
    }
  }
  call();
}

void ServerReply::post(std::function<void()> call) {
  post_(std::move(call));
}

std::string ServerReply::take() {
  const std::lock_guard lock(mutex_);
  woken_ = false;
  taken_ += out_.size();
  return std::exchange(out_, {});
}

void ServerReply::sent(std::size_t bytes) {
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex_);
    assert(bytes <= taken_ && "more bytes were sent than taken");
    taken_ -= bytes;
    if (taken_ > 0 || !out_.empty()) return;
    call = state_ == State::kWhole ? std::exchange(on_sent_, nullptr) : on_sent_;
  }
  if (call) call();
}

void ServerReply::ping() {
  bool due = false;
  {
    const std::lock_guard lock(mutex_);
    due = state_ == State::kStreaming && !ping_.empty() && out_.empty() && taken_ == 0;
    if (due) put_piece(ping_);
  }
  if (due) wake_();
}

void ServerReply::gone() {
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kGone) return;
    // A whole reply stays whole: on_gone() is not for it.
    if (state_ != State::kWhole) state_ = State::kGone;
    call = std::exchange(on_gone_, nullptr);
    on_sent_ = nullptr;
    out_.clear();
    taken_ = 0;
  }
  if (call) call();
}

bool ServerReply::keep_alive() const {
  const std::lock_guard lock(mutex_);
  return form_.keep_alive;
}

bool ServerReply::streaming() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kStreaming;
}

bool ServerReply::whole() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kWhole;
}

bool ServerReply::broken() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kBroken;
}

}  // namespace fathom
