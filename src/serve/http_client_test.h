// A client for tests of the server: plain sockets, nothing of the server's code. Every wait ends after
// kPatience.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace fathom {

inline constexpr int kPatience = 20'000;  // ms

struct TestResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool whole = false;  // it ended as its framing says
};

class TestClient {
 public:
  explicit TestClient(uint16_t port, int receive_buffer = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0)
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~TestClient() { close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool connected() const { return connected_; }
  int socket() const { return socket_; }

  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  void close_writing() { shutdown(socket_, SHUT_WR); }

  // Returns false where the server has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // Reads some bytes. Returns false at the end, at an error (reset() says so) and when patience is over.
  bool receive(int patience = kPatience) {
    pollfd asked{.fd = socket_, .events = POLLIN, .revents = 0};
    if (poll(&asked, 1, patience) <= 0) return false;
    char bytes[4096];
    const ssize_t n = recv(socket_, bytes, sizeof bytes, 0);
    reset_ = n < 0;
    if (n <= 0) return false;
    got_.append(bytes, static_cast<size_t>(n));
    return true;
  }
  bool reset() const { return reset_; }

  // Reads until `text` has come. What has come before and with it is taken and returned.
  std::string until(std::string_view text) {
    while (got_.find(text) == std::string::npos) {
      if (!receive()) return std::exchange(got_, {});
    }
    return take(got_.find(text) + text.size());
  }

  // Whether the server ends the connection, however many bytes come before.
  bool ends() {
    while (receive()) {
    }
    pollfd asked{.fd = socket_, .events = POLLIN, .revents = 0};
    return poll(&asked, 1, 0) > 0;
  }

  // Reads one response; `head_only`: one without a body, whatever its headers say.
  TestResponse response(bool head_only = false) {
    TestResponse out;
    const std::string head = until("\r\n\r\n");
    if (!head.starts_with("HTTP/1.1 ")) return out;
    out.status = std::atoi(head.c_str() + 9);
    parse_headers(head, out);
    if (head_only || out.status == 204 || out.status == 100) {
      out.whole = true;
    } else if (out.headers.contains("content-length")) {
      read_fixed(out);
    } else if (out.headers.contains("transfer-encoding")) {
      read_chunks(out);
    } else {
      while (receive()) {
      }
      out.whole = !reset_;
      out.body = std::exchange(got_, {});
    }
    return out;
  }

 private:
  std::string take(size_t count) {
    std::string out = got_.substr(0, count);
    got_.erase(0, count);
    return out;
  }

  static void parse_headers(const std::string& head, TestResponse& out) {
    for (size_t at = head.find("\r\n") + 2; head.compare(at, 2, "\r\n") != 0;) {
      const size_t colon = head.find(": ", at), end = head.find("\r\n", at);
      std::string name = head.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      out.headers[name] = head.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
  }

  void read_fixed(TestResponse& out) {
    const size_t length = std::stoul(out.headers["content-length"]);
    while (got_.size() < length && receive()) {
    }
    out.whole = got_.size() >= length;
    out.body = take(std::min(length, got_.size()));
  }

  void read_chunks(TestResponse& out) {
    for (;;) {
      const std::string line = until("\r\n");
      if (!line.ends_with("\r\n")) return;
      const size_t size = std::stoul(line, nullptr, 16);
      while (got_.size() < size + 2 && receive()) {
      }
      if (got_.size() < size + 2) return;
      out.body += take(size);
      if (take(2) != "\r\n") return;
      if (size == 0) {
        out.whole = true;
        return;
      }
    }
  }

  int socket_ = -1;
  bool connected_ = false, reset_ = false;
  std::string got_;
};

}  // namespace fathom
