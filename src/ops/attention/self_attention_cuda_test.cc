// self_attention on a GPU against the CPU: f32 to rounding, bf16 within its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/rng.h"
#include "ops/attention/self_attention_kernel.h"
#include "ops/kernels/gpu_test.h"
#include "ops/rows/accumulate.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

using Values = std::vector<float>;
using Ints = std::vector<int32_t>;

struct Given {
  int64_t heads = 3, kv_heads = 1, dim = 64;
  Ints sequence, positions;  // of the batch's rows
  Ints queries, keys;        // kept rows where `some`, otherwise all
  bool some_queries = false, some_keys = false;
  bool bias = false;
  AttentionParams params{.scale = 0.125f};

  int64_t rows() const { return static_cast<int64_t>(sequence.size()); }
  int64_t query_count() const { return some_queries ? static_cast<int64_t>(queries.size()) : rows(); }
  int64_t key_count() const { return some_keys ? static_cast<int64_t>(keys.size()) : rows(); }
};

// `lengths` sequences one after the other.
Given batch(const Ints& lengths) {
  Given given;
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int32_t i = 0; i < lengths[s]; ++i) {
      given.sequence.push_back(static_cast<int32_t>(s));
      given.positions.push_back(i);
    }
  }
  return given;
}

const Ints kRagged{5, 1, 90, 70, 1, 33};  // no multiples of any tile

// Every row that `step` reaches; gaps of different sizes.
Ints some_of(int64_t rows, int32_t first, int32_t step) {
  Ints out;
  for (int32_t i = first; i < rows; i += 1 + i % step) out.push_back(i);
  return out;
}

// What is there of out, dq, dk, dv, d_bias.
struct Result {
  Values out, dq, dk, dv, d_bias;
  bool operator==(const Result& other) const {
    const auto same = [](const Values& a, const Values& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(out, other.out) && same(dq, other.dq) && same(dk, other.dk) && same(dv, other.dv) &&
           same(d_bias, other.d_bias);
  }
};

// The operands on a context's device, the same values for every one. Rows that are not there hold NaN.
struct Operands {
  Operands(Context& ctx, const Given& given)
      : queries(set(ctx, given.queries, given.some_queries, given.rows())),
        keys(set(ctx, given.keys, given.some_keys, given.rows())) {
    const int64_t n = given.rows(), width = given.heads * given.dim;
    Rng rng(7);
    const auto tensor = [&](const Shape& shape, const RowSet& rows, int64_t present) {
      Values values(static_cast<size_t>(shape.numel()));
      for (float& x : values) x = rng.normal();
      const auto there = static_cast<size_t>(n > 0 ? shape.numel() / n * present : 0);
      std::fill(values.begin() + static_cast<std::ptrdiff_t>(there), values.end(), NAN);
      const Tensor t = Tensor::from(ctx, values, shape);
      return rows.is_all() ? t : t.counted_by(rows.count());
    };
    const auto differentiable = [](const Tensor& t) { return t.with_gradient(std::make_shared<Gradient>()); };
    q = differentiable(tensor({n, given.heads, given.dim}, queries, given.query_count()));
    k = differentiable(tensor({n, given.kv_heads, given.dim}, keys, given.key_count()));
    v = differentiable(tensor({n, given.kv_heads, given.dim}, keys, given.key_count()));
    d = tensor({n, width}, queries, given.query_count());
    positions = Tensor::from(ctx, given.positions, {n});
    sequence = Tensor::from(ctx, given.sequence, {n});
    Values biases(static_cast<size_t>(n));
    for (size_t i = 0; i < biases.size(); ++i) biases[i] = i % 5 == 2 ? -INFINITY : rng.normal();
    if (given.bias) bias = differentiable(Tensor::from(ctx, biases, {n}));
  }

  static RowSet set(Context& ctx, Ints ids, bool some, int64_t rows) {
    if (!some) return RowSet::all(rows);
    const auto count = static_cast<int32_t>(ids.size());
    ids.resize(static_cast<size_t>(rows));
    return RowSet::some(Tensor::from(ctx, ids, {rows}), Tensor::from(ctx, std::span(&count, 1), {1}));
  }

