#include "serve/http_connection.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "serve/http_status.h"
#include "serve/random_id.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

// Bytes that are read ahead while a reply is under way. Reading goes on to see a client go; beyond these it
// pauses, and the client is asked after from time to time.
constexpr std::size_t kMostAhead = 64 << 10;
constexpr std::chrono::seconds kAskAfterClient{1};
constexpr std::chrono::seconds kLastBytes{2};  // for a request that is half there when the server drains

// How long a connection is read after its last reply. To close while bytes come in would reset the
// connection, and the client could lose the reply before it has read it.
constexpr std::chrono::seconds kLinger{2};

// What the client calls its request, where that can be written back and logged.
std::string client_id_of(const RequestHead& head) {
  constexpr std::size_t kMostBytes = 128;
  const std::string* id = head.find("x-request-id");
  const bool good = id && id->size() <= kMostBytes &&
                    std::all_of(id->begin(), id->end(), [](char c) { return c >= 0x20 && c < 0x7F; });
  return good ? *id : "";
}

}  // namespace

HttpConnection::HttpConnection(std::shared_ptr<ByteStream> stream, std::shared_ptr<ConnectionShared> shared,
                               std::function<void(HttpConnection*)> closed)
    : stream_(std::move(stream)),
      shared_(std::move(shared)),
      closed_(std::move(closed)),
      reader_(shared_->options.limits) {}

void HttpConnection::start() {
  stream_->post([self = shared_from_this()] {
    if (self->state_ == State::kClosed) return;
    self->set_deadline(Clock::now() + self->shared_->options.request_time);
    self->stream_->start([self](bool ok) { ok ? self->begin_request() : self->close(false); });
  });
}

void HttpConnection::start_full() {
  stream_->post([self = shared_from_this()] {
    if (self->state_ == State::kClosed) return;
    self->refuse(503, "the server has no place for another connection", "too_many_connections", {}, false);
  });
}

void HttpConnection::drain() {
  stream_->post([self = shared_from_this()] {
    const bool idle = self->state_ == State::kStarting ||
                      (self->state_ == State::kReading && !self->reader_.started() && self->ahead_.empty());
    if (idle) return self->close(false);
    if (self->state_ == State::kReading)  // it would get 503 anyway
      self->set_deadline(std::min(self->deadline_, Clock::now() + kLastBytes));
  });
}

void HttpConnection::cut() {
  stream_->post([self = shared_from_this()] { self->close(true); });
}

// Reading -------------------------------------------------------------------------

void HttpConnection::begin_request() {
  const bool first = state_ == State::kStarting;
  const HttpServerOptions& options = shared_->options;
  state_ = State::kReading;
  reader_.restart();
  set_deadline(Clock::now() + (first ? options.request_time : options.idle_time));
  consume();
}

void HttpConnection::read_more() {
  if (reading_ || at_end_ || state_ == State::kClosed || ahead_.size() >= kMostAhead) return;
  reading_ = true;
  stream_->read(input_.data(), input_.size(),
                [self = shared_from_this()](std::size_t n) { self->on_read(n); });
}

void HttpConnection::on_read(std::size_t bytes) {
  reading_ = false;
  at_end_ = bytes == 0;
  if (state_ == State::kLingering) return at_end_ ? close(false) : read_more();
  if (at_end_) {
    // A client that has sent its last byte still gets a reply that was whole before.
    if (state_ == State::kReplying && reply_->whole()) return;
    return close(false);
  }
  ahead_.append(input_.data(), bytes);
  if (state_ == State::kReading) return consume();
  read_more();
  set_deadline(reply_deadline());
}

