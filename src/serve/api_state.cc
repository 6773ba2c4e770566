#include "serve/api_state.h"

#include <algorithm>

#include "base/format.h"
#include "base/log.h"
#include "serve/exchange.h"

namespace fathom {

void Exchanges::add(const std::shared_ptr<Exchange>& exchange, double budget) {
  const std::lock_guard lock(mutex_);
  entries_[exchange.get()] = {exchange, budget};
}

// What is removed may be the last to hold the exchange, which then ends without the lock.
void Exchanges::remove(const Exchange* exchange) {
  std::shared_ptr<Exchange> last;
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(exchange);
  if (at == entries_.end()) return;
  last = std::move(at->second.exchange);
  entries_.erase(at);
}

void Exchanges::clear() {
  std::map<const Exchange*, Entry> all;
  const std::lock_guard lock(mutex_);
  all.swap(entries_);
}

int64_t Exchanges::count() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(entries_);
}

double Exchanges::mean_budget() const {
  const std::lock_guard lock(mutex_);
  double sum = 0;
  for (const auto& [exchange, entry] : entries_) sum += entry.budget;
  return entries_.empty() ? 1 : sum / static_cast<double>(entries_.size());
}

std::vector<std::shared_ptr<Exchange>> Exchanges::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Exchange>> list;
  for (const auto& [exchange, entry] : entries_) list.push_back(entry.exchange);
  return list;
}

namespace {

// More answers than there are places, taken and waiting, are too many for ever.
ApiOptions with_room(ApiOptions options) {
  options.limits.choices = std::min(options.limits.choices, options.parallel + options.queue);
  return options;
}

}  // namespace

ApiState::ApiState(ApiOptions with) : options(with_room(std::move(with))) {}

std::shared_ptr<const ServedModel> ApiState::served() const {
  const std::lock_guard lock(mutex_);
  return served_;
}

void ApiState::set_served(std::shared_ptr<const ServedModel> served) {
  const std::lock_guard lock(mutex_);
  served_ = std::move(served);
}

Load ApiState::load() const {
  const std::shared_ptr<const ServedModel> model = served();
  Load load;
  if (model) {
    const EngineStats stats = model->engine->stats();
    load.waiting = without_place(stats.running, stats.waiting, options.parallel);
  }
  load.token_seconds = token_times.recent(options.now());
  load.budget = exchanges.mean_budget();
  return load;
}

std::string ApiState::model_name() const {
  return options.names.empty() ? "fathom" : options.names.front();
}

void ApiState::log(const RequestRecord& record) const {
  const std::string line = log_line(record, options.json_logs, std::chrono::system_clock::now());
  if (options.log)
    options.log(line);
  else if (record.status >= 500)
    log_warn(line);
  else
    log_info(line);
}

}  // namespace fathom
