#include "serve/metrics.h"

#include <algorithm>
#include <numeric>

#include "base/build_info.h"
#include "base/format.h"

namespace fathom {
namespace {

// A label's value: the text format escapes three characters.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

void head(std::string& out, const std::string& name, const char* type, const std::string& help) {
  out += fmt::format("# HELP fathom:{} {}\n# TYPE fathom:{} {}\n", name, help, name, type);
}

void single(std::string& out, const std::string& name, const char* type, const std::string& help,
            const std::string& labels, double value) {
  head(out, name, type, help);
  out += fmt::format("fathom:{}{{{}}} {}\n", name, labels, value);
}

double share(double part, double all) {
  return all > 0 ? part / all : 0;
}

void write_gauges(std::string& out, const EngineStats& stats, const std::string& labels) {
  const auto gauge = [&](const char* name, const char* help, double value) {
    single(out, name, "gauge", help, labels, value);
  };
  gauge("num_requests_running", "Answers that have a place", static_cast<double>(stats.running));
  gauge("num_requests_waiting", "Answers that wait for a place", static_cast<double>(stats.waiting));
  gauge("num_requests_paused", "Answers whose reader has fallen behind", static_cast<double>(stats.paused));
  gauge("kv_cache_usage_perc", "Share of the cache in use, kept prefixes included",
        share(static_cast<double>(stats.cache_bytes), static_cast<double>(stats.pool_bytes)));
  gauge("skip_ratio", "Share of rows and units skipped since the start", stats.savings.skip_ratio);
  gauge("block_flops", "Share of the blocks' multiply-adds that ran since the start",
        stats.savings.block_flops);
  gauge("net_bytes", "Bytes read since the start, against the dense model", stats.savings.net_bytes);
  const double units = std::accumulate(stats.unit_rows.begin(), stats.unit_rows.end(), 0.0);
  gauge("mean_depth_layers", "Layers that ran for a row, as units / 2",
        share(units / 2, static_cast<double>(stats.rows)));
}

void write_counters(std::string& out, const EngineStats& stats, const std::string& labels) {
  const auto counter = [&](const char* name, const char* help, double value) {
    single(out, name, "counter", help, labels, value);
  };
  const auto count = [&](const char* name, const char* help, int64_t value) {
    counter(name, help, static_cast<double>(value));
  };
  count("prompt_tokens_total", "Tokens of prompts", stats.prompt_tokens);
  count("generation_tokens_total", "Tokens written", stats.generated_tokens);
  count("prefix_cache_queries_total", "Tokens of prompts that were looked up", stats.prompt_tokens);
  count("prefix_cache_hits_total", "Tokens of prompts that were computed before", stats.reused_tokens);
  count("num_preemptions_total", "Answers that made room for others", stats.preemptions);
  count("spec_decode_num_drafts_total", "Rounds of drafts that were verified",
        stats.speculation.verify_passes);
  count("spec_decode_num_draft_tokens_total", "Tokens drafted", stats.speculation.drafted);
  count("spec_decode_num_accepted_tokens_total", "Drafted tokens that stayed", stats.speculation.accepted);
  counter("bytes_read_total", "Weights and cache read", stats.bytes_read);
}

void write_layers(std::string& out, const EngineStats& stats, const std::string& labels) {
  head(out, "unit_skip_ratio", "gauge", "Share of rows that skipped a unit, since the start");
  for (size_t unit = 0; unit < stats.unit_rows.size(); ++unit) {
    const double ran = share(static_cast<double>(stats.unit_rows[unit]), static_cast<double>(stats.rows));
    out += fmt::format("fathom:unit_skip_ratio{{{},layer=\"{}\",unit=\"{}\"}} {}\n", labels, unit / 2,
                       unit % 2 == 0 ? "attention" : "ffn", stats.rows > 0 ? 1 - ran : 0);
  }
}

// Rows of a pass, by powers of two.
void write_batches(std::string& out, const EngineStats& stats, const std::string& labels) {
  const char* const name = "iteration_tokens_total";
  head(out, name, "histogram", "Rows of a pass");
  int64_t below = 0;
  for (size_t i = 0; i < stats.passes_by_rows.size(); ++i) {
    below += stats.passes_by_rows[i];
    const bool last = i + 1 == stats.passes_by_rows.size();
    out += fmt::format("fathom:{}_bucket{{{},le=\"{}\"}} {}\n", name, labels,
                       last ? "+Inf" : std::to_string(int64_t{1} << i), below);
  }
  out += fmt::format("fathom:{}_sum{{{}}} {}\nfathom:{}_count{{{}}} {}\n", name, labels, stats.rows, name,
                     labels, below);
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::add(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(at - bounds_.begin())];
  sum_ += value;
  ++count_;
}

void Histogram::write(std::string& out, const std::string& name, const std::string& help,
                      const std::string& labels) const {
  head(out, name, "histogram", help);
  int64_t below = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    below += counts_[i];
    out += fmt::format("fathom:{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bounds_[i], below);
  }
  out += fmt::format("fathom:{}_bucket{{{},le=\"+Inf\"}} {}\n", name, labels, count_);
  out += fmt::format("fathom:{}_sum{{{}}} {}\nfathom:{}_count{{{}}} {}\n", name, labels, sum_, name, labels,
                     count_);
}

void Metrics::first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.add(seconds);
}

void Metrics::token(double seconds_since_last, double depth_share) {
  const std::lock_guard lock(mutex_);
  between_.add(seconds_since_last);
  depth_.add(depth_share);
}

void Metrics::depth(double depth_share) {
  const std::lock_guard lock(mutex_);
  depth_.add(depth_share);
}

void Metrics::request(const RequestTimes& times, const std::string& finished_reason) {
  const std::lock_guard lock(mutex_);
  queue_.add(times.queue_seconds);
  total_.add(times.total_seconds);
  prompt_tokens_.add(static_cast<double>(times.prompt_tokens));
  generated_tokens_.add(static_cast<double>(times.generated_tokens));
  skipped_.add(times.skip_ratio);
  ++finished_[finished_reason];
}

void Metrics::reply(int status) {
  const std::lock_guard lock(mutex_);
  ++replies_[status];
}

void Metrics::write_histograms(std::string& out, const std::string& labels) const {
  first_token_.write(out, "time_to_first_token_seconds", "From a request's arrival to its first token",
                     labels);
  between_.write(out, "inter_token_latency_seconds", "Between two tokens of an answer", labels);
  total_.write(out, "e2e_request_latency_seconds", "From a request's arrival to its end", labels);
  queue_.write(out, "request_queue_time_seconds", "Until a request had a place", labels);
  prompt_tokens_.write(out, "request_prompt_tokens", "Tokens of a request's prompts", labels);
  generated_tokens_.write(out, "request_generation_tokens", "Tokens written for a request", labels);
  depth_.write(out, "token_depth_ratio", "Share of the layers that ran to give a token", labels);
  skipped_.write(out, "request_skip_ratio", "Share of rows and units skipped in a request", labels);
}

std::string Metrics::text(const EngineStats* stats, const std::string& model) const {
  const std::string labels = fmt::format("model_name=\"{}\"", escaped(model));
  std::string out;
  if (stats) {
    write_gauges(out, *stats, labels);
    write_counters(out, *stats, labels);
    write_batches(out, *stats, labels);
    write_layers(out, *stats, labels);
  }
  const std::lock_guard lock(mutex_);
  write_histograms(out, labels);
  head(out, "request_success_total", "counter", "Requests that have ended, by reason");
  for (const auto& [reason, count] : finished_)
    out +=
        fmt::format("fathom:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels, reason, count);
  head(out, "http_replies_total", "counter", "Replies, by status");
  for (const auto& [status, count] : replies_)
    out += fmt::format("fathom:http_replies_total{{{},status=\"{}\"}} {}\n", labels, status, count);
  single(out, "build_info", "gauge", "Always 1",
         fmt::format("{},version=\"{}\"", labels, build_info().version), 1);
  return out;
}

}  // namespace fathom
