// fathom bench --table: every figure that we promise, in one run, each with its bar.
#pragma once

#include <string>

#include "cli/bench_peer.h"
#include "cli/options.h"

namespace fathom {

struct TableOptions {
  ModelOptions model;
  std::string parts;  // "all", or some of table_parts()
  const Peer* peer;   // null: none
  int64_t prompt, tokens, repeats, chunk;
};

std::string table_parts();  // their names, with commas between

int run_bench_table(const TableOptions& options);

}  // namespace fathom
