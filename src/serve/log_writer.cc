#include "serve/log_writer.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/format.h"

namespace fathom {
namespace {

constexpr int kLookMilliseconds = 50;  // how often a reader that takes nothing is asked again
constexpr int kLooksAtTheEnd = 20;     // a second
constexpr std::size_t kPiece = 512;    // what a pipe takes whole once it takes anything (POSIX)

}  // namespace

LogWriter::LogWriter(int descriptor, std::size_t most)
    : descriptor_(descriptor), most_(most), thread_([this] { work(); }) {}

LogWriter::~LogWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LogWriter::write(std::string line) {
  {
    const std::lock_guard lock(mutex_);
    if (lines_.size() >= most_) {
      ++dropped_;
      return;
    }
    lines_.push_back(std::move(line));
  }
  changed_.notify_all();
}

void LogWriter::work() {
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe,
                  nullptr);  // a reader that is gone is an error of write(), no signal
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !lines_.empty(); });
    if (lines_.empty()) return;
    std::string text = std::move(lines_.front()) + "\n";
    lines_.pop_front();
    if (lines_.empty() && dropped_ > 0)
      text +=
          fmt::format("fathom: {} log lines were dropped: they were not read\n", std::exchange(dropped_, 0));
    lock.unlock();
    const bool taken = put(text);
    lock.lock();
    if (!taken) lines_.clear();
  }
}

bool LogWriter::put(const std::string& text) {
  int looks = 0;
  for (std::size_t at = 0; at < text.size();) {
    pollfd one{descriptor_, POLLOUT, 0};
    const int ready = poll(&one, 1, kLookMilliseconds);
    if (ready == 0) {
      const std::lock_guard lock(mutex_);
      if (stop_ && ++looks > kLooksAtTheEnd) return false;
      continue;
    }
    const ssize_t written = ::write(descriptor_, text.data() + at, std::min(text.size() - at, kPiece));
    if (written > 0)
      at += static_cast<std::size_t>(written);
    else if (errno != EINTR && errno != EAGAIN)
      return true;  // there is no reader: the line is lost, and later ones are tried
  }
  return true;
}

}  // namespace fathom
