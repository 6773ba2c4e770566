// The cache and attention over it: a GPU appends the CPU's bits, and attends as the definition says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/attention/append_kv.h"
#include "ops/attention/attention.h"
#include "ops/kernels/gpu_test.h"
#include "ops/kernels/kept_rows_test.h"
#include "quant/formats.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

using Values = std::vector<float>;
using Ints = std::vector<int32_t>;

KvView empty_cache(Device device, DType dtype, int64_t slots, int64_t sequences, int64_t capacity,
                   int64_t heads, int64_t dim) {
  KvView kv;
  kv.k = Tensor::owned(device, dtype, {slots, heads, dim});
  kv.v = Tensor::owned(device, dtype, {slots, heads, dim});
  kv.entries = Tensor::owned(device, DType::kI32, {sequences, capacity});
  kv.positions = Tensor::owned(device, DType::kI32, {sequences, capacity});
  kv.lengths = Tensor::owned(device, DType::kI32, {sequences});
  return kv;
}

std::vector<std::byte> bytes_of(Context& ctx, const Tensor& tensor) {
  const Tensor here = tensor.to(ctx, Device::kCpu);
  return {here.data<std::byte>(), here.data<std::byte>() + here.nbytes()};
}

TEST_F(Cuda, AppendedRowsAreTheCpusBitForBit) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    const Values k = normals(40 * 3 * 32), v = normals(40 * 3 * 32, 1e-3f);
    Ints positions, sequence, ids, pages, pages_above;
    for (int32_t i = 0; i < 40; ++i) {
      positions.push_back(i);
      sequence.push_back(i * i % 3);
      ids.push_back(i + i / 3);
    }
    for (int32_t i = 0; i < 3 * 20; ++i) pages.push_back(59 - i);
    for (int32_t i = 0; i < 3 * 7; ++i) pages_above.push_back(60 + i);
    const auto run = [&](Context& ctx) {
      KvView kv = empty_cache(ctx.device(), dtype, 81 * 4, 3, 80, 3, 32);
      kv.bias = Tensor::owned(ctx.device(), DType::kF32, {3, 80});
      const Tensor rows_k = floats(ctx, k, {40, 3, 32}), rows_v = floats(ctx, v, {40, 3, 32});
      KvPages table{ints(ctx, pages, {3, 20}), Tensor::owned(ctx.device(), DType::kI32, {3}), 4};
      append_kv(ctx, kv, table, rows_k, rows_v, RowSet::all(40), ints(ctx, positions, {40}),
                ints(ctx, sequence, {40}));
      // The layer above, whose other rows share the entries so far.
      KvView above = empty_cache(ctx.device(), dtype, 1, 3, 80, 3, 32);
      above.k = kv.k;
      above.v = kv.v;
      KvPages table_above{ints(ctx, pages_above, {3, 7}), Tensor::owned(ctx.device(), DType::kI32, {3}), 4};
      append_kv(ctx, above, table_above, rows_v, rows_k, some_rows(ctx, ids, 25), ints(ctx, positions, {40}),
                ints(ctx, sequence, {40}), {{}, &kv});
      append_kv(ctx, kv, table, rows_k, rows_v, some_rows(ctx, ids, 25), ints(ctx, positions, {40}),
                ints(ctx, sequence, {40}));
      std::vector<std::vector<std::byte>> out;
      for (const Tensor& t : {kv.k, kv.v, kv.entries, kv.positions, kv.lengths, kv.bias, table.taken,
                              above.entries, above.positions, above.lengths, table_above.taken})
        out.push_back(bytes_of(ctx, t));
      return out;
    };
    EXPECT_EQ(run(*gpu_), run(cpu_)) << name_of(dtype);
  }
}