void HttpConnection::consume() {
  while (state_ == State::kReading && !ahead_.empty()) {
    const bool was_started = reader_.started();
    const bool in_head = reader_.step() == RequestReader::Step::kHead;
    ahead_.erase(0, reader_.take(ahead_));
    if (!was_started) set_deadline(Clock::now() + shared_->options.request_time);
    const RequestReader::Step step = reader_.step();
    if (step == RequestReader::Step::kFault) {
      const HttpFault& fault = reader_.fault();
      return refuse(fault.status, fault.message, "", {}, false);
    }
    if (in_head && step != RequestReader::Step::kHead) judge_head();
    if (!count_body(reader_.body_size())) {
      return refuse(503, "the server is reading too much at once", "too_many_bytes", {}, false);
    }
    if (state_ == State::kReading && step == RequestReader::Step::kWhole) return dispatch();
  }
  at_end_&& state_ == State::kReading ? close(false) : read_more();
}

// Counts the bytes of the body that is being read. Returns false where all connections together hold too
// many.
bool HttpConnection::count_body(std::size_t bytes) {
  const std::size_t added = bytes - counted_;  // wraps where it is less, and so does the sum
  counted_ = bytes;
  return (shared_->all_bodies += added) <= shared_->options.all_bodies || bytes == 0;
}

void HttpConnection::judge_head() {
  const RequestHead& head = reader_.head();
  verdict_ = judge_request(shared_->gate, head);
  if (verdict_.status != 0) {
    return refuse(verdict_.status, verdict_.message, verdict_.code, std::move(verdict_.headers),
                  head.keep_alive && !head.has_body());
  }
  if (head.expects_continue && ahead_.empty()) {
    interim_ = "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
}

void HttpConnection::make_reply(bool keep_alive) {
  ReplyForm form{.minor = reader_.head().minor,
                 .keep_alive = keep_alive,
                 .closing =
                     [weak = std::weak_ptr(shared_)] {
                       const auto shared = weak.lock();
                       return !shared || shared->draining;
                     },
                 .head_only = reader_.head().method == "HEAD",
                 .headers = std::move(verdict_.headers),
                 .most_unsent = shared_->options.most_unsent};
  const auto flush_soon = [weak = weak_from_this(), stream = stream_] {
    stream->post([weak] {
      if (const auto self = weak.lock()) self->flush();
    });
  };
  const auto post = [stream = stream_](std::function<void()> call) { stream->post(std::move(call)); };
  reply_ = std::make_shared<ServerReply>(std::move(form), flush_soon, post);
  count_body(0);
  state_ = State::kReplying;
  set_deadline(Moment::max());
}

void HttpConnection::dispatch() {
  const RequestHead& head = reader_.head();
  HttpRequest request{.method = head.method == "HEAD" ? "GET" : head.method,
                      .path = head.path,
                      .query = head.query,
                      .body = reader_.take_body(),
                      .key = std::move(verdict_.key),
                      .client_id = client_id_of(head),
                      .arrived = Clock::now()};
  make_reply(head.keep_alive);
  read_more();
  // The reply that the handler holds tells when its last holder has let it go, so that no client waits for
  // ever.
  std::shared_ptr<HttpReply> held(reply_.get(), [reply = reply_](HttpReply*) { reply->abandoned(); });
  call_handler(std::move(request), std::move(held));
}

void HttpConnection::call_handler(HttpRequest request, std::shared_ptr<HttpReply> reply) {
  try {
    shared_->handler(std::move(request), std::move(reply));
  } catch (const std::exception& error) {  // the reply is abandoned: 500
    log_warn(std::string("a request failed: ") + error.what());
  }
}

void HttpConnection::refuse(int status, const std::string& message, const std::string& code,
                            HttpHeaders headers, bool keep_alive) {
  const std::string id = random_id("req"), client_id = client_id_of(reader_.head());
  headers.emplace_back("X-Request-Id", client_id.empty() ? id : client_id);
  verdict_.headers = std::move(headers);
  reader_.take_body();  // which is then gone
  make_reply(keep_alive);
  if (status == 204) {
    reply_->send(status, "", "");
  } else {
    reply_->send(status, "application/json", error_object(status, message, code));
  }
  read_more();
  if (status != 204 && shared_->refused)
    shared_->refused({.status = status,
                      .method = reader_.head().method,
                      .path = reader_.head().path,
                      .message = message,
                      .id = id,
                      .client_id = client_id});
}

// Writing -------------------------------------------------------------------------

void HttpConnection::flush() {
  if (state_ == State::kClosed || state_ == State::kLingering) return;
  if (reply_ && reply_->broken()) return close(true);
  if (writing_) return;
  out_is_reply_ = interim_.empty();
  out_ = out_is_reply_ ? (reply_ ? reply_->take() : "") : std::exchange(interim_, {});
  if (out_.empty()) {
    if (reply_ && reply_->whole()) finish_reply();
    return;
  }
  writing_ = true;
  written_ = 0;
  last_progress_ = Clock::now();
  write_some();
  if (state_ == State::kReplying) set_deadline(reply_deadline());
}

void HttpConnection::write_some() {
  stream_->write(std::string_view(out_).substr(written_),
                 [self = shared_from_this()](std::size_t n) { self->on_written(n); });
}

void HttpConnection::on_written(std::size_t bytes) {
  if (bytes == 0) return close(false);
  written_ += bytes;
  last_progress_ = Clock::now();
  writing_ = written_ < out_.size();
  if (writing_) {
    write_some();
  } else {
    out_.clear();
  }
  if (state_ == State::kReplying) set_deadline(reply_deadline());
  if (out_is_reply_) reply_->sent(bytes);
  if (!writing_) flush();
}

void HttpConnection::finish_reply() {
  const bool more = !at_end_ || !ahead_.empty();
  const bool keep = reply_->keep_alive() && !shared_->draining && more;
  reply_.reset();
  keep ? begin_request() : linger();
}

void HttpConnection::linger() {
  state_ = State::kLingering;
  if (at_end_) return close(false);
  ahead_.clear();
  stream_->finish();
  set_deadline(Clock::now() + kLinger);
  read_more();
}

void HttpConnection::close(bool reset) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  count_body(0);
  reset ? stream_->reset() : stream_->close();
  if (const auto reply = std::exchange(reply_, nullptr)) reply->gone();
  closed_(this);
}

