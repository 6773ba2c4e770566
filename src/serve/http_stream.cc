#include "serve/http_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <filesystem>
#include <fstream>
#include <type_traits>

#include "base/format.h"
#include "serve/http_loop.h"

namespace fathom {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct TlsContext {
  asio::ssl::context context{asio::ssl::context::tls_server};
};

namespace {

using TlsSocket = asio::ssl::stream<tcp::socket>;

// Socket is tcp::socket or TlsSocket. Every callback runs on one strand: one after the other, on any of the
// loop's threads. The loop comes first: sockets and strands must not outlive it.
template <class Socket>
class AsioStream final : public ByteStream, public std::enable_shared_from_this<AsioStream<Socket>> {
 public:
  AsioStream(std::shared_ptr<HttpLoop> loop, std::shared_ptr<TlsContext> tls)
      : loop_(std::move(loop)),
        tls_(std::move(tls)),
        socket_(make_socket()),
        timer_(socket_.get_executor()) {}

  void adopt(AcceptedSocket& socket) {
    tcp_socket().assign(socket.v6() ? tcp::v6() : tcp::v4(), socket.handle());
    socket.taken();
    error_code ignored;  // a peer that has gone is noticed by reading
    tcp_socket().set_option(tcp::no_delay(true), ignored);
    tcp_socket().set_option(asio::socket_base::keep_alive(true), ignored);
  }

  void start(std::function<void(bool)> done) override {
    if constexpr (kTls) {
      socket_.async_handshake(asio::ssl::stream_base::server,
                              [self = this->shared_from_this(), done = std::move(done)](error_code error) {
                                if (self->open_) done(!error);
                              });
    } else {
      done(true);
    }
  }

  void read(char* into, std::size_t most, Done done) override {
    socket_.async_read_some(asio::buffer(into, most), ended(std::move(done)));
  }

  void write(std::string_view bytes, Done done) override {
    socket_.async_write_some(asio::buffer(bytes.data(), bytes.size()), ended(std::move(done)));
  }

  bool peer_closed() const override {
    pollfd asked{
        .fd = const_cast<AsioStream*>(this)->tcp_socket().native_handle(), .events = POLLRDHUP, .revents = 0};
    return poll(&asked, 1, 0) > 0;
  }

  void finish() override {
    if constexpr (kTls) {
      socket_.async_shutdown([self = this->shared_from_this()](error_code) {});
    } else {
      error_code ignored;
      socket_.shutdown(tcp::socket::shutdown_send, ignored);
    }
  }

  void close() override {
    open_ = false;
    error_code ignored;
    tcp_socket().close(ignored);
    timer_.cancel();
  }

  void reset() override {
    error_code ignored;
    tcp_socket().set_option(asio::socket_base::linger(true, 0), ignored);
    close();
  }

  void post(std::function<void()> call) override {
    loop_->while_running([&] { asio::post(socket_.get_executor(), std::move(call)); });
  }

  void call_at(Moment when, std::function<void()> call) override {
    timer_.expires_at(when);
    timer_.async_wait([self = this->shared_from_this(), call = std::move(call)](error_code error) {
      if (!error && self->open_) call();
    });
  }

 private:
  static constexpr bool kTls = std::is_same_v<Socket, TlsSocket>;

  Socket make_socket() {
    tcp::socket plain(asio::make_strand(loop_->context()));
    if constexpr (kTls) {
      return TlsSocket(std::move(plain), tls_->context);
    } else {
      return plain;
    }
  }

  tcp::socket& tcp_socket() {
    if constexpr (kTls) {
      return socket_.next_layer();
    } else {
      return socket_;
    }
  }

  auto ended(Done done) {
    return [self = this->shared_from_this(), done = std::move(done)](error_code error, std::size_t bytes) {
      if (self->open_) done(error ? 0 : bytes);
    };
  }

  std::shared_ptr<HttpLoop> loop_;
  std::shared_ptr<TlsContext> tls_;
  Socket socket_;
  asio::steady_timer timer_;
  bool open_ = true;
};

template <class Socket>
std::shared_ptr<ByteStream> make_stream(std::shared_ptr<HttpLoop> loop, AcceptedSocket& socket,
                                        std::shared_ptr<TlsContext> tls) {
  auto stream = std::make_shared<AsioStream<Socket>>(std::move(loop), std::move(tls));
  stream->adopt(socket);
  return stream;
}

bool is_readable(const std::string& file) {
  return std::filesystem::is_regular_file(file) && std::ifstream(file).good();
}

}  // namespace

std::shared_ptr<ByteStream> open_stream(std::shared_ptr<HttpLoop> loop, AcceptedSocket& socket,
                                        std::shared_ptr<TlsContext> tls) {
  if (tls) return make_stream<TlsSocket>(std::move(loop), socket, std::move(tls));
  return make_stream<tcp::socket>(std::move(loop), socket, nullptr);
}

std::shared_ptr<TlsContext> load_tls(const std::string& certificate_file, const std::string& key_file) {
  auto tls = std::make_shared<TlsContext>();
  SSL_CTX* const context = tls->context.native_handle();
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
  // A key with a password is an error, not a question at the terminal.
  tls->context.set_password_callback([](std::size_t, auto) { return std::string(); });

  const std::string certificate = printable(certificate_file), key = printable(key_file);
  require(is_readable(certificate_file), "TLS: the certificate file {} cannot be read", certificate);
  require(is_readable(key_file), "TLS: the key file {} cannot be read", key);
  error_code error;
  tls->context.use_certificate_chain_file(certificate_file, error);
  require(!error, "TLS: {} holds no certificate in PEM form: {}", certificate, error.message());
  tls->context.use_private_key_file(key_file, asio::ssl::context::pem, error);
  const bool other = ERR_GET_REASON(static_cast<unsigned long>(error.value())) == X509_R_KEY_VALUES_MISMATCH;
  require(!error || other, "TLS: {} holds no private key in PEM form without a password: {}", key,
          error.message());
  require(!error && SSL_CTX_check_private_key(context) == 1,
          "TLS: the key in {} does not belong to the certificate in {}", key, certificate);
  return tls;
}

}  // namespace fathom
