#include "cli/interrupt.h"

#include <csignal>

namespace fathom {
namespace {

std::atomic<bool> flag{false};  // a signal handler can reach nothing but a global
std::atomic<int> last_signal{0};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_interrupt(int number) {
  last_signal = number;
  if (flag.exchange(true)) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
}

}  // namespace

void watch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;  // without SA_RESTART: a read from the terminal returns
  sigaction(SIGINT, &action, nullptr);
}

void watch_termination() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigaction(SIGTERM, &action, nullptr);
}

const std::atomic<bool>& interrupted() {
  return flag;
}

int interrupting_signal() {
  return last_signal;
}

void forget_interrupt() {
  flag = false;
}

}  // namespace fathom
