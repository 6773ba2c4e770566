// What it costs to start the threads together and wait for all: the price of every op that is split.
#include <benchmark/benchmark.h>

#include "base/thread_pool.h"

namespace {

void BM_Run(benchmark::State& state) {
  fathom::ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) pool.run([](int thread) { benchmark::DoNotOptimize(thread); });
}
BENCHMARK(BM_Run)->Arg(1)->Arg(2)->Arg(4)->Arg(8)->Arg(16)->UseRealTime()->Unit(benchmark::kMicrosecond);

void BM_Barrier(benchmark::State& state) {
  fathom::ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    pool.run([&](int) {
      for (int i = 0; i < 100; ++i) pool.barrier();
    });
  }
  state.SetItemsProcessed(state.iterations() * 100);
}
BENCHMARK(BM_Barrier)->Arg(2)->Arg(4)->Arg(8)->Arg(16)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
