// What runs under load measured, as a table, as JSON and as a picture.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "load/load_loop.h"

namespace fathom {

struct LoadRun {
  std::string line;  // the server, and the fields that requests had
  double load = 0;   // clients, or requests a second
  int64_t round = 0;
  std::vector<LoadTimes> requests = {};
  std::map<std::string, double> threads = {};  // the server's CPU seconds by thread, where they were read
};

// The p-th percentile, between the two nearest values. 0 where there are none.
double percentile(std::vector<double> values, double p);

// Generated tokens a second, from the first request's arrival to the last reply's end.
double tokens_per_second(const LoadRun& run);

// Runs of one line and load together: percentiles over all their requests, medians over the runs.
std::string load_table(const std::vector<LoadRun>& runs, bool open_loop);
nlohmann::ordered_json load_json(const std::vector<LoadRun>& runs, bool open_loop);

// Which time the picture shows.
enum class PlottedTime { kTotal, kFirstToken, kBetweenTokens };

// The 95th percentile against the load, a line for each; of a single load the share of requests that took no
// longer.
void plot_load(const std::string& path, const std::vector<LoadRun>& runs, bool open_loop, PlottedTime which);

}  // namespace fathom
