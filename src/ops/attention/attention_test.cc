#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/rng.h"
#include "ops/kernels/kept_rows_test.h"
#include "quant/formats.h"
#include "quant/half.h"

namespace fathom {
namespace {

struct Given {
  int64_t heads = 6, kv_heads = 2, dim = 32;
  std::vector<int32_t> lengths{100};         // entries of each sequence
  std::vector<int32_t> query_sequence = {};  // of each batch row
  std::vector<int32_t> query_position = {};
  DType key_type = DType::kF32, value_type = DType::kF32;
  AttentionParams params{.scale = 0.18f};
  int32_t position_gap = 1;  // entries' positions are up to this far apart
  bool bias = false;
  float spread = 1.0f;  // of the queries
};

// A cache with its entries in scattered slots, and queries.
struct Scene {
  explicit Scene(const Given& setup) : setup_(setup), rng_(99) {
    const auto sequences = static_cast<int64_t>(setup.lengths.size());
    const int64_t capacity = *std::max_element(setup.lengths.begin(), setup.lengths.end()) + 3;
    const int64_t slots = std::accumulate(setup.lengths.begin(), setup.lengths.end(), int64_t{5});
    kv.k = pool(setup.key_type, slots);
    kv.v = pool(setup.value_type, slots);
    kv.entries = Tensor::owned(Device::kCpu, DType::kI32, {sequences, capacity});
    kv.positions = Tensor::owned(Device::kCpu, DType::kI32, {sequences, capacity});
    kv.lengths = Tensor::owned(Device::kCpu, DType::kI32, {sequences});
    if (setup.bias) kv.bias = Tensor::owned(Device::kCpu, DType::kF32, {sequences, capacity});
    std::vector<int32_t> order(static_cast<size_t>(slots));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size() - 1; i > 0; --i)
      std::swap(order[i], order[rng_.below(static_cast<uint32_t>(i) + 1)]);
    for (int64_t s = 0; s < sequences; ++s) list_sequence(s, capacity, order);
    const auto rows = static_cast<int64_t>(setup.query_sequence.size());
    q = Tensor::owned(Device::kCpu, DType::kF32, {rows, setup.heads, setup.dim});
    for (int64_t i = 0; i < q.numel(); ++i) q.data<float>()[i] = rng_.normal() * setup.spread;
  }

  Tensor pool(DType dtype, int64_t slots) {
    Tensor out = Tensor::owned(Device::kCpu, dtype, {slots, setup_.kv_heads, setup_.dim});
    std::vector<float> values(static_cast<size_t>(out.numel()));
    for (float& value : values) value = rng_.normal();
    encode_row(dtype, values.data(), out.raw(), out.numel());
    return out;
  }

  void list_sequence(int64_t s, int64_t capacity, std::vector<int32_t>& order) {
    int32_t position = static_cast<int32_t>(rng_.below(static_cast<uint32_t>(setup_.position_gap)));
    kv.lengths.data<int32_t>()[s] = setup_.lengths[static_cast<size_t>(s)];
    for (int64_t i = 0; i < setup_.lengths[static_cast<size_t>(s)]; ++i) {
      kv.entries.data<int32_t>()[s * capacity + i] = order.back();
      order.pop_back();
      kv.positions.data<int32_t>()[s * capacity + i] = position;
      position += 1 + static_cast<int32_t>(rng_.below(static_cast<uint32_t>(setup_.position_gap)));
      if (kv.bias.defined())
        kv.bias.data<float>()[s * capacity + i] = rng_.below(4) == 0 ? -INFINITY : rng_.normal();
    }
  }

  // The rows `ids` of the batch alone, in that order.
  std::vector<float> run(Context& ctx, std::vector<int32_t> ids) const {
    std::vector<int32_t> positions, sequence;
    const int64_t width = setup_.heads * setup_.dim;
    std::vector<float> queries;
    for (const int32_t id : ids) {
      positions.push_back(setup_.query_position[static_cast<size_t>(id)]);
      sequence.push_back(setup_.query_sequence[static_cast<size_t>(id)]);
      queries.insert(queries.end(), q.data<float>() + id * width, q.data<float>() + (id + 1) * width);
    }
    const auto rows = static_cast<int64_t>(ids.size());
    const Tensor out =
        attention(ctx, Tensor::from(ctx, queries, {rows, setup_.heads, setup_.dim}), kv, RowSet::all(rows),
                  Tensor::from(ctx, positions, {rows}), Tensor::from(ctx, sequence, {rows}), setup_.params);
    return {out.data<float>(), out.data<float>() + out.numel()};
  }