TEST_F(Cuda, RowsThatNoPageHoldsAreAFault) {
  KvView kv = empty_cache(Device::kCuda, DType::kF32, 4, 1, 4, 1, 8);
  const Tensor rows = floats(*gpu_, normals(5 * 8), {5, 1, 8});
  KvPages page{ints(*gpu_, {0}, {1, 1}), Tensor::owned(Device::kCuda, DType::kI32, {1}), 4};
  append_kv(*gpu_, kv, page, rows, rows, RowSet::all(5), ints(*gpu_, {0, 1, 2, 3, 4}, {5}),
            ints(*gpu_, {0, 0, 0, 0, 0}, {5}));
  EXPECT_THROW(host_values<int32_t>(*gpu_, kv.lengths), UserError);
  EXPECT_EQ(host_values<int32_t>(*gpu_, kv.lengths), Ints{4});
}

struct Scene {
  int64_t heads = 6, kv_heads = 2, dim = 64;
  Ints lengths{300};
  Ints sequence = {}, position = {};  // of each query
  DType type = DType::kF32;
  AttentionParams params{.scale = 0.15f};
  bool bias = false;

  Scene rows(int32_t first, int32_t last) const {
    Scene out = *this;
    for (int32_t i = first; i < last; ++i) {
      out.sequence.push_back(static_cast<int32_t>(i % lengths.size()));
      out.position.push_back(i);
    }
    return out;
  }
};

class CudaAttention : public Cuda {
 protected:
  // A cache on the CPU whose slots are in reverse order.
  KvView cache_of(const Scene& scene) {
    const auto sequences = static_cast<int64_t>(scene.lengths.size());
    const int32_t capacity = 40 + *std::max_element(scene.lengths.begin(), scene.lengths.end());
    const int64_t slots = sequences * capacity;
    KvView kv = empty_cache(Device::kCpu, scene.type, slots, sequences, capacity, scene.kv_heads, scene.dim);
    for (Tensor* pool : {&kv.k, &kv.v}) {
      encode_row(scene.type, normals(pool->numel()).data(), pool->raw(), pool->numel());
    }
    if (scene.bias) kv.bias = Tensor::owned(Device::kCpu, DType::kF32, {sequences, capacity});
    for (int64_t s = 0; s < sequences; ++s) {
      kv.lengths.data<int32_t>()[s] = scene.lengths[static_cast<size_t>(s)];
      for (int64_t i = 0; i < capacity; ++i) {
        kv.entries.data<int32_t>()[s * capacity + i] = static_cast<int32_t>(slots - 1 - s * capacity - i);
        kv.positions.data<int32_t>()[s * capacity + i] = static_cast<int32_t>(i);
        if (scene.bias) kv.bias.data<float>()[s * capacity + i] = i % 5 == 0 ? -INFINITY : rng_.normal();
      }
    }
    return kv;
  }

  static KvView moved(Context& ctx, const KvView& kv) {
    const auto there = [&](const Tensor& t) { return t.defined() ? t.to(ctx, ctx.device()) : t; };
    return {there(kv.k),         there(kv.v),       there(kv.entries),
            there(kv.positions), there(kv.lengths), there(kv.bias)};
  }

  Values attend(const Scene& scene, const KvView& kv, const Values& q, int64_t first, int64_t rows) {
    const ArenaScope scope(*gpu_);
    const auto batch = static_cast<int64_t>(scene.sequence.size());
    const Tensor queries = floats(*gpu_, q, {batch, scene.heads, scene.dim}).rows(first, rows);
    const Tensor positions = ints(*gpu_, scene.position, {batch}).rows(first, rows);
    const Tensor sequence = ints(*gpu_, scene.sequence, {batch}).rows(first, rows);
    return host_values(*gpu_,
                       attention(*gpu_, queries, kv, RowSet::all(rows), positions, sequence, scene.params));
  }

