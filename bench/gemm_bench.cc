// gemm(): floating-point operations per second, f32 and bf16, and one thread of OpenBLAS beside it where the
// build found it. Arguments: precision, layout, threads, m, n, k.
#include <benchmark/benchmark.h>

#if defined(FATHOM_HAS_OPENBLAS)
#include <cblas.h>
#endif

#include <vector>

#include "base/rng.h"
#include "ops/linear/gemm.h"
#include "quant/half.h"

namespace fathom {
namespace {

std::vector<float> random_values(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = rng.normal();
  return values;
}

constexpr const char* kLayouts[] = {"NN", "NT", "TN"};

void run_gemm(benchmark::State& state) {
  const auto precision = static_cast<Precision>(state.range(0));
  const auto layout = static_cast<GemmLayout>(state.range(1));
  const int64_t m = state.range(3), n = state.range(4), k = state.range(5);
  Context ctx({.threads = static_cast<int>(state.range(2))});
  const std::vector<float> a = random_values(m * k, 1), b = random_values(n * k, 2);
  std::vector<float> c(static_cast<size_t>(m * n));
  // As linear() has them: the second factor is weights or kept activations, in bf16 where that is their type.
  const bool bf16 = precision == Precision::kBf16;
  std::vector<uint16_t> halves(b.size());
  for (size_t i = 0; i < b.size(); ++i) halves[i] = bf16_of_f32(b[i]);
  const GemmArgs args{.layout = layout,
                      .precision = precision,
                      .m = m,
                      .n = n,
                      .k = k,
                      .a = {a.data(), layout == GemmLayout::kTN ? m : k, false},
                      .b = {bf16 ? static_cast<const void*>(halves.data()) : b.data(),
                            layout == GemmLayout::kNT ? k : n, bf16},
                      .c = c.data(),
                      .c_stride = n};
  const uint64_t before = ctx.counters().total().madds;
  for (auto _ : state) {
    gemm(ctx.cpu(), ctx, args);
    benchmark::DoNotOptimize(c.data());
  }
  state.counters["FLOP/s"] = benchmark::Counter(
      2.0 * static_cast<double>(ctx.counters().total().madds - before), benchmark::Counter::kIsRate);
  state.SetLabel(std::string(bf16 ? "bf16 " : "f32 ") + kLayouts[state.range(1)]);
}

#if defined(FATHOM_HAS_OPENBLAS)
void run_openblas(benchmark::State& state) {
  const auto layout = static_cast<GemmLayout>(state.range(1));
  const int64_t m = state.range(3), n = state.range(4), k = state.range(5);
  const std::vector<float> a = random_values(m * k, 1), b = random_values(n * k, 2);
  std::vector<float> c(static_cast<size_t>(m * n));
  const auto size = [](int64_t i) { return static_cast<blasint>(i); };
  openblas_set_num_threads(1);
  for (auto _ : state) {
    cblas_sgemm(CblasRowMajor, layout == GemmLayout::kTN ? CblasTrans : CblasNoTrans,
                layout == GemmLayout::kNT ? CblasTrans : CblasNoTrans, size(m), size(n), size(k), 1.0f,
                a.data(), size(layout == GemmLayout::kTN ? m : k), b.data(),
                size(layout == GemmLayout::kNT ? k : n), 0.0f, c.data(), size(n));
    benchmark::DoNotOptimize(c.data());
  }
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * static_cast<double>(m * n * k) * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
  state.SetLabel(std::string("OpenBLAS f32 ") + kLayouts[state.range(1)]);
}
#endif

// The products of a step: rows by a layer's widths (SmolLM2's, and 12 × 256), the head, and the gradients.
void add_shapes(benchmark::internal::Benchmark* bench, Precision precision, int64_t threads) {
  constexpr int64_t kShapes[][3] = {{512, 1536, 576}, {512, 576, 1536},  {512, 576, 576},
                                    {512, 192, 576},  {2048, 1024, 256}, {2048, 256, 1024},
                                    {2048, 256, 256}, {128, 1536, 576},  {512, 49152, 576}};
  const auto add = [&](GemmLayout layout, int64_t m, int64_t n, int64_t k) {
    bench->Args({static_cast<int64_t>(precision), static_cast<int64_t>(layout), threads, m, n, k});
  };
  for (const auto& [rows, out, in] : kShapes) {
    add(GemmLayout::kNT, rows, out, in);  // y = x Wᵀ
    add(GemmLayout::kNN, rows, in, out);  // dx = dy W
    add(GemmLayout::kTN, out, in, rows);  // dW = dyᵀ x
  }
}

void ours(benchmark::internal::Benchmark* bench) {
  for (Precision precision : {Precision::kF32, Precision::kBf16}) {
    for (int threads : {1, default_threads()}) add_shapes(bench, precision, threads);
  }
}
BENCHMARK(run_gemm)->Name("gemm")->Apply(ours)->UseRealTime()->MinTime(0.1);

#if defined(FATHOM_HAS_OPENBLAS)
void theirs(benchmark::internal::Benchmark* bench) {
  add_shapes(bench, Precision::kF32, 1);
}
BENCHMARK(run_openblas)->Name("openblas")->Apply(theirs)->UseRealTime()->MinTime(0.1);
#endif

}  // namespace
}  // namespace fathom
