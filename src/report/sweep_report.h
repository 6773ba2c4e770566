// A sweep as files: results.json, tables, curves, and a page that reads on its own.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "eval/sweep.h"
#include "report/figures.h"

namespace fathom {

struct SweepInfo {
  std::string model;
  int64_t seeds = 0;      // of random skipping
  std::string shallower;  // how the shallower models came about, in words; "": there are none
  std::vector<std::pair<std::string, std::string>> settings;  // as the page and results.json show them
};

// Documented in docs/evaluation.md.
std::string sweep_json(const SweepInfo& info, const std::vector<SweepPoint>& points);

// Writes results.json first and index.html last.
void write_sweep(const SweepInfo& info, const std::vector<SweepPoint>& points, Figures& figures);

}  // namespace fathom
