// An HTTP/1.1 server: listens, reads requests under limits, hands them to a handler and writes its replies.
// Under TLS where it has a certificate. What a request means is the handler's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "serve/http.h"
#include "serve/http_options.h"

namespace fathom {

class HttpServer {
 public:
  // Reads the files of keys and of TLS. `handler` runs on several threads at once; it gets HEAD as GET, and
  // the reply's body is left out. `refused` hears of requests that the handler never sees.
  HttpServer(const HttpServerOptions& options, HttpHandler handler, HttpRefused refused = {});
  ~HttpServer();  // stops
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Listens and answers from now on. A place where it cannot listen is a UserError.
  void start();
  uint16_t port() const;            // where it listens, once started
  std::size_t connections() const;  // that are open

  // Refuses new connections, lets the replies that are under way finish, at most for `bound`, and stops.
  // Returns when stopped. stop() from another thread cuts it short.
  void drain(std::chrono::milliseconds bound);
  // Breaks every connection off and ends the server's threads. Replies that are still held do nothing from
  // then on. Neither is to be called on a thread of the server.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom
