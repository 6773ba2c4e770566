#include "load/load_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/format.h"
#include "report/chart.h"
#include "report/table.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

// Runs of one line and load.
struct Cell {
  std::string line;
  double load = 0;
  std::vector<const LoadRun*> runs;
};

std::vector<Cell> cells_of(const std::vector<LoadRun>& runs) {
  std::vector<Cell> cells;
  for (const LoadRun& run : runs) {
    const auto same = [&](const Cell& cell) { return cell.line == run.line && cell.load == run.load; };
    auto at = std::find_if(cells.begin(), cells.end(), same);
    if (at == cells.end()) at = cells.insert(cells.end(), Cell{run.line, run.load, {}});
    at->runs.push_back(&run);
  }
  return cells;
}

// Times of all requests that ended well.
std::vector<double> times_of(const Cell& cell, PlottedTime which) {
  std::vector<double> times;
  for (const LoadRun* run : cell.runs) {
    for (const LoadTimes& request : run->requests) {
      if (!request.error.empty()) continue;
      if (which == PlottedTime::kTotal) times.push_back(request.end - request.sent);
      if (which == PlottedTime::kFirstToken) times.push_back(request.first - request.sent);
      if (which == PlottedTime::kBetweenTokens)
        times.insert(times.end(), request.gaps.begin(), request.gaps.end());
    }
  }
  return times;
}

struct Sums {
  int64_t requests = 0, errors = 0;
  double budget = 0, cached = 0;
  std::string error;  // one of them
};

Sums sums_of(const Cell& cell) {
  Sums sums;
  for (const LoadRun* run : cell.runs) {
    for (const LoadTimes& request : run->requests) {
      ++sums.requests;
      if (!request.error.empty()) {
        ++sums.errors;
        sums.error = request.error;
        continue;
      }
      sums.budget += request.budget;
      sums.cached += request.cached;
    }
  }
  sums.budget /= static_cast<double>(std::max<int64_t>(1, sums.requests - sums.errors));
  return sums;
}

std::vector<double> speeds_of(const Cell& cell) {
  std::vector<double> speeds;
  for (const LoadRun* run : cell.runs) speeds.push_back(tokens_per_second(*run));
  return speeds;
}

// CPU seconds of the server by the names of its threads.
std::map<std::string, double> threads_of(const Cell& cell) {
  std::map<std::string, double> threads;
  for (const LoadRun* run : cell.runs) {
    for (const auto& [name, seconds] : run->threads) threads[name] += seconds;
  }
  return threads;
}

// "": they were not read.
std::string threads_line(const Cell& cell) {
  double all = 0;
  std::string line;
  const auto threads = threads_of(cell);
  for (const auto& [name, seconds] : threads) all += seconds;
  for (const auto& [name, seconds] : threads)
    line += fmt::format("  {} {:.2f} s ({:.2f} %)", name, seconds, 100 * seconds / all);
  return line.empty() ? "" : fmt::format("{}, {:g}, CPU time by thread:{}\n", cell.line, cell.load, line);
}

std::string percentiles(const std::vector<double>& times) {
  return fmt::format("{:.3f} / {:.3f} / {:.3f}", percentile(times, 50), percentile(times, 95),
                     percentile(times, 99));
}

Json percentiles_json(const std::vector<double>& times) {
  return {{"p50", percentile(times, 50)}, {"p95", percentile(times, 95)}, {"p99", percentile(times, 99)}};
}

std::string with_spread(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const std::string median = fmt::format("{:.1f}", percentile(values, 50));
  return values.size() < 2 ? median : fmt::format("{} ({:.1f}–{:.1f})", median, *least, *most);
}

const char* axis_label(bool open_loop) {
  return open_loop ? "requests a second" : "clients";
}

const char* time_label(PlottedTime which) {
  switch (which) {
    case PlottedTime::kFirstToken:
      return "time to first token, s";
    case PlottedTime::kBetweenTokens:
      return "time between tokens, s";
    case PlottedTime::kTotal:
      break;
  }
  return "time of a request, s";
}

Series distribution(const Cell& cell, PlottedTime which) {
  std::vector<double> times = times_of(cell, which);
  std::sort(times.begin(), times.end());
  Series series{.name = cell.line, .x = times};
  for (size_t i = 0; i < times.size(); ++i)
    series.y.push_back(static_cast<double>(i + 1) / static_cast<double>(times.size()));
  return series;
}

