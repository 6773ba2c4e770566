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

// A connection that has just come. Its socket is closed unless it was taken.
class AcceptedSocket {
 public:
  AcceptedSocket(int handle, bool v6) : handle_(handle), v6_(v6) {}
  ~AcceptedSocket();
  AcceptedSocket(const AcceptedSocket&) = delete;
  AcceptedSocket& operator=(const AcceptedSocket&) = delete;

  int handle() const { return handle_; }
  bool v6() const { return v6_; }  // which kind of address it has
  void taken() { handle_ = -1; }   // its taker closes it

 private:
  int handle_;
  bool v6_;
};

class HttpListener {
 public:
  // Takes the socket, or leaves it to be closed. Where the call throws, the listener goes on after a pause.
  using Accepted = std::function<void(AcceptedSocket& socket)>;

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
