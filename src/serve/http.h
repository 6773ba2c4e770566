// A request and its reply as the API sees them: no sockets here.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "infer/fathom.h"

namespace fathom {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;          // "GET", "POST", …
  std::string path;            // without the query
  std::string query;           // behind the '?', as it came
  std::string body;            // within the server's limit; of a POST it is application/json
  std::string key;             // label of the API key that came with it; "" where the server has no keys
  std::string client_id = {};  // its X-Request-Id, short and printable; "": none
  Moment arrived = {};
};

// The reply to one request. Its functions may be called from any thread. After the client has gone they do
// nothing.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  // The whole reply.
  virtual void send(int status, std::string content_type, std::string body, HttpHeaders headers = {}) = 0;

  // A reply in pieces: begin(), any number of write(), end(). While nothing is written for the server's ping
  // time, `ping` is sent ("": nothing). `close`: the connection closes after the reply, which is whole.
  virtual void begin(int status, std::string content_type, std::string ping, HttpHeaders headers = {}) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end(bool close = false) = 0;
  // Breaks the connection off: the client sees that the reply is not whole.
  virtual void abort() = 0;

  // Returns the bytes that were written and that the socket has not taken yet.
  virtual std::size_t unsent() const = 0;
  // `call` is called, on the connection's thread, each time that unsent() has fallen to 0.
  virtual void on_sent(std::function<void()> call) = 0;
  // `call` is called once, on the connection's thread, when the client goes away before the reply is whole,
  // or at once where it has gone already.
  virtual void on_gone(std::function<void()> call) = 0;
  // Runs `call` on the connection's thread, after this function has returned.
  virtual void post(std::function<void()> call) = 0;
};

// Answers a request. Runs on a server's thread and must not wait: what takes long is answered later, through
// the reply.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpReply>)>;

// A request that the server has refused by itself: a fault of HTTP, a limit, a foreign page, a missing key.
struct HttpRefusal {
  int status = 0;
  std::string method, path;  // "" where they were not read
  std::string message;       // as the client gets it
  std::string id = {};       // of the server's own
  std::string client_id = {};
};
// Runs on a server's thread and must not wait.
using HttpRefused = std::function<void(const HttpRefusal&)>;

}  // namespace fathom
