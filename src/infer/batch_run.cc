#include "infer/batch_run.h"

#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "io/atomic_file.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Requests after the oldest that is not written yet: a long answer holds up those behind it only so far.
constexpr int64_t kMostAhead = 4096;
constexpr int64_t kMostWaiting = 64;  // without a place in the cache

std::string text_of(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson to_json(const BatchIdentity& identity) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, value] : identity) json[name] = value;
  return json;
}

void check_identity(const std::string& path, const std::string& beside, const BatchIdentity& identity) {
  OrderedJson was;
  try {
    was = OrderedJson::parse(read_text_file(beside));
  } catch (const OrderedJson::exception&) {
    fail("{}: this is not what a batch wrote", printable(beside));
  }
  for (const auto& [name, value] : identity) {
    const std::string before = was.is_object() && was.contains(name) && was[name].is_string()
                                   ? was[name].get<std::string>()
                                   : "nothing";
    if (before != value)
      fail(
          "{}: its lines were made with another {} ({}; now {}): go on with the same, or write to a new file",
          printable(path), name, printable(before, 80), printable(value, 80));
  }
}

// One request on its way.
struct Pending {
  BatchItem item;
  int64_t prompt_tokens = 0;
  std::optional<Answer> answer;  // none: it cannot be answered
  std::string text, error;
  std::vector<int32_t> ids;
  bool done = false;
};

std::string line_of(int64_t index, const Pending& pending, bool ids) {
  OrderedJson line{{"index", index}};
  if (!pending.item.id.empty()) line["id"] = OrderedJson::parse(pending.item.id);
  if (!pending.error.empty()) {
    line["error"] = pending.error;
    return text_of(line);
  }
  const AnswerEnd& end = pending.answer->end();
  line["text"] = pending.text;
  line["finish_reason"] = name_of(end.reason);
  line["prompt_tokens"] = pending.prompt_tokens;
  line["generated_tokens"] = pending.ids.size();
  line["seed"] = pending.item.request.sampler.seed;
  line["depth"] = end.stats.depth;
  if (ids) line["ids"] = pending.ids;
  return text_of(line);
}

// The requests between the last line that is written and the newest that was given to the batcher.
class BatchRun {
 public:
  BatchRun(Batcher& batcher, const BatchSource& source, BatchOutput& output, const BatchRunOptions& options)
      : batcher_(batcher), source_(source), output_(output), options_(options), next_(output.done()) {}

  BatchRunResult run() {
    while (output_.done() < source_.size()) {
      if (options_.cancel && options_.cancel->load(std::memory_order_relaxed)) {
        result_.cancelled = true;
        break;
      }
      submit();
      batcher_.step();
      for (size_t i = 0; i < pending_.size(); ++i)
        hear(pending_[i], output_.done() + static_cast<int64_t>(i));
      write();
    }
    output_.sync();
    return result_;
  }

 private:
  // What has come of the answer so far.
  void hear(Pending& pending, int64_t index) {
    while (!pending.done && pending.answer->ready_within(std::chrono::milliseconds(0))) {
      const std::optional<Token> token = pending.answer->next();
      if (!token) {
        pending.done = true;
        const AnswerEnd& end = pending.answer->end();
        pending.text += end.text;
        if (!end.error.empty()) pending.error = fmt::format("{}: {}", source_.where(index), end.error);
        return;
      }
      if (!token->ends) pending.ids.push_back(token->id);
      pending.text += token->text;
    }
  }

  void submit() {
    while (next_ < source_.size() && batcher_.stats().waiting + added_ < kMostWaiting &&
           std::ssize(pending_) < kMostAhead) {
      pending_.emplace_back();
      start(pending_.back());
      ++next_;
    }
    added_ = 0;
  }

  void start(Pending& pending) {
    try {
      pending.item = source_.at(next_);
      pending.prompt_tokens = std::ssize(pending.item.request.prompt);
      auto lanes = batcher_.prepare(std::move(pending.item.request));
      pending.answer = make_answer(lanes.front()->out);
      pending.item.request = {};
      pending.item.request.sampler.seed = lanes.front()->shared->request.sampler.seed;
      batcher_.add(std::move(lanes.front()));
      ++added_;
    } catch (const UserError& error) {
      pending.error = fmt::format("{}: {}", source_.where(next_), error.what());
      pending.done = true;
    }
  }

  void write() {
    int64_t written = 0;
    for (; !pending_.empty() && pending_.front().done; pending_.pop_front(), ++written) {
      const Pending& pending = pending_.front();
      const bool failed = !pending.error.empty();
      output_.add(line_of(output_.done(), pending, options_.ids), failed);
      if (failed && options_.on_failure) options_.on_failure(pending.error);
      if (failed) continue;
      result_.generated += std::ssize(pending.ids);
      result_.speculation += pending.answer->end().stats.speculation;
    }
    if (written > 0 && options_.on_done) options_.on_done(written);
  }

  Batcher& batcher_;
  const BatchSource& source_;
  BatchOutput& output_;
  const BatchRunOptions& options_;
  std::deque<Pending> pending_;
  int64_t next_, added_ = 0;
  BatchRunResult result_;
};

}  // namespace

BatchOutput::BatchOutput(const std::string& path, const BatchIdentity& identity, bool restart) : path_(path) {
  namespace fs = std::filesystem;
  const std::string beside = path + ".run.json";
  std::error_code none;
  const bool goes_on = !restart && fs::is_regular_file(path, none) && fs::file_size(path, none) > 0;
  if (goes_on && !fs::exists(beside, none))
    fail("{} is there already, and {} is not: no batch wrote it", printable(path), printable(beside));
  if (goes_on) check_identity(path, beside, identity);
  file_ = std::make_unique<LineFile>(
      path, [this](std::string_view line) { take(line); }, restart);
  if (!goes_on) write_file_atomically(beside, to_json(identity).dump(2) + "\n");
}

void BatchOutput::take(std::string_view line) {
  const OrderedJson json = OrderedJson::parse(line, nullptr, false);
  if (!json.is_object() || json.value("index", OrderedJson()) != OrderedJson(taken_))
    fail("{}: line {} is not the answer that a batch wrote there", printable(path_), taken_ + 1);
  ++taken_;
  failed_ += json.contains("error");
}

void BatchOutput::add(const std::string& line, bool failed) {
  file_->append(line);
  failed_ += failed;
}

BatchPlan plan_batch(const BatchSource& source, int64_t first, const std::atomic<bool>* cancel) {
  BatchPlan plan;
  for (int64_t index = first; index < source.size() && !(cancel && *cancel); ++index) {
    try {
      const Request request = source.at(index).request;
      plan.own_budgets = plan.own_budgets || request.budget != source.defaults().budget;
      const bool endless = request.max_tokens < 0 || request.max_tokens > INT32_MAX;
      if (endless) plan.longest = -1;
      if (plan.longest >= 0)
        plan.longest = std::max(plan.longest, std::ssize(request.prompt) + request.max_tokens);
    } catch (const UserError&) {  // run_batch() names it
    }
  }
  return plan;
}

BatchRunResult run_batch(Batcher& batcher, const BatchSource& source, BatchOutput& output,
                         const BatchRunOptions& options) {
  return BatchRun(batcher, source, output, options).run();
}

}  // namespace fathom