  std::vector<int32_t> all_rows() const {
    std::vector<int32_t> ids(setup_.query_sequence.size());
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  }

  std::vector<double> reference() const;

  Given setup_;
  Rng rng_;
  KvView kv;
  Tensor q;
};

std::vector<float> decoded(const Tensor& pool) {
  std::vector<float> values(static_cast<size_t>(pool.numel()));
  decode_row(pool.dtype(), pool.raw(), values.data(), pool.numel());
  return values;
}

// The definition, over all entries of the row's sequence with a mask.
std::vector<double> Scene::reference() const {
  const std::vector<float> keys = decoded(kv.k), values = decoded(kv.v);
  const auto rounded = [&](float x) { return kv.k.dtype() == DType::kF16 ? f32_of_f16(f16_of_f32(x)) : x; };
  const int64_t capacity = kv.entries.dim(1), dim = setup_.dim, group = setup_.heads / setup_.kv_heads;
  std::vector<double> out;
  for (size_t row = 0; row < setup_.query_sequence.size(); ++row) {
    const int64_t s = setup_.query_sequence[row];
    for (int64_t head = 0; head < setup_.heads; ++head) {
      const float* query = q.data<float>() + (static_cast<int64_t>(row) * setup_.heads + head) * dim;
      double total = 0;
      std::vector<double> sums(static_cast<size_t>(dim));
      std::vector<std::pair<double, const float*>> seen;
      for (int64_t i = 0; i < kv.lengths.data<int32_t>()[s]; ++i) {
        const int64_t at = s * capacity + i,
                      distance = setup_.query_position[row] - kv.positions.data<int32_t>()[at];
        if (distance < 0 || (setup_.params.window > 0 && distance >= setup_.params.window)) continue;
        const int64_t offset = (kv.entries.data<int32_t>()[at] * setup_.kv_heads + head / group) * dim;
        double logit = 0;
        for (int64_t d = 0; d < dim; ++d)
          logit += double{rounded(query[d])} * keys[static_cast<size_t>(offset + d)];
        logit *= setup_.params.scale;
        if (setup_.params.soft_cap > 0)
          logit = setup_.params.soft_cap * std::tanh(logit / setup_.params.soft_cap);
        if (kv.bias.defined()) logit += kv.bias.data<float>()[at];
        seen.emplace_back(logit, values.data() + offset);
      }
      double largest = -INFINITY;
      for (const auto& [logit, value] : seen) largest = std::max(largest, logit);
      for (const auto& [logit, value] : seen) {
        if (largest == -INFINITY) break;
        const double p = std::exp(logit - largest);
        total += p;
        for (int64_t d = 0; d < dim; ++d) sums[static_cast<size_t>(d)] += p * value[d];
      }
      for (const double sum : sums) out.push_back(total > 0 ? sum / total : 0.0);
    }
  }
  return out;
}

std::unique_ptr<Context> context(int threads, Isa isa = supported_isas().front()) {
  setenv("FATHOM_ISA", name_of(isa), 1);
  auto ctx = std::make_unique<Context>(ContextOptions{.threads = threads});
  unsetenv("FATHOM_ISA");
  return ctx;
}

// Against the definition; every instruction set and thread count, each row alone and the batch in halves: the
// same bits.
void check_scene(const Given& setup, double tolerance = 2e-6) {
  const Scene scene(setup);
  const std::vector<double> want = scene.reference();
  const auto one = context(1, Isa::kScalar);
  const std::vector<float> got = scene.run(*one, scene.all_rows());
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << "element " << i;
  const size_t width = static_cast<size_t>(setup.heads * setup.dim);
  for (const Isa isa : supported_isas()) {
    for (const int threads : {1, 2, 3}) {
      const auto ctx = context(threads, isa);
      ASSERT_TRUE(same_bits(scene.run(*ctx, scene.all_rows()), got))
          << name_of(isa) << ", " << threads << " threads";
      if (isa == Isa::kScalar && threads != 2) continue;
      const int32_t rows = static_cast<int32_t>(setup.query_sequence.size());
      for (int32_t row = 0; row < rows; row += 1 + rows / 40) {
        const std::span<const float> there(got.data() + static_cast<size_t>(row) * width, width);
        ASSERT_TRUE(same_bits(scene.run(*ctx, {row}), there))
            << name_of(isa) << ", " << threads << " threads, row " << row;
      }
      std::vector<int32_t> chunk;
      for (int32_t row = 1; row < rows; row += 2) chunk.push_back(row);
      const std::vector<float> half = scene.run(*ctx, chunk);
      for (size_t i = 0; i < chunk.size(); ++i) {
        const std::span<const float> there(got.data() + static_cast<size_t>(chunk[i]) * width, width);
        ASSERT_TRUE(same_bits({half.data() + i * width, width}, there))
            << name_of(isa) << ", every other row, " << chunk[i];
      }
    }
  }
}

// Rows [first, last) of one sequence.
Given prefill(Given setup, int32_t first, int32_t last) {
  setup.lengths = {last};
  for (int32_t i = first; i < last; ++i) {
    setup.query_sequence.push_back(0);
    setup.query_position.push_back(i);
  }
  return setup;
}

TEST(Attention, PrefillOfOneSequence) {
  check_scene(prefill({}, 0, 1));
  check_scene(prefill({}, 0, 7));
  check_scene(prefill({}, 0, 150));
  check_scene(prefill({}, 60, 70));    // a chunk over a block's edge
  check_scene(prefill({}, 128, 129));  // one row, whole blocks and one key
}

TEST(Attention, DecodeAtALongContext) {
  check_scene(prefill({.heads = 9, .kv_heads = 3, .dim = 64}, 1899, 1900));
  check_scene(prefill({.heads = 9, .kv_heads = 3, .dim = 64}, 1890, 1900));  // verifying a draft
  // More blocks than are taken together.
  check_scene(prefill({.heads = 3, .kv_heads = 3, .dim = 8, .bias = true}, 3299, 3300));
}

TEST(Attention, EveryGrouping) {
  for (const auto& [heads, kv_heads] :
       {std::pair{1, 1}, {5, 5}, {2, 1}, {4, 1}, {8, 2}, {5, 1}, {14, 2}, {8, 1}}) {
    check_scene(prefill({.heads = heads, .kv_heads = kv_heads, .dim = 16}, 0, 70));
    check_scene(prefill({.heads = heads, .kv_heads = kv_heads, .dim = 16}, 200, 201));
  }
}

TEST(Attention, EveryHeadDim) {
  for (const int64_t dim : {8, 16, 24, 40, 64, 80, 96, 128, 256}) {
    check_scene(prefill({.heads = 3, .kv_heads = 1, .dim = dim}, 0, 67), 5e-6);
  }
}

TEST(Attention, EveryPoolType) {
  for (const DType key_type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    for (const DType value_type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
      Given setup{.heads = 3, .kv_heads = 1, .dim = 64, .key_type = key_type, .value_type = value_type};
      const double tolerance =
          value_type == DType::kF16 ? 5e-4 : 2e-6;  // f16 values: probabilities are rounded too
      check_scene(prefill(setup, 0, 66), tolerance);
      setup.kv_heads = 3;
      check_scene(prefill(setup, 300, 301), tolerance);
    }
  }
}

TEST(Attention, SlidingWindows) {
  for (const int32_t window : {1, 2, 63, 64, 65, 500}) {
    check_scene(prefill({.params = {.scale = 0.2f, .window = window}}, 0, 140));
    // One head a group: rows with different windows are computed together.
    check_scene(prefill({.heads = 2, .kv_heads = 2, .params = {.scale = 0.2f, .window = window}}, 0, 140));
    check_scene(prefill({.params = {.scale = 0.2f, .window = window}, .bias = true}, 333, 334));
  }
}

TEST(Attention, SoftCapAndBias) {
  check_scene(prefill({.params = {.scale = 0.2f, .soft_cap = 5.0f}, .spread = 8.0f}, 0, 70), 1e-5);
  check_scene(prefill({.bias = true}, 0, 70));
  check_scene(prefill({.params = {.scale = 0.2f, .soft_cap = 50.0f, .window = 40}, .bias = true}, 50, 130));
}

TEST(Attention, SharpAndFlatSoftmax) {
  check_scene(prefill({.spread = 100.0f}, 0, 140),
              1e-4);  // one key takes all: rounding of large logits shows
  check_scene(prefill({.spread = 0.0f}, 0, 140));
}

// Several sequences interleaved, of differing lengths, positions with gaps, rows of a sequence not in order
// of position, and queries between entries, before all of them and after.
TEST(Attention, ManySequencesInOneBatch) {
  Given setup{.lengths = {200, 1, 0, 65, 64}, .position_gap = 3, .bias = true};
  Rng rng(3);
  for (int i = 0; i < 90; ++i) {
    setup.query_sequence.push_back(static_cast<int32_t>(rng.below(5)));
    setup.query_position.push_back(static_cast<int32_t>(rng.below(450)));
  }
  setup.query_position[3] = 0;
  check_scene(setup);
  setup.params.window = 100;
  check_scene(setup);
}

TEST(Attention, ManyDecodesTogether) {
  Given setup{.heads = 4,
              .kv_heads = 4,
              .dim = 64,
              .lengths = {},
              .key_type = DType::kF16,
              .value_type = DType::kF16};
  for (int32_t s = 0; s < 12; ++s) {
    setup.lengths.push_back(40 * s + 1);
    setup.query_sequence.push_back(11 - s);
    setup.query_position.push_back(40 * (11 - s));
  }
  check_scene(setup, 5e-4);
}

// A bias of −inf hides a key as if it were not there.
TEST(Attention, HiddenKeysAreNotThere) {
  Given setup = prefill({}, 90, 91);
  Scene scene(setup);
  scene.kv.bias = Tensor::owned(Device::kCpu, DType::kF32, {1, scene.kv.entries.dim(1)});
  const auto ctx = context(2);
  for (int64_t i = 0; i < 91; ++i) scene.kv.bias.data<float>()[i] = i == 70 ? 0.0f : -INFINITY;
  const std::vector<float> got = scene.run(*ctx, {0});
  const int64_t slot = scene.kv.entries.data<int32_t>()[70];
  for (int64_t head = 0; head < setup.heads; ++head) {
    const float* value = scene.kv.v.data<float>() + (slot * setup.kv_heads + head / 3) * setup.dim;
    for (int64_t d = 0; d < setup.dim; ++d)
      EXPECT_EQ(got[static_cast<size_t>(head * setup.dim + d)], value[d]);
  }
  scene.kv.bias.data<float>()[70] = -INFINITY;
  for (const float value : scene.run(*ctx, {0})) EXPECT_EQ(value, 0.0f);
}

// Not even an infinite value of a later key may reach a row: 0 · ∞ is NaN.
TEST(Attention, LaterKeysHaveNoInfluence) {
  const Given setup = prefill({.heads = 2, .kv_heads = 2}, 0, 20);
  Scene scene(setup);
  const auto ctx = context(2);
  const std::vector<float> before = scene.run(*ctx, scene.all_rows());
  const int64_t slot = scene.kv.entries.data<int32_t>()[15], width = setup.heads * setup.dim;
  std::fill_n(scene.kv.v.data<float>() + slot * width, width, INFINITY);
  std::fill_n(scene.kv.k.data<float>() + slot * width, width, NAN);
  const std::vector<float> after = scene.run(*ctx, scene.all_rows());
  EXPECT_TRUE(same_bits({after.data(), static_cast<size_t>(15 * width)},
                        {before.data(), static_cast<size_t>(15 * width)}));
}

// A query or keys that are not finite are no answer of zeros, nor one of the largest half.
TEST(Attention, WhatIsNotFiniteIsSeen) {
  for (const Isa isa : supported_isas()) {
    const auto ctx = context(1, isa);
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const float bad : {NAN, std::bit_cast<float>(0x7fc00001u), INFINITY}) {
        Given setup = prefill({.heads = 2, .kv_heads = 2}, 0, 20);
        setup.key_type = setup.value_type = type;
        Scene scene(setup);
        const auto width = static_cast<size_t>(setup.heads * setup.dim);
        scene.q.data<float>()[3 * width] = bad;
        const std::vector<float> got = scene.run(*ctx, scene.all_rows());
        for (size_t d = 0; d < width / 2; ++d)
          ASSERT_TRUE(std::isnan(got[3 * width + d])) << name_of(isa) << " " << name_of(type) << " " << bad;
        ASSERT_TRUE(std::isfinite(got[2 * width])) << "another row";
        ASSERT_TRUE(std::isfinite(got[3 * width + width / 2])) << "another head";
      }
      if (type != DType::kF32) continue;
      const Given setup = prefill({.heads = 2, .kv_heads = 2}, 0, 20);
      Scene scene(setup);
      std::fill_n(scene.kv.k.data<float>(), scene.kv.k.numel(), NAN);
      for (const float value : scene.run(*ctx, scene.all_rows()))
        ASSERT_TRUE(std::isnan(value)) << name_of(isa);
    }
  }
}

