#include "load/load_loop.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/format.h"
#include "load/event_reader.h"

namespace fathom {
namespace {

std::string http_request(const Server& server, const std::string& path, const std::string& body) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      path, server.host, server.port, body.size(), body);
}

// A socket whose connection is being made.
int connect_to(const Server& server) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server.port);
  require(inet_pton(AF_INET, server.host.c_str(), &address.sin_addr) == 1,
          "the server's host must be an address such as 127.0.0.1, got {}", printable(server.host));
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  require(socket >= 0, "a socket cannot be made: {}", std::strerror(errno));
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 && errno != EINPROGRESS) {
    const std::string why = std::strerror(errno);
    close(socket);
    fail("{}:{} cannot be reached: {}", server.host, server.port, why);
  }
  return socket;
}

// What follows "name": in JSON, without spaces. Events are searched, not parsed: the generator shares the
// machine with the server.
std::string_view value_of(std::string_view json, std::string_view name) {
  size_t at = json.find(name);
  if (at == std::string_view::npos) return {};
  at = json.find_first_not_of(" :", at + name.size());
  return at == std::string_view::npos ? std::string_view() : json.substr(at);
}

// One request under way.
class Call {
 public:
  Call(const LoadPlan& plan, const std::string& body, Clock::time_point start, double sent)
      : start_(start),
        out_(http_request(plan.server, plan.path, body)),
        socket_(connect_to(plan.server)),
        reader_([this](std::string_view event) { on_event(event); }) {
    times_.sent = sent;
  }
  ~Call() { close(socket_); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  int socket() const { return socket_; }
  bool writing() const { return written_ < out_.size(); }
  bool over() const { return over_; }
  const LoadTimes& times() const { return times_; }
  const EventReader& reader() const { return reader_; }

  void write() {
    const ssize_t n = send(socket_, out_.data() + written_, out_.size() - written_, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return stop(fmt::format("sending: {}", std::strerror(errno)));
    written_ += n > 0 ? static_cast<size_t>(n) : 0;
  }

  void read() {
    std::array<char, 16384> bytes;
    const ssize_t n = recv(socket_, bytes.data(), bytes.size(), 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) return stop(fmt::format("reading: {}", std::strerror(errno)));
    reader_.take({bytes.data(), static_cast<size_t>(n)});
    if (n == 0 || reader_.whole()) finish();
  }

  void stop(std::string error) {
    times_.end = seconds_since(start_);
    times_.error = std::move(error);
    over_ = true;
  }

 private:
  void on_event(std::string_view event) {
    if (event == "[DONE]") {
      done_ = true;
      return;
    }
    const double now = seconds_since(start_);
    if (event.starts_with("{\"error\"")) failed_ = event.substr(0, 200);
    if (value_of(event, "\"usage\"").starts_with('{')) take_usage(event);
    if (!value_of(event, "\"choices\"").starts_with("[{")) return;
    if (times_.first == 0) times_.first = times_.last = now;
    if (!value_of(event, "\"finish_reason\"").starts_with("null")) return;  // the end, which is no token
    if (events_++ > 0) times_.gaps.push_back(now - times_.last);
    times_.last = now;
  }

  void take_usage(std::string_view event) {
    const auto json = nlohmann::json::parse(event, nullptr, false);
    if (!json.is_object()) return;
    const auto& usage = json["usage"];
    times_.tokens = usage.value("completion_tokens", int64_t{0});
    times_.budget = usage.value("budget", 1.0);
    if (usage.contains("prompt_tokens_details"))
      times_.cached = usage["prompt_tokens_details"].value("cached_tokens", 0.0);
  }

  void finish() {
    if (reader_.status() != 200)
      return stop(fmt::format("status {}: {}", reader_.status(), reader_.body().substr(0, 200)));
    if (times_.tokens == 0) times_.tokens = events_;
    stop(failed_.empty() && events_ > 0 && !done_ ? "the stream ended early" : failed_);
  }

  const Clock::time_point start_;
  const std::string out_;
  size_t written_ = 0;
  const int socket_;
  EventReader reader_;
  LoadTimes times_;
  int64_t events_ = 0;
  bool done_ = false, over_ = false;
  std::string failed_;
};

class Loop {
 public:
  explicit Loop(const LoadPlan& plan) : plan_(plan), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    require(epoll_ >= 0, "epoll cannot be used: {}", std::strerror(errno));
  }
  ~Loop() { close(epoll_); }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  std::vector<LoadTimes> run() {
    while (next_ < plan_.bodies.size() || !calls_.empty()) {
      start_due();
      wait();
      remove_ended();
    }
    return std::move(results_);
  }

 private:
  bool open_loop() const { return !plan_.arrivals.empty(); }

  bool due() const {
    if (next_ >= plan_.bodies.size()) return false;
    return open_loop() ? plan_.arrivals[next_] <= seconds_since(start_) : std::ssize(calls_) < plan_.clients;
  }

  void start_due() {
    while (due()) {
      const double sent = open_loop() ? plan_.arrivals[next_] : seconds_since(start_);
      calls_.push_back(std::make_unique<Call>(plan_, plan_.bodies[next_++], start_, sent));
      epoll_event event{.events = EPOLLIN | EPOLLOUT, .data = {.ptr = calls_.back().get()}};
      epoll_ctl(epoll_, EPOLL_CTL_ADD, calls_.back()->socket(), &event);
    }
  }

  int wait_milliseconds() const {
    double seconds = plan_.timeout;
    if (open_loop() && next_ < plan_.bodies.size())
      seconds = std::min(seconds, plan_.arrivals[next_] - seconds_since(start_));
    return std::max(0, static_cast<int>(seconds * 1000 + 0.999));
  }

  void wait() {
    std::array<epoll_event, 256> events;
    const int n = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), wait_milliseconds());
    if (n == 0 && (!open_loop() || next_ >= plan_.bodies.size())) {
      for (const auto& call : calls_) call->stop("no byte came in time");
    }
    for (int i = 0; i < n; ++i) {
      auto& call = *static_cast<Call*>(events[static_cast<size_t>(i)].data.ptr);
      serve(call, events[static_cast<size_t>(i)].events);
    }
  }

  void serve(Call& call, uint32_t events) {
    if (call.writing() && (events & EPOLLOUT)) {
      call.write();
      epoll_event event{.events = call.writing() ? EPOLLIN | EPOLLOUT : EPOLLIN, .data = {.ptr = &call}};
      epoll_ctl(epoll_, EPOLL_CTL_MOD, call.socket(), &event);
    }
    if (!call.over() && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) call.read();
  }

  void remove_ended() {
    for (const auto& call : calls_) {
      if (call->over()) results_.push_back(call->times());
    }
    std::erase_if(calls_, [](const auto& call) { return call->over(); });
  }

  const LoadPlan& plan_;
  const int epoll_;
  const Clock::time_point start_ = Clock::now();
  size_t next_ = 0;
  std::vector<std::unique_ptr<Call>> calls_;
  std::vector<LoadTimes> results_;
};

}  // namespace

std::vector<LoadTimes> run_load(const LoadPlan& plan) {
  return Loop(plan).run();
}

std::string ask(const Server& server, const std::string& path, const std::string& body) {
  const LoadPlan plan{.server = server, .path = path, .bodies = {}};
  Call call(plan, body, Clock::now(), 0);
  while (!call.over()) {
    call.writing() ? call.write() : call.read();
    if (!call.over()) usleep(1000);
  }
  require(call.times().error.empty(), "{}: {}", path, call.times().error);
  return call.reader().body();
}

}  // namespace fathom