// Time ----------------------------------------------------------------------------

// A timer that is due earlier stays as it is and looks at the deadline then: moving the deadline with every
// piece that is written costs nothing.
void HttpConnection::set_deadline(Moment when) {
  deadline_ = when;
  if (when < armed_) arm(when);
}

void HttpConnection::arm(Moment when) {
  armed_ = when;
  if (when == Moment::max()) return;
  stream_->call_at(when, [self = shared_from_this()] { self->on_alarm(); });
}

void HttpConnection::on_alarm() {
  if (Clock::now() < deadline_) return arm(deadline_);
  armed_ = Moment::max();
  switch (state_) {
    case State::kReading:
      return on_request_late();
    case State::kReplying:
      return on_reply_quiet();
    case State::kStarting:
    case State::kLingering:
      return close(false);
    case State::kClosed:
      return;
  }
}

void HttpConnection::on_request_late() {
  if (!reader_.started()) return close(false);
  refuse(408, "the request did not come whole in time", "request_timeout", {}, false);
}

void HttpConnection::on_reply_quiet() {
  const Moment now = Clock::now();
  if (writing_ && now >= last_progress_ + shared_->options.stall_time) return close(true);
  if (ahead_.size() >= kMostAhead && stream_->peer_closed()) return close(false);
  if (!writing_ && reply_->streaming() && now >= last_progress_ + shared_->options.ping_time) {
    last_progress_ = now;
    reply_->ping();
  }
  set_deadline(reply_deadline());
}

// The next moment at which a reply that is under way is looked after.
Moment HttpConnection::reply_deadline() const {
  Moment when = Moment::max();
  if (writing_) {
    when = last_progress_ + shared_->options.stall_time;
  } else if (reply_->streaming()) {
    when = last_progress_ + shared_->options.ping_time;
  }
  if (ahead_.size() >= kMostAhead) when = std::min(when, Clock::now() + kAskAfterClient);
  return when;
}

}  // namespace fathom
