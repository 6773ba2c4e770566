// The reply to one request as the bytes of HTTP/1.x: any thread writes, the connection's thread takes. No
// sockets here.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "serve/http.h"

namespace fathom {

// What the request decides about its reply.
struct ReplyForm {
  int minor = 1;  // HTTP/1.minor: a reply in pieces is chunked, or in HTTP/1.0 ends with the connection
  bool keep_alive = true;
  std::function<bool()> closing = {};  // whether the connection closes after the reply even so
  bool head_only = false;              // HEAD: the headers of the reply to GET
  HttpHeaders headers = {};
  std::size_t most_unsent = 0;  // bytes of a reply in pieces that may wait: beyond them it is broken off
};

class ServerReply final : public HttpReply {
 public:
  // `wake` is called from any thread when there is something to take; `post` runs a call on the connection's
  // thread.
  ServerReply(ReplyForm form, std::function<void()> wake, std::function<void(std::function<void()>)> post);

  void send(int status, std::string content_type, std::string body, HttpHeaders headers = {}) override;
  void begin(int status, std::string content_type, std::string ping, HttpHeaders headers = {}) override;
  void write(std::string piece) override;
  void end(bool close = false) override;
  void abort() override;
  std::size_t unsent() const override;
  void on_sent(std::function<void()> call) override;
  void on_gone(std::function<void()> call) override;
  void post(std::function<void()> call) override;

  // The connection's side.
  std::string take();            // what has not been taken yet; it stays unsent until sent() is called
  void sent(std::size_t bytes);  // the socket has taken them
  void ping();                   // writes the ping, where one is due
  void gone();                   // the client has gone
  void abandoned();              // no holder of the reply is left to go on with it
  bool keep_alive() const;       // the connection may go on after this reply
  bool streaming() const;        // begun and not ended
  bool whole() const;            // all of it has been written; some of it may be unsent
  bool broken() const;           // to be broken off

 private:
  enum class State : uint8_t { kWaiting, kStreaming, kWhole, kBroken, kGone };

  void put_head(int status, std::string content_type, HttpHeaders headers, HttpHeaders framing);
  void put_piece(std::string_view piece);

  const std::function<void()> wake_;
  const std::function<void(std::function<void()>)> post_;
  mutable std::mutex mutex_;  // of all below; never held while a call from outside runs
  ReplyForm form_;
  State state_ = State::kWaiting;
  bool woken_ = false;  // wake_() was called and nothing has been taken since
  std::string out_;     // written, not taken yet
  std::size_t taken_ = 0;
  std::string ping_;
  std::function<void()> on_sent_, on_gone_;
};

}  // namespace fathom