  RowSet queries, keys;
  Tensor q, k, v, bias, d, positions, sequence;
};

// The first `rows` rows.
Values values_of(Context& ctx, const Tensor& t, int64_t rows) {
  Values values(static_cast<size_t>(t.numel()));
  copy_to_host(ctx, t, values);
  values.resize(static_cast<size_t>(t.numel() / t.dim(0) * rows));
  return values;
}

Result run(Context& ctx, const Given& given) {
  Tape tape(ctx.device());
  const TapeScope recording(ctx, tape);
  const Operands x(ctx, given);
  const Tensor out =
      self_attention(ctx, x.q, x.k, x.v, x.bias, x.queries, x.keys, x.positions, x.sequence, given.params);
  accumulate(ctx, out, x.d);
  const float zero = 0.0f;
  tape.backward(ctx, Tensor::from(ctx, std::span(&zero, 1), {1}).with_gradient(std::make_shared<Gradient>()));
  const auto gradient = [&](const Tensor& t, int64_t rows) {
    return values_of(ctx, t.gradient()->value, rows);
  };
  return {values_of(ctx, out, given.query_count()), gradient(x.q, given.query_count()),
          gradient(x.k, given.key_count()), gradient(x.v, given.key_count()),
          given.bias ? gradient(x.bias, given.rows()) : Values()};
}

double norm_of(const Values& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

void expect_close(Values got, const Values& want, double tolerance, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  const double norm = norm_of(want);
  for (size_t i = 0; i < got.size(); ++i) got[i] -= want[i];
  EXPECT_LE(norm_of(got), tolerance * norm) << what << " of norm " << norm;
}

void expect_close(const Result& got, const Result& want, double tolerance) {
  expect_close(got.out, want.out, tolerance, "out");
  expect_close(got.dq, want.dq, tolerance, "dq");
  expect_close(got.dk, want.dk, tolerance, "dk");
  expect_close(got.dv, want.dv, tolerance, "dv");
  expect_close(got.d_bias, want.d_bias, tolerance, "d_bias");
}

class CudaSelfAttention : public Cuda {
 protected:
  // Both precisions against the CPU, the same bits twice, and without a gradient.
  void check(Given given, const std::string& name) {
    SCOPED_TRACE(name + ", head_dim " + std::to_string(given.dim));
    const Result want = run(cpu_, given);
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      SCOPED_TRACE(precision == Precision::kF32 ? "f32" : "bf16");
      given.params.precision = precision;
      const Result got = run(*gpu_, given);
      expect_close(got, want, precision == Precision::kF32 ? 1e-5 : 1e-2);
      EXPECT_TRUE(run(*gpu_, given) == got) << "other bits the second time";
      check_alone(given, got);
    }
  }

  // What a pass without a tape gives, and how many pairs it counts.
  void check_alone(const Given& given, const Result& want) {
    const ArenaScope scope(*gpu_);
    const Operands x(*gpu_, given);
    const SelfAttentionCall call{x.q,    x.k,         x.v,        x.bias,      x.queries,
                                 x.keys, x.positions, x.sequence, given.params};
    SelfAttentionKept kept;
    Tensor out;
    on_device(*gpu_, [&](auto dev) { out = self_attention_kernel(dev, *gpu_, call, false, kept); });
    EXPECT_EQ(values_of(*gpu_, out, given.query_count()), want.out);
    EXPECT_FALSE(kept.q || kept.out || kept.log_sums || kept.plan);
    uint64_t pairs = 0;
    const Tensor here = kept.pairs.to(*gpu_, Device::kCpu);
    std::memcpy(&pairs, here.raw(), sizeof pairs);
    EXPECT_EQ(pairs, pairs_of(given));
  }

  static uint64_t pairs_of(const Given& given) {
    const auto kept = [&](const Ints& ids, bool some, size_t i) {
      return !some || std::binary_search(ids.begin(), ids.end(), static_cast<int32_t>(i));
    };
    uint64_t pairs = 0;
    for (size_t i = 0; i < given.sequence.size(); ++i) {
      for (size_t j = 0; j < given.sequence.size(); ++j) {
        const int32_t distance = given.positions[i] - given.positions[j];
        pairs += given.sequence[i] == given.sequence[j] && distance >= 0 &&
                 (given.params.window <= 0 || distance < given.params.window) &&
                 kept(given.queries, given.some_queries, i) && kept(given.keys, given.some_keys, j);
      }
    }
    return pairs;
  }
};

TEST_F(CudaSelfAttention, EveryCombination) {
  for (const int64_t dim : {64, 128, 48}) {
    for (int bits = 0; bits < 48; ++bits) {
      Given given = batch(kRagged);
      given.dim = dim;
      if (bits & 1) given.kv_heads = 3;
      if (bits & 2) given.params.window = 20;
      if (bits & 4) given.params.soft_cap = 2.0f;
      given.bias = (bits & 8) != 0;
      given.some_queries = bits >= 16;
      given.some_keys = bits >= 32;
      if (given.some_queries) given.queries = some_of(given.rows(), 0, 3);
      if (given.some_keys) given.keys = bits & 1 ? given.queries : some_of(given.rows(), 1, 4);
      check(given, "combination " + std::to_string(bits));
    }
  }
}

TEST_F(CudaSelfAttention, OtherHeadDims) {
  for (const int64_t dim : {8, 72, 136, 256}) {
    Given given = batch(kRagged);
    given.dim = dim;
    given.bias = true;
    check(given, "ragged");
  }
}

// All keys of sequence 0 are hidden, row 96 (sequence 3) comes before the first key that is kept of its own.
TEST_F(CudaSelfAttention, QueriesThatSeeNothing) {
  Given given = batch(kRagged);
  given.some_keys = true;
  given.bias = true;
  for (int32_t i = 6; i < given.rows(); ++i) {
    if (i != 96) given.keys.push_back(i);
  }
  given.keys.push_back(2);  // its bias is −inf
  std::sort(given.keys.begin(), given.keys.end());
  check(given, "some see nothing");
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    given.params.precision = precision;
    const Result got = run(*gpu_, given);
    const auto width = static_cast<size_t>(given.heads * given.dim);
    for (const size_t row : {0, 1, 2, 3, 4, 5, 96}) {
      for (size_t c = row * width; c < (row + 1) * width; ++c) {
        ASSERT_EQ(got.out[c], 0.0f) << row;
        ASSERT_EQ(got.dq[c], 0.0f) << row;
      }
    }
  }
}

