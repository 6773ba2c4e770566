// A server for tests, whose replies the test writes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serve/http_client_test.h"
#include "serve/http_server.h"

namespace fathom {

// On a free port.
struct HttpRig {
  explicit HttpRig(HttpServerOptions options = {}) : HttpRig(options, nullptr) {}
  HttpRig(HttpServerOptions options, HttpHandler handler) {
    options.port = 0;
    server.emplace(
        options, handler ? handler : [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
          take(std::move(request), std::move(reply));
        });
    server->start();
  }

  // Answers /echo and /health at once; the others wait for the test.
  void take(HttpRequest request, std::shared_ptr<HttpReply> reply) {
    if (request.path == "/echo" || request.path == "/health") {
      const std::string text = request.method + " " + request.query + " " + request.body;
      return reply->send(200, "text/plain", text);
    }
    const std::lock_guard lock(mutex);
    requests.push_back(std::move(request));
    replies.push_back(std::move(reply));
    came.notify_all();
  }

  // Returns the reply to request number `index`, as soon as that has come.
  std::shared_ptr<HttpReply> reply(size_t index = 0) {
    std::unique_lock lock(mutex);
    came.wait_for(lock, std::chrono::milliseconds(kPatience), [&] { return replies.size() > index; });
    return replies.at(index);
  }
  void let_go() {
    const std::lock_guard lock(mutex);
    replies.clear();
  }

  uint16_t port() const { return server->port(); }

  std::mutex mutex;
  std::condition_variable came;
  std::vector<HttpRequest> requests;
  std::vector<std::shared_ptr<HttpReply>> replies;
  std::optional<HttpServer> server;
};

// Something that happens on another thread.
class HttpEvent {
 public:
  void happen() {
    const std::lock_guard lock(mutex_);
    ++times_;
    changed_.notify_all();
  }
  bool wait(int times = 1) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(kPatience), [&] { return times_ >= times; });
  }
  int times() {
    const std::lock_guard lock(mutex_);
    return times_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int times_ = 0;
};

// Waits until `condition` holds, for as long as patience lasts.
template <class Condition>
bool soon(Condition condition) {
  for (int waited = 0; !condition(); waited += 5) {
    if (waited > kPatience) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

inline std::string http_get(std::string path) {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
}

inline std::string http_post(std::string path, std::string body) {
  return "POST " + path +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace fathom
