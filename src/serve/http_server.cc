#include "serve/http_server.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/format.h"
#include "serve/http_connection.h"
#include "serve/http_loop.h"
#include "serve/http_stream.h"

namespace fathom {
namespace {

constexpr std::size_t kMostRefused =
    64;  // connections beyond the limit that are told so; the others are closed

// The Host that requests name where the server listens at `host`: an address of IPv6 has brackets there.
std::string bound_host(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

std::shared_ptr<ConnectionShared> make_shared_part(const HttpServerOptions& options, HttpHandler handler,
                                                   HttpRefused refused) {
  require(options.threads > 0, "server: threads must be at least 1, got {}", options.threads);
  require(!options.host.empty(), "server: the host is empty: expected an address or a name");
  auto shared = std::make_shared<ConnectionShared>();
  shared->options = options;
  shared->handler = std::move(handler);
  shared->refused = std::move(refused);
  shared->gate = {.hosts = options.allow_hosts, .origins = options.allow_origins, .keys = options.keys};
  shared->gate.hosts.push_back(bound_host(options.host));
  if (!options.key_file.empty()) {
    for (ApiKey& key : read_api_keys(options.key_file)) shared->gate.keys.push_back(std::move(key));
  }
  return shared;
}

std::shared_ptr<TlsContext> make_tls(const HttpServerOptions& options) {
  if (options.tls_certificate.empty() && options.tls_key.empty()) return nullptr;
  require(!options.tls_certificate.empty() && !options.tls_key.empty(),
          "TLS needs a certificate and its key; only the {} is given",
          options.tls_key.empty() ? "certificate" : "key");
  return load_tls(options.tls_certificate, options.tls_key);
}

}  // namespace

struct HttpServer::Impl {
  void accept(AcceptedSocket& socket);
  void forget(HttpConnection* connection);
  std::vector<std::shared_ptr<HttpConnection>> refuse_new();

  std::shared_ptr<ConnectionShared> shared;
  std::shared_ptr<TlsContext> tls;
  std::shared_ptr<HttpLoop> loop;
  std::unique_ptr<HttpListener> listener;

  mutable std::mutex mutex;  // of all below
  std::condition_variable changed;
  std::unordered_map<HttpConnection*, std::shared_ptr<HttpConnection>> connections;
  bool cutting = false;
  std::mutex stopping;  // held while the threads end
};

void HttpServer::Impl::accept(AcceptedSocket& socket) {
  const std::lock_guard lock(mutex);
  const std::size_t most = shared->options.connections;
  const bool full = connections.size() >= most;
  if (shared->draining || (full && (tls || connections.size() >= most + kMostRefused))) return;
  auto connection = std::make_shared<HttpConnection>(open_stream(loop, socket, tls), shared,
                                                     [this](HttpConnection* closed) { forget(closed); });
  connections.emplace(connection.get(), connection);
  try {
    full ? connection->start_full() : connection->start();
  } catch (const std::exception&) {
    connections.erase(connection.get());
    throw;
  }
}

void HttpServer::Impl::forget(HttpConnection* connection) {
  const std::lock_guard lock(mutex);
  connections.erase(connection);
  if (connections.empty()) changed.notify_all();
}

// Returns the connections that are open; none is added from now on.
std::vector<std::shared_ptr<HttpConnection>> HttpServer::Impl::refuse_new() {
  std::vector<std::shared_ptr<HttpConnection>> open;
  const std::lock_guard lock(mutex);
  shared->draining = true;
  if (listener) listener->close();
  for (const auto& [_, connection] : connections) open.push_back(connection);
  return open;
}

HttpServer::HttpServer(const HttpServerOptions& options, HttpHandler handler, HttpRefused refused)
    : impl_(std::make_unique<Impl>()) {
  impl_->shared = make_shared_part(options, std::move(handler), std::move(refused));
  impl_->tls = make_tls(options);
}

HttpServer::~HttpServer() {
  stop();
}

void HttpServer::start() {
  const HttpServerOptions& options = impl_->shared->options;
  auto loop = std::make_shared<HttpLoop>(options.threads);
  impl_->loop = loop;
  auto listener =
      std::make_unique<HttpListener>(*loop, options.host, options.port,
                                     [impl = impl_.get()](AcceptedSocket& socket) { impl->accept(socket); });
  const std::lock_guard lock(impl_->mutex);
  impl_->listener = std::move(listener);
}

uint16_t HttpServer::port() const {
  return impl_->listener ? impl_->listener->port() : 0;
}

std::size_t HttpServer::connections() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->connections.size();
}

void HttpServer::drain(std::chrono::milliseconds bound) {
  for (const auto& connection : impl_->refuse_new()) connection->drain();
  {
    std::unique_lock lock(impl_->mutex);
    impl_->changed.wait_for(lock, bound, [&] { return impl_->connections.empty() || impl_->cutting; });
  }
  stop();
}

void HttpServer::stop() {
  for (const auto& connection : impl_->refuse_new()) connection->cut();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->cutting = true;
    impl_->changed.notify_all();
  }
  const std::lock_guard lock(impl_->stopping);
  if (impl_->loop) impl_->loop->stop();
}

}  // namespace fathom
