#include "serve/http_loop.h"

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <cerrno>
#include <csignal>
#include <set>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "base/format.h"
#include "base/log.h"
#include "base/thread_name.h"

namespace fathom {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct HttpLoop::Impl {
  asio::io_context context;
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(context);
  std::vector<std::thread> threads;
  std::shared_mutex mutex;  // of `running`
  bool running = true;
};

namespace {

// An exception in one connection's callback must not end the others.
void run_for_ever(asio::io_context& context) {
  name_thread("fathom-http");
  for (;;) {
    try {
      context.run();
      return;
    } catch (const std::exception& error) {
      log_warn(std::string("server: ") + error.what());
    }
  }
}

// Signals are for the program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

[[noreturn]] void fail_to_listen(const std::string& host, uint16_t port, const error_code& error) {
  const std::string place = printable(host) + " port " + std::to_string(port);
  switch (error.value()) {
    case EADDRINUSE:
      fail("cannot listen at {}: another program uses it", place);
    case EACCES:
      fail("cannot listen at {}: this user may not (ports below 1024 need rights)", place);
    case EADDRNOTAVAIL:
      fail("cannot listen at {}: this machine has no such address", place);
    default:
      fail("cannot listen at {}: {}", place, error.message());
  }
}

}  // namespace

HttpLoop::HttpLoop(int threads) : impl_(std::make_unique<Impl>()) {
  const SignalsBlocked blocked;
  try {
    for (int i = 0; i < threads; ++i) impl_->threads.emplace_back([this] { run_for_ever(impl_->context); });
  } catch (const std::system_error& error) {
    stop();  // those that have started
    fail("cannot start {} threads for HTTP: {}", threads, error.what());
  }
}

HttpLoop::~HttpLoop() {
  stop();
}

asio::io_context& HttpLoop::context() {
  return impl_->context;
}

void HttpLoop::while_running(const std::function<void()>& call) {
  const std::shared_lock lock(impl_->mutex);
  if (impl_->running) call();
}

void HttpLoop::stop() {
  {
    const std::unique_lock lock(impl_->mutex);
    impl_->running = false;
  }
  impl_->work.reset();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
}

AcceptedSocket::~AcceptedSocket() {
  if (handle_ >= 0) ::close(handle_);
}

struct HttpListener::Impl : std::enable_shared_from_this<HttpListener::Impl> {
  Impl(HttpLoop& of, Accepted call)
      : loop(of), strand(asio::make_strand(of.context())), accepted(std::move(call)) {}

  error_code open(const tcp::endpoint& address);
  error_code open_all(const tcp::resolver::results_type& addresses);
  void wait(std::size_t index);
  bool hand_over(int socket, const tcp::acceptor& acceptor);
  bool take(tcp::acceptor& acceptor);

  HttpLoop& loop;
  asio::strand<asio::io_context::executor_type> strand;
  Accepted accepted;
  std::vector<tcp::acceptor> acceptors;
  asio::steady_timer pause{strand};
  uint16_t port = 0;
};

error_code HttpListener::Impl::open(const tcp::endpoint& address) {
  error_code error;
  tcp::acceptor acceptor(strand);
  acceptor.open(address.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && address.protocol() == tcp::v6()) acceptor.set_option(asio::ip::v6_only(true), error);
  if (!error) acceptor.bind(address, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) acceptor.non_blocking(true, error);
  if (error) return error;
  port = acceptor.local_endpoint().port();
  acceptors.push_back(std::move(acceptor));
  return error;
}

void HttpListener::Impl::wait(std::size_t index) {
  acceptors[index].async_wait(tcp::acceptor::wait_read, [self = shared_from_this(), index](error_code error) {
    tcp::acceptor& acceptor = self->acceptors[index];
    if (error || !acceptor.is_open()) return;
    if (self->take(acceptor)) return self->wait(index);
    // Out of descriptors or memory: the connections that are open go on, and one of them may end.
    self->pause.expires_after(std::chrono::milliseconds(100));
    self->pause.async_wait([self, index](error_code) {
      if (self->acceptors[index].is_open()) self->wait(index);
    });
  });
}

// Returns false where the connection could not be taken, for want of memory most likely. It is closed then.
bool HttpListener::Impl::hand_over(int socket, const tcp::acceptor& acceptor) {
  error_code ignored;
  AcceptedSocket came(socket, acceptor.local_endpoint(ignored).protocol() == tcp::v6());
  try {
    accepted(came);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Takes the connections that wait. Returns false where the system has no room for more.
bool HttpListener::Impl::take(tcp::acceptor& acceptor) {
  for (;;) {
    const int socket = accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0) {
      if (!hand_over(socket, acceptor)) return false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return false;
    }
    // Any other error is that of one connection, which its client gave up.
  }
}

// Opens every address. Returns the error that kept one from being opened, or none.
error_code HttpListener::Impl::open_all(const tcp::resolver::results_type& addresses) {
  error_code absent;
  std::set<tcp::endpoint> opened;
  for (const auto& entry : addresses) {
    tcp::endpoint address = entry.endpoint();
    if (port != 0) address.port(port);  // all listen where the first found a free port
    if (!opened.insert(address).second) continue;
    const error_code error = open(address);
    // A name may stand for addresses that the machine does not have, such as ::1 without IPv6.
    const bool missing = error.value() == EAFNOSUPPORT || error.value() == EADDRNOTAVAIL;
    if (error && !missing) return error;
    if (error) absent = error;
  }
  return acceptors.empty() ? absent : error_code();
}

HttpListener::HttpListener(HttpLoop& loop, const std::string& host, uint16_t port, Accepted accepted)
    : impl_(std::make_shared<Impl>(loop, std::move(accepted))) {
  error_code error;
  tcp::resolver resolver(loop.context());
  const auto addresses = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  require(!error, "cannot listen: the host {} is not known: {}", printable(host), error.message());
  error = impl_->open_all(addresses);
  if (error) fail_to_listen(host, port, error);
  asio::post(impl_->strand, [impl = impl_] {
    for (std::size_t i = 0; i < impl->acceptors.size(); ++i) {
      if (impl->acceptors[i].is_open()) impl->wait(i);
    }
  });
}

HttpListener::~HttpListener() {
  close();
}

uint16_t HttpListener::port() const {
  return impl_->port;
}

void HttpListener::close() {
  impl_->loop.while_running([&] {
    asio::post(impl_->strand, [impl = impl_] {
      error_code ignored;
      for (tcp::acceptor& acceptor : impl->acceptors) acceptor.close(ignored);
      impl->pause.cancel();
    });
  });
}

}  // namespace fathom
