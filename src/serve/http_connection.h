// One client: requests are read, judged, handed to the handler, and their replies written, one after the
// other.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "serve/http.h"
#include "serve/http_framing.h"
#include "serve/http_gate.h"
#include "serve/http_options.h"
#include "serve/http_reply.h"
#include "serve/http_stream.h"

namespace fathom {

// What the connections of a server share.
struct ConnectionShared {
  HttpServerOptions options;
  GateOptions gate;
  HttpHandler handler;
  HttpRefused refused;                      // may be none
  std::atomic<std::size_t> all_bodies = 0;  // bytes of bodies that are being read
  std::atomic<bool> draining = false;  // replies that are under way are finished, and no request is begun
};

// Its functions run on the stream's thread, but for those that say otherwise. Between start() and `closed` it
// lives through the callbacks that are under way.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  // `closed` is called once, on the stream's thread.
  HttpConnection(std::shared_ptr<ByteStream> stream, std::shared_ptr<ConnectionShared> shared,
                 std::function<void(HttpConnection*)> closed);

  // From any thread:
  void start();
  void start_full();  // answers 503 and closes: the server has no place for it
  void drain();       // closes when no request is under way
  void cut();         // closes at once

 private:
  enum class State : uint8_t { kStarting, kReading, kReplying, kLingering, kClosed };

  void begin_request();
  void read_more();
  void on_read(std::size_t bytes);
  void consume();
  bool count_body(std::size_t bytes);
  void judge_head();
  void dispatch();
  void call_handler(HttpRequest request, std::shared_ptr<HttpReply> reply);
  void make_reply(bool keep_alive);
  void refuse(int status, const std::string& message, const std::string& code, HttpHeaders headers,
              bool keep_alive);

  void flush();
  void write_some();
  void on_written(std::size_t bytes);
  void finish_reply();
  void linger();
  void close(bool reset);

  void set_deadline(Moment when);
  void arm(Moment when);
  void on_alarm();
  void on_request_late();
  void on_reply_quiet();
  Moment reply_deadline() const;

  const std::shared_ptr<ByteStream> stream_;
  const std::shared_ptr<ConnectionShared> shared_;
  const std::function<void(HttpConnection*)> closed_;

  State state_ = State::kStarting;
  RequestReader reader_;
  GateVerdict verdict_;      // of the request that is being read
  std::size_t counted_ = 0;  // bytes of its body that all_bodies counts
  std::string ahead_;        // read and not taken yet: bytes of this request, or of the next
  std::array<char, 16 << 10> input_;
  bool reading_ = false, at_end_ = false;  // a read is under way; the client writes no more

  std::shared_ptr<ServerReply> reply_;  // of the request that was dispatched
  std::string interim_;                 // 100 Continue, before the reply
  std::string out_;                     // being written
  std::size_t written_ = 0;             // of out_
  bool writing_ = false, out_is_reply_ = false;

  Moment deadline_ = Moment::max(), armed_ = Moment::max();
  Moment last_progress_ = {};  // of writing
};

}  // namespace fathom