  // The definition in f64, for one row and head. The CPU's kernels are no reference: they round with the
  // cache's type.
  static std::vector<double> expected(const Scene& scene, const KvView& kv, const Values& keys,
                                      const Values& values, const float* query, size_t row, int64_t head) {
    const int64_t s = scene.sequence[row], dim = scene.dim;
    std::vector<double> sums(static_cast<size_t>(dim));
    double total = 0;
    for (int64_t i = 0; i < scene.lengths[static_cast<size_t>(s)]; ++i) {
      const int64_t distance = scene.position[row] - i, at = s * kv.entries.dim(1) + i;
      if (distance < 0 || (scene.params.window > 0 && distance >= scene.params.window)) continue;
      const int64_t kv_head = head / (scene.heads / scene.kv_heads);
      const auto offset =
          static_cast<size_t>((kv.entries.data<int32_t>()[at] * scene.kv_heads + kv_head) * dim);
      double logit = 0;
      for (int64_t d = 0; d < dim; ++d) logit += double{query[d]} * keys[offset + static_cast<size_t>(d)];
      logit *= scene.params.scale;
      if (scene.params.soft_cap > 0) logit = scene.params.soft_cap * std::tanh(logit / scene.params.soft_cap);
      if (scene.bias) logit += kv.bias.data<float>()[at];
      const double p = std::exp(logit);  // logits are small here
      total += p;
      for (size_t d = 0; d < sums.size(); ++d) sums[d] += p * values[offset + d];
    }
    for (double& sum : sums) sum = total > 0 ? sum / total : 0;
    return sums;
  }

  static Values decoded(const Tensor& pool) {
    Values values(static_cast<size_t>(pool.numel()));
    decode_row(pool.dtype(), pool.raw(), values.data(), pool.numel());
    return values;
  }

  void check(const Scene& scene) {
    const auto rows = static_cast<int64_t>(scene.sequence.size()), width = scene.heads * scene.dim;
    const KvView kv = cache_of(scene), there = moved(*gpu_, kv);
    const Values q = normals(rows * width), got = attend(scene, there, q, 0, rows);
    const Values keys = decoded(kv.k), values = decoded(kv.v);
    for (int64_t r = 0; r < rows; r += 1 + rows / 60) {
      for (int64_t head = 0; head < scene.heads; ++head) {
        const int64_t at = r * width + head * scene.dim;
        const std::vector<double> want =
            expected(scene, kv, keys, values, q.data() + at, static_cast<size_t>(r), head);
        for (int64_t d = 0; d < scene.dim; ++d) {
          ASSERT_NEAR(got[static_cast<size_t>(at + d)], want[static_cast<size_t>(d)], 5e-6)
              << r << ", " << head;
        }
      }
    }
    for (int64_t r = 0; r < rows; r += 1 + rows / 20) {
      const std::span<const float> row(got.data() + r * width, static_cast<size_t>(width));
      ASSERT_TRUE(same_bits(attend(scene, there, q, r, 1), row)) << "row " << r << " alone";
    }
  }
};

TEST_F(CudaAttention, ManyRowsAndEachAlone) {
  check(Scene{}.rows(0, 300));
  check(Scene{.lengths = {700}}.rows(0, 700));  // enough rows for a warp to take all blocks
  check(Scene{.heads = 9, .kv_heads = 3, .lengths = {1900}}.rows(1897, 1900));
  check(Scene{.lengths = {0, 1, 64, 65, 200}}.rows(0, 250));
}

TEST_F(CudaAttention, EveryTypeAndHeadDim) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    for (const int64_t dim : {32, 64, 96, 128, 256}) {
      check(Scene{.dim = dim, .lengths = {130}, .type = type}.rows(60, 130));
    }
  }
  for (const int64_t dim : {8, 24, 40, 80}) check(Scene{.dim = dim, .lengths = {70}}.rows(0, 70));
}

TEST_F(CudaAttention, WindowsCapsAndBiases) {
  for (const int32_t window : {1, 63, 64, 65, 200}) {
    check(Scene{.params = {.scale = 0.2f, .window = window}}.rows(0, 300));
    check(Scene{.lengths = {700}, .params = {.scale = 0.2f, .soft_cap = 5.0f, .window = window}, .bias = true}
              .rows(0, 700));
  }
  check(Scene{.params = {.scale = 0.2f, .soft_cap = 5.0f}, .bias = true}.rows(0, 300));
}

}  // namespace
}  // namespace fathom
