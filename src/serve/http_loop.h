// The threads on which connections run, and the sockets that listen.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace boost::asio {
class io_context;
}

namespace fathom {

class HttpLoop {
 public:
  explicit HttpLoop(int threads);  // they run from now on
  ~HttpLoop();
  HttpLoop(const HttpLoop&) = delete;
  HttpLoop& operator=(const HttpLoop&) = delete;

  boost::asio::io_context& context();
  // Runs `call` unless the loop is stopping, which then waits until `call` has returned.
  void while_running(const std::function<void()>& call);
  // Waits until everything that was under way is done, and ends the threads. Not to be called on one of them.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class HttpListener {
 public:
  // `accepted` takes the socket over; `v6` says which kind of address it has.
  using Accepted = std::function<void(int socket, bool v6)>;

  // Listens at every address that `host` names. Port 0 is any free one. A host that is not known, a port that
  // is taken or not allowed is a UserError.
  HttpListener(HttpLoop& loop, const std::string& host, uint16_t port, Accepted accepted);
  ~HttpListener();
  uint16_t port() const;
  void close();  // new connections are refused soon after

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace fathom
