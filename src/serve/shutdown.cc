#include "serve/shutdown.h"

#include <algorithm>
#include <functional>
#include <thread>

#include "base/format.h"
#include "base/log.h"

namespace fathom {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr Milliseconds kLeastDrain{2000};  // for replies to reach their clients, even where the time is over

void wait_for(Moment until, const std::function<bool()>& done) {
  while (!done() && Clock::now() < until) std::this_thread::sleep_for(Milliseconds(20));
}

}  // namespace

void shut_down(Api& api, HttpServer& server, std::chrono::seconds time) {
  const Moment until = Clock::now() + time;
  api.drain();
  const int64_t active = api.active();
  if (active > 0)
    log_info(fmt::format("shutting down: {} request{} may end within {} s", active, active == 1 ? "" : "s",
                         time.count()));
  const auto ended = [&] { return api.active() == 0; };
  wait_for(until, ended);
  if (!ended()) {
    log_warn(fmt::format("requests that are cut: {}", api.active()));
    api.cut();
    wait_for(Clock::now() + kLeastDrain, ended);
  }
  // A reply that is whole may still be on its way to a client that reads slowly.
  server.drain(std::max(kLeastDrain, std::chrono::duration_cast<Milliseconds>(until - Clock::now())));
  api.settle();
}

}  // namespace fathom
