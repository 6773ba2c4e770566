// linear(): bytes of weights read per second at one row (weights larger than the caches), and multiply-adds
// per second at many. Arguments: dtype, rows, out, in.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "ops/linear/linear.h"
#include "quant/formats.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int64_t kColdBytes = int64_t{192} << 20;

// As many copies of a weight as are needed to find none of them in a cache when its turn comes.
std::vector<Tensor> make_weights(DType dtype, int64_t out, int64_t in, bool cold) {
  Rng rng(1);
  std::vector<float> row(static_cast<size_t>(in));
  for (float& value : row) value = rng.normal() * 0.05f;
  std::vector<uint8_t> encoded(static_cast<size_t>(row_bytes(dtype, in)));
  if (can_encode(dtype)) encode_row(dtype, row.data(), encoded.data(), in);
  const int64_t bytes = out * static_cast<int64_t>(encoded.size());
  std::vector<Tensor> weights;
  for (int64_t i = 0; i < (cold ? std::max<int64_t>(1, kColdBytes / bytes) : 1); ++i) {
    Tensor weight = Tensor::owned(Device::kCpu, dtype, {out, in});
    for (int64_t r = 0; r < out; ++r) {
      std::copy(encoded.begin(), encoded.end(),
                weight.data<uint8_t>() + r * static_cast<int64_t>(encoded.size()));
    }
    weights.push_back(std::move(weight));
  }
  return weights;
}

void run_linear(benchmark::State& state) {
  const auto dtype = static_cast<DType>(state.range(0));
  const int64_t rows = state.range(1), out = state.range(2), in = state.range(3);
  Context ctx;
  const std::vector<Tensor> weights = make_weights(dtype, out, in, rows <= 8);
  Rng rng(2);
  std::vector<float> values(static_cast<size_t>(rows * in));
  for (float& value : values) value = rng.normal();
  Tensor x = Tensor::owned(Device::kCpu, DType::kF32, {rows, in});
  std::copy(values.begin(), values.end(), x.data<float>());
  const Work before = ctx.counters().total();
  size_t turn = 0;
  for (auto _ : state) {
    const ArenaScope scope(ctx);
    benchmark::DoNotOptimize(linear(ctx, x, weights[turn++ % weights.size()]).raw());
  }
  const Work work = ctx.counters().total() - before;
  using benchmark::Counter;
  state.counters["bytes/s"] = Counter(static_cast<double>(work.weight_bytes), Counter::kIsRate);
  state.counters["op/s"] = Counter(2.0 * static_cast<double>(work.madds), Counter::kIsRate);
  state.SetLabel(name_of(dtype));
}

void all_shapes(benchmark::internal::Benchmark* bench) {
  constexpr int64_t kShapes[][2] = {{576, 576},   {192, 576},   {1536, 576},  {576, 1536},
                                    {49152, 576}, {2048, 2048}, {8192, 2048}, {2048, 8192}};
  for (DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ4_K,
                      DType::kQ5_K, DType::kQ6_K, DType::kBF16, DType::kF16, DType::kF32}) {
    for (int64_t rows : {1, 2, 4, 8, 64, 512}) {
      for (const auto& [out, in] : kShapes) {
        if (in % traits(dtype).block == 0 && (rows < 64 || out < 10000)) {
          bench->Args({static_cast<int64_t>(dtype), rows, out, in});
        }
      }
    }
  }
}

BENCHMARK(run_linear)->Name("linear")->Apply(all_shapes)->UseRealTime()->MinTime(0.1);

}  // namespace
}  // namespace fathom

BENCHMARK_MAIN();