TEST(Attention, OnlyTheKeptQueriesAreComputed) {
  const Given setup = prefill({}, 0, 30);
  const Scene scene(setup);
  const auto ctx = context(2);
  const size_t width = static_cast<size_t>(setup.heads * setup.dim);
  const std::vector<float> want = scene.run(*ctx, scene.all_rows());
  // q is compacted: its rows 0, 1, 2 are the batch's rows 4, 17, 29.
  const std::vector<int32_t> ids{4, 17, 29, 0, 0}, count{3};
  std::vector<float> queries(5 * width);
  for (size_t i = 0; i < 3; ++i) {
    std::copy_n(scene.q.data<float>() + static_cast<size_t>(ids[i]) * width, width,
                queries.data() + i * width);
  }
  const RowSet kept = RowSet::some(Tensor::from(*ctx, ids, {5}), Tensor::from(*ctx, count, {1}));
  const Tensor out = attention(*ctx, Tensor::from(*ctx, queries, {5, setup.heads, setup.dim}), scene.kv, kept,
                               Tensor::from(*ctx, setup.query_position, {30}),
                               Tensor::from(*ctx, setup.query_sequence, {30}), setup.params);
  EXPECT_EQ(out.shape(), (Shape{5, static_cast<int64_t>(width)}));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits({out.data<float>() + i * width, width},
                          {want.data() + static_cast<size_t>(ids[i]) * width, width}));
  }
}

