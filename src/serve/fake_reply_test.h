// A connection without a socket: what the API sent, and a client that reads, stops reading or goes away.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json_fwd.hpp>

#include "serve/http.h"

namespace fathom {

class FakeReply final : public HttpReply {
 public:
  int status = 0;
  std::string type, body;  // of a reply in pieces: all that was written
  HttpHeaders headers;
  std::vector<std::string> pieces;
  bool begun = false, whole = false, closes = false, aborted = false, reads = true;

  void send(int code, std::string content_type, std::string text, HttpHeaders with) override {
    EXPECT_FALSE(begun || whole) << "a reply is sent twice";
    take_head(code, std::move(content_type), std::move(with));
    body = std::move(text);
    whole = true;
  }
  void begin(int code, std::string content_type, std::string, HttpHeaders with) override {
    EXPECT_FALSE(begun || whole) << "a reply begins twice";
    take_head(code, std::move(content_type), std::move(with));
    begun = true;
  }
  void write(std::string piece) override {
    EXPECT_TRUE(begun && !whole) << "a piece outside a reply";
    body += piece;
    if (!reads) unsent_ += piece.size();
    pieces.push_back(std::move(piece));
  }
  void end(bool close) override {
    EXPECT_TRUE(begun && !whole) << "an end outside a reply";
    closes = close;
    whole = true;
  }
  void abort() override { aborted = whole = true; }
  std::size_t unsent() const override { return unsent_; }
  void on_sent(std::function<void()> call) override { on_sent_ = std::move(call); }
  void on_gone(std::function<void()> call) override { on_gone_ = std::move(call); }
  void post(std::function<void()> call) override {
    const std::lock_guard lock(mutex_);
    if (gone_) return;
    posted_.push_back(std::move(call));
    came_.notify_all();
  }

  // Runs what is posted, as the connection's thread, until the reply is whole or `enough`.
  void run(const std::function<bool()>& enough = [] { return false; }) {
    while (!whole && !enough()) {
      std::function<void()> call;
      {
        std::unique_lock lock(mutex_);
        if (!came_.wait_for(lock, std::chrono::seconds(60), [&] { return !posted_.empty(); })) {
          ADD_FAILURE() << "nothing more is posted, and the reply is not whole";
          return;
        }
        call = std::move(posted_.front());
        posted_.pop_front();
      }
      call();
    }
  }
  // Runs what is posted now and within a while.
  void run_for(std::chrono::milliseconds time) {
    const auto until = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < until) {
      std::function<void()> call;
      {
        std::unique_lock lock(mutex_);
        if (!came_.wait_until(lock, until, [&] { return !posted_.empty(); })) return;
        call = std::move(posted_.front());
        posted_.pop_front();
      }
      call();
    }
  }
  void read_on() {
    reads = true;
    unsent_ = 0;
    if (on_sent_) on_sent_();
  }
  void leave() {
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      posted_.clear();
    }
    if (on_gone_) on_gone_();
  }

  nlohmann::json json() const;
  std::string header(const std::string& name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return "";
  }
  // The data of server-sent events, whose framing is checked.
  std::vector<std::string> events() const;
  // The events but [DONE], which must be the last.
  std::vector<nlohmann::json> chunks() const;

 private:
  void take_head(int code, std::string content_type, HttpHeaders with) {
    status = code;
    type = std::move(content_type);
    headers = std::move(with);
  }

  std::size_t unsent_ = 0;
  std::function<void()> on_sent_, on_gone_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::function<void()>> posted_;
  bool gone_ = false;
};

}  // namespace fathom