TEST_F(CudaSelfAttention, EmptySelections) {
  for (const int64_t dim : {64, 48}) {
    Given given = batch(kRagged);
    given.dim = dim;
    given.bias = true;
    given.some_keys = true;
    check(given, "no key");
    given.some_queries = true;
    check(given, "neither queries nor keys");
    given.some_keys = false;
    check(given, "no query");
    given.queries = {199};
    check(given, "one query");
  }
}

// Sequences row by row in turn, whose numbers do not ascend, positions with gaps.
TEST_F(CudaSelfAttention, InterleavedSequences) {
  for (const int32_t window : {0, 60}) {
    Given given;
    for (int32_t i = 0; i < 333; ++i) {
      given.sequence.push_back(i % 3 == 2 ? 4 : i % 3);
      given.positions.push_back(2 * i + i % 4);
    }
    given.bias = true;
    given.params.window = window;
    check(given, "interleaved");
    given.some_queries = given.some_keys = true;
    given.queries = some_of(given.rows(), 3, 2);
    given.keys = some_of(given.rows(), 0, 4);
    check(given, "interleaved, kept rows");
  }
  Given given = batch({40, 100, 60});
  for (int32_t& s : given.sequence) s = 7 - s;
  check(given, "descending");
}

TEST_F(CudaSelfAttention, ManyRows) {
  Given given = batch({1000, 37, 700, 263});
  given.heads = 9, given.kv_heads = 3;
  check(given, "2,000 rows");
  given.params.window = 300;
  check(given, "2,000 rows, a window");
  given.some_queries = true;
  given.queries = some_of(given.rows(), 0, 3);
  check(given, "2,000 rows, some queries");
}

}  // namespace
}  // namespace fathom
