#pragma once

#include <cstdint>
#include <string>

namespace fathom {

struct TrainBenchOptions {
  std::string shape = "small", peer, precision, device = "cpu";
  int64_t threads = 0, repeats = 5;
  bool json = false;
};

int run_bench_train(const TrainBenchOptions& options);

}  // namespace fathom
