// Attention in SmolLM2-135M's shape (9 heads, 3 KV heads, 64 dimensions): prefill, and decode at a context,
// by cache type and threads. 30 views in turn, as 30 layers have them, so that decode reads the cache from
// memory and not from a core's own cache.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "base/rng.h"
#include "ops/attention/attention.h"
#include "quant/formats.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int64_t kHeads = 9, kKvHeads = 3, kDim = 64, kLayers = 30;

KvView make_view(DType dtype, int32_t length, uint32_t layer) {
  KvView kv;
  std::vector<float> values(static_cast<size_t>(length * kKvHeads * kDim));
  Rng rng(1, {layer, 0, 0});
  for (Tensor* pool : {&kv.k, &kv.v}) {
    *pool = Tensor::owned(Device::kCpu, dtype, {length, kKvHeads, kDim});
    for (float& value : values) value = rng.uniform() - 0.5f;
    encode_row(dtype, values.data(), pool->raw(), pool->numel());
  }
  kv.entries = Tensor::owned(Device::kCpu, DType::kI32, {1, length});
  kv.positions = Tensor::owned(Device::kCpu, DType::kI32, {1, length});
  kv.lengths = Tensor::owned(Device::kCpu, DType::kI32, {1});
  kv.lengths.data<int32_t>()[0] = length;
  for (int32_t i = 0; i < length; ++i) kv.entries.data<int32_t>()[i] = kv.positions.data<int32_t>()[i] = i;
  return kv;
}

// The last `rows` of `length` positions attend, layer after layer.
void attend(benchmark::State& state, DType dtype, int32_t rows, int32_t length) {
  Context ctx({.threads = static_cast<int>(state.range(0))});
  std::vector<KvView> layers;
  for (uint32_t i = 0; i < kLayers; ++i) layers.push_back(make_view(dtype, length, i));
  Tensor q = Tensor::owned(Device::kCpu, DType::kF32, {rows, kHeads, kDim});
  Tensor positions = Tensor::owned(Device::kCpu, DType::kI32, {rows});
  const Tensor sequence = Tensor::owned(Device::kCpu, DType::kI32, {rows});
  Rng rng(2);
  for (int64_t i = 0; i < q.numel(); ++i) q.data<float>()[i] = rng.normal();
  for (int32_t i = 0; i < rows; ++i) positions.data<int32_t>()[i] = length - rows + i;
  for (auto _ : state) {
    for (const KvView& kv : layers) {
      const ArenaScope scope(ctx);
      benchmark::DoNotOptimize(
          attention(ctx, q, kv, RowSet::all(rows), positions, sequence, {.scale = 0.125f}).data<float>());
    }
  }
  const Work work = ctx.counters().total();
  const auto rate = benchmark::Counter::kIsRate;
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(work.madds), rate);
  state.counters["GB/s"] = benchmark::Counter(1e-9 * static_cast<double>(work.cache_bytes), rate);
}

#define FATHOM_ATTENTION_BENCH(name, dtype, rows, length) \
  void name(benchmark::State& state) {                    \
    attend(state, dtype, rows, length);                   \
  }                                                       \
  BENCHMARK(name)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond)->MinTime(0.3)

FATHOM_ATTENTION_BENCH(prefill_512_f32, DType::kF32, 512, 512);
FATHOM_ATTENTION_BENCH(prefill_512_f16, DType::kF16, 512, 512);
FATHOM_ATTENTION_BENCH(decode_at_128_f16, DType::kF16, 1, 128);
FATHOM_ATTENTION_BENCH(decode_at_1900_f32, DType::kF32, 1, 1900);
FATHOM_ATTENTION_BENCH(decode_at_1900_f16, DType::kF16, 1, 1900);
FATHOM_ATTENTION_BENCH(decode_at_1900_bf16, DType::kBF16, 1, 1900);
FATHOM_ATTENTION_BENCH(decode_at_1900_q8_0, DType::kQ8_0, 1, 1900);
FATHOM_ATTENTION_BENCH(verify_8_at_1900_f16, DType::kF16, 8, 1900);

}  // namespace
}  // namespace fathom
