// What all requests of a server share.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "serve/auto_budget.h"
#include "serve/metrics.h"
#include "serve/request_log.h"
#include "serve/served_model.h"

namespace fathom {

class Exchange;  // serve/exchange.h

// The requests that are being answered. They live here until their reply is whole.
class Exchanges {
 public:
  void add(const std::shared_ptr<Exchange>& exchange, double budget);
  void remove(const Exchange* exchange);
  void clear();
  int64_t count() const;
  double mean_budget() const;  // 1 where there are none
  std::vector<std::shared_ptr<Exchange>> all() const;

 private:
  struct Entry {
    std::shared_ptr<Exchange> exchange;
    double budget;
  };
  mutable std::mutex mutex_;
  std::map<const Exchange*, Entry> entries_;
};

struct ApiState {
  explicit ApiState(ApiOptions with);

  const ApiOptions options;
  Metrics metrics;
  TokenTimes token_times;
  Exchanges exchanges;
  LineLimit refusal_lines;
  std::atomic<bool> draining = false;

  std::shared_ptr<const ServedModel> served() const;  // null: still loading
  void set_served(std::shared_ptr<const ServedModel> served);
  Load load() const;
  std::string model_name() const;
  void log(const RequestRecord& record) const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const ServedModel> served_;
};

}  // namespace fathom