TEST(Attention, CountsPairsAndBytes) {
  const Given setup = prefill(
      {.key_type = DType::kF16, .value_type = DType::kQ8_0, .params = {.scale = 1, .window = 30}}, 90, 100);
  const Scene scene(setup);
  for (const int threads : {1, 2}) {
    const auto ctx = context(threads);
    scene.run(*ctx, scene.all_rows());
    const Work work = ctx->counters().total();
    EXPECT_EQ(work.madds, 10u * 30 * 6 * 32 * 2);
    EXPECT_EQ(work.cache_bytes, 39u * 2 * (32 * 2 + 34));  // entries 61 … 99, two heads
    EXPECT_EQ(work.weight_bytes, 0u);
  }
}

TEST(Attention, NoRows) {
  const Scene scene(prefill({}, 0, 4));
  const auto ctx = context(2);
  EXPECT_TRUE(scene.run(*ctx, {}).empty());
}

std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Attention, RefusesWhatDoesNotFit) {
  Scene scene(prefill({}, 0, 4));
  const auto ctx = context(1);
  Tensor four = Tensor::owned(Device::kCpu, DType::kI32, {4});
  const auto call = [&](Shape q) {
    return message([&] {
      attention(*ctx, Tensor::empty(*ctx, DType::kF32, q), scene.kv, RowSet::all(q[0]), four, four, {});
    });
  };
  EXPECT_EQ(call({4, 6, 32}), "no error");
  EXPECT_EQ(call({4, 6, 12}), "attention: head_dim must be a multiple of 8 up to 256, got 12");
  EXPECT_EQ(call({4, 6, 16}),
            "attention: k must be f32, f16, bf16 or q8_0 (slots, kv_heads, 16), got f32 (9, 2, 32)");
  EXPECT_EQ(call({4, 5, 32}), "attention: 5 heads cannot share 2 heads of keys and 2 of values");
  EXPECT_EQ(call({3, 6, 32}), "attention: positions must be i32 (rows), got (4)");
  four.data<int32_t>()[2] = 1;
  EXPECT_EQ(call({4, 6, 32}), "attention: sequence must be in [0, 1), got 1");
}

}  // namespace
}  // namespace fathom