Chart chart_of_loads(const std::vector<Cell>& cells, bool open_loop, PlottedTime which) {
  Chart chart{.title = "95th percentile against load"};
  chart.x.label = axis_label(open_loop);
  chart.y.label = time_label(which);
  chart.y.low = 0;
  for (const Cell& cell : cells) {
    const auto named = [&](const Series& series) { return series.name == cell.line; };
    auto at = std::find_if(chart.series.begin(), chart.series.end(), named);
    if (at == chart.series.end()) {
      const size_t index = chart.series.size();
      Series series{.name = cell.line, .marked = true, .color = index, .dash = index};
      at = chart.series.insert(chart.series.end(), series);
    }
    at->x.push_back(cell.load);
    at->y.push_back(percentile(times_of(cell, which), 95));
  }
  return chart;
}

Chart chart_of_one_load(const std::vector<Cell>& cells, bool open_loop, PlottedTime which) {
  Chart chart{.title = fmt::format("{:g} {}", cells.front().load, axis_label(open_loop))};
  chart.x.label = time_label(which);
  chart.y = {.label = "share of them that took no longer", .low = 0, .high = 1};
  for (const Cell& cell : cells) {
    chart.series.push_back(distribution(cell, which));
    chart.series.back().color = chart.series.back().dash = chart.series.size() - 1;
  }
  return chart;
}

}  // namespace

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = p / 100 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

double tokens_per_second(const LoadRun& run) {
  double first = INFINITY, last = 0;
  int64_t tokens = 0;
  for (const LoadTimes& request : run.requests) {
    first = std::min(first, request.sent);
    last = std::max(last, request.end);
    tokens += request.error.empty() ? request.tokens : 0;
  }
  return last > first ? static_cast<double>(tokens) / (last - first) : 0;
}

std::string load_table(const std::vector<LoadRun>& runs, bool open_loop) {
  Table table{.columns = {"", axis_label(open_loop), "requests", "errors", "tokens/s",
                          "first token p50/p95/p99, s", "between tokens, s", "total, s", "budget"},
              .rows = {}};
  std::string notes;
  for (const Cell& cell : cells_of(runs)) {
    const Sums sums = sums_of(cell);
    table.rows.push_back({cell.line, fmt::format("{:g}", cell.load), fmt::format("{}", sums.requests),
                          fmt::format("{}", sums.errors), with_spread(speeds_of(cell)),
                          percentiles(times_of(cell, PlottedTime::kFirstToken)),
                          percentiles(times_of(cell, PlottedTime::kBetweenTokens)),
                          percentiles(times_of(cell, PlottedTime::kTotal)),
                          fmt::format("{:.3f}", sums.budget)});
    if (sums.errors > 0) notes += fmt::format("{}, {:g}: {}\n", cell.line, cell.load, printable(sums.error));
    if (sums.cached > 0)
      notes += fmt::format("{}, {:g}: {} tokens of prompts were not computed again\n", cell.line, cell.load,
                           sums.cached);
    notes += threads_line(cell);
  }
  return to_markdown(table) + notes;
}

Json load_json(const std::vector<LoadRun>& runs, bool open_loop) {
  Json list = Json::array();
  for (const Cell& cell : cells_of(runs)) {
    const Sums sums = sums_of(cell);
    Json json;
    json["line"] = cell.line;
    json[open_loop ? "rate" : "clients"] = cell.load;
    json["requests"] = sums.requests;
    json["errors"] = sums.errors;
    json["tokens_per_second"] = speeds_of(cell);
    json["first_token_seconds"] = percentiles_json(times_of(cell, PlottedTime::kFirstToken));
    json["between_tokens_seconds"] = percentiles_json(times_of(cell, PlottedTime::kBetweenTokens));
    json["total_seconds"] = percentiles_json(times_of(cell, PlottedTime::kTotal));
    json["mean_budget"] = sums.budget;
    json["cached_tokens"] = sums.cached;
    if (const auto threads = threads_of(cell); !threads.empty()) json["thread_seconds"] = threads;
    list.push_back(std::move(json));
  }
  return {{"loads", std::move(list)}};
}

void plot_load(const std::string& path, const std::vector<LoadRun>& runs, bool open_loop, PlottedTime which) {
  const std::vector<Cell> cells = cells_of(runs);
  if (cells.empty()) return;
  const auto other = [&](const Cell& cell) { return cell.load != cells.front().load; };
  const bool several = std::any_of(cells.begin(), cells.end(), other);
  const Chart chart =
      several ? chart_of_loads(cells, open_loop, which) : chart_of_one_load(cells, open_loop, which);
  write_png(path, to_plot(chart));
}

}  // namespace fathom
