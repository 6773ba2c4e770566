#include "cli/interrupt.h"

#include <unistd.h>

#include <csignal>

namespace fathom {
namespace {

std::atomic<bool> flag{false};  // a signal handler can reach nothing but a global
std::atomic<int> last_signal{0};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_interrupt(int number) {
  last_signal = number;
  if (!flag.exchange(true)) return;
  // The second: dead by this very signal, which is blocked while its handler runs. The first process of a
  // container does not die of a signal's default, and ends with the code that shells give it.
  std::signal(number, SIG_DFL);
  sigset_t this_one;
  sigemptyset(&this_one);
  sigaddset(&this_one, number);
  pthread_sigmask(SIG_UNBLOCK, &this_one, nullptr);
  std::raise(number);
  _exit(128 + number);
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
