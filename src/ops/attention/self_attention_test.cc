#include "ops/attention/self_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <numeric>

#include "base/rng.h"
#include "ops/rows/accumulate.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int64_t kHeadDim = 8;

struct SelfGiven {
  int64_t heads = 4, kv_heads = 2;
  std::vector<int32_t> sequence, positions;  // of the batch's rows
  std::vector<int32_t> queries, keys;        // kept rows; empty and not `some`: all
  bool some_queries = false, some_keys = false;
  bool bias = false;
  AttentionParams params{.scale = 0.4f};
  int threads = 1;
};

// `lengths` sequences one after the other.
SelfGiven batch(std::vector<int32_t> lengths) {
  SelfGiven given;
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int32_t i = 0; i < lengths[s]; ++i) {
      given.sequence.push_back(static_cast<int32_t>(s));
      given.positions.push_back(i);
    }
  }
  return given;
}

std::vector<int32_t> kept(const std::vector<int32_t>& ids, bool some, size_t rows) {
  if (some) return ids;
  std::vector<int32_t> all(rows);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// By the batch's rows, kept or not: (rows, heads, dim) and (rows).
struct Values {
  std::vector<double> q, k, v, bias;
  explicit Values(const SelfGiven& given) {
    const auto rows = static_cast<int64_t>(given.sequence.size());
    Rng rng(4);
    const auto fill = [&](std::vector<double>& to, int64_t n) {
      for (int64_t i = 0; i < n; ++i) to.push_back(static_cast<double>(rng.normal()));
    };
    fill(q, rows * given.heads * kHeadDim);
    fill(k, rows * given.kv_heads * kHeadDim);
    fill(v, rows * given.kv_heads * kHeadDim);
    fill(bias, rows);
    for (size_t i = 2; i < bias.size(); i += 5) bias[i] = -INFINITY;
  }
};

std::vector<double> output_gradient(const SelfGiven& given) {
  Rng rng(5);
  std::vector<double> d;
  for (size_t i = 0; i < given.sequence.size() * static_cast<size_t>(given.heads * kHeadDim); ++i)
    d.push_back(static_cast<double>(rng.normal()));
  return d;
}

// The definition: the output of every kept query, by the batch's rows; zeros elsewhere.
std::vector<double> reference(const SelfGiven& given, const Values& x) {
  const size_t rows = given.sequence.size(), group = static_cast<size_t>(given.heads / given.kv_heads);
  const auto heads = static_cast<size_t>(given.heads), kv_heads = static_cast<size_t>(given.kv_heads);
  std::vector<double> out(rows * heads * kHeadDim);
  const std::vector<int32_t> keys = kept(given.keys, given.some_keys, rows);
  for (const int32_t i : kept(given.queries, given.some_queries, rows)) {
    const auto row = static_cast<size_t>(i);
    for (size_t head = 0; head < heads; ++head) {
      const size_t at = (row * heads + head) * kHeadDim;
      double total = 0;
      std::vector<double> sums(kHeadDim);
      for (const int32_t j : keys) {
        const auto key = static_cast<size_t>(j);
        const int32_t distance = given.positions[row] - given.positions[key];
        if (given.sequence[row] != given.sequence[key] || distance < 0) continue;
        if (given.params.window > 0 && distance >= given.params.window) continue;
        const size_t there = (key * kv_heads + head / group) * kHeadDim;
        double logit = 0;
        for (size_t c = 0; c < kHeadDim; ++c) logit += x.q[at + c] * x.k[there + c];
        logit *= given.params.scale;
        const double cap = given.params.soft_cap;
        if (cap > 0) logit = cap * std::tanh(logit / cap);
        if (given.bias) logit += x.bias[key];
        const double p = std::exp(logit);
        total += p;
        for (size_t c = 0; c < kHeadDim; ++c) sums[c] += p * x.v[there + c];
      }
      for (size_t c = 0; c < kHeadDim && total > 0; ++c) out[at + c] = sums[c] / total;
    }
  }
  return out;
}

double loss(const SelfGiven& given, const Values& x) {
  const std::vector<double> out = reference(given, x), d = output_gradient(given);
  return std::inner_product(out.begin(), out.end(), d.begin(), 0.0);
}

// The kept rows' values, and NaN in the room behind them.
std::vector<float> compacted(const std::vector<double>& values, const std::vector<int32_t>& ids,
                             size_t rows) {
  const size_t width = values.size() / rows;
  std::vector<float> out(values.size(), NAN);
  for (size_t i = 0; i < ids.size(); ++i) {
    for (size_t c = 0; c < width; ++c)
      out[i * width + c] = static_cast<float>(values[static_cast<size_t>(ids[i]) * width + c]);
  }
  return out;
}

struct Result {
  std::vector<float> out, dq, dk, dv, d_bias;  // as the tensors are
  Work forward, backward;
};

struct Rows {
  Rows(Context& ctx, const std::vector<int32_t>& ids, bool some, size_t rows)
      : list(kept(ids, some, rows)), set(RowSet::all(static_cast<int64_t>(rows))) {
    if (!some) return;
    std::vector<int32_t> room = list;
    room.resize(rows);
    const auto n = static_cast<int32_t>(list.size());
    count = Tensor::from(ctx, std::span(&n, 1), {1});
    set = RowSet::some(Tensor::from(ctx, room, {static_cast<int64_t>(rows)}), count);
  }
  // values (rows, …) as a tensor compacted by this set, with its gradient in `gradient`.
  Tensor tensor(Context& ctx, const std::vector<double>& values, const Shape& shape, const Tensor& gradient) {
    Tensor t = Tensor::from(ctx, compacted(values, list, static_cast<size_t>(shape[0])), shape);
    if (count) t = t.counted_by(count);
    return parameter(t, gradient.counted_like(t));
  }
  std::vector<int32_t> list;
  Tensor count;
  RowSet set;
};

std::vector<float> values_of(const Tensor& t) {
  return {t.data<float>(), t.data<float>() + t.numel()};
}

Tensor zeros(const Shape& shape) {
  return Tensor::owned(Device::kCpu, DType::kF32, shape);
}

// The memory that ops get next holds NaN: what they do not write shows.
void poison(Context& ctx, int64_t most) {
  std::vector<Tensor> tensors;
  for (int64_t n = most; n > 0; n /= 2) {
    for (int i = 0; i < 8; ++i) {
      tensors.push_back(Tensor::empty(ctx, DType::kF32, {n}));
      std::fill_n(tensors.back().data<float>(), n, NAN);
    }
  }
}

Result run(const SelfGiven& given, bool taped = true) {
  Context ctx({.threads = given.threads});
  Tape tape(Device::kCpu);
  auto recording = taped ? std::make_unique<TapeScope>(ctx, tape) : nullptr;
  const size_t rows = given.sequence.size();
  const auto n = static_cast<int64_t>(rows);
  if (taped) poison(ctx, n * given.heads * kHeadDim);
  const Values x(given);
  Rows queries(ctx, given.queries, given.some_queries, rows), keys(ctx, given.keys, given.some_keys, rows);
  const Shape q_shape{n, given.heads, kHeadDim}, k_shape{n, given.kv_heads, kHeadDim};
  const Tensor dq = zeros(q_shape), dk = zeros(k_shape), dv = zeros(k_shape), d_bias = zeros({n});
  const Tensor q = queries.tensor(ctx, x.q, q_shape, dq), k = keys.tensor(ctx, x.k, k_shape, dk),
               v = keys.tensor(ctx, x.v, k_shape, dv);
  Tensor bias;
  if (given.bias)
    bias = parameter(Tensor::from(ctx, std::vector<float>(x.bias.begin(), x.bias.end()), {n}), d_bias);
  const Tensor out =
      self_attention(ctx, q, k, v, bias, queries.set, keys.set, Tensor::from(ctx, given.positions, {n}),
                     Tensor::from(ctx, given.sequence, {n}), given.params);
  Result result{values_of(out), {}, {}, {}, {}, ctx.counters().total(), {}};
  if (!taped) return result;
  const Tensor d =
      Tensor::from(ctx, compacted(output_gradient(given), queries.list, rows), out.shape()).counted_like(out);
  accumulate(ctx, out, d);
  const float zero = 0.0f;
  tape.backward(ctx, Tensor::from(ctx, std::span(&zero, 1), {1}).with_gradient(std::make_shared<Gradient>()));
  result.dq = values_of(dq), result.dk = values_of(dk), result.dv = values_of(dv);
  result.d_bias = values_of(d_bias);
  result.backward = ctx.counters().total() - result.forward;
  return result;
}

// got: compacted by `ids`; want(i): central difference of element i of the batch's values.
void check_differences(const SelfGiven& given, std::vector<double> Values::*member,
                       const std::vector<int32_t>& ids, const std::vector<float>& got, const char* name) {
  Values x(given);
  std::vector<double>& values = x.*member;
  const size_t width = values.size() / given.sequence.size(), step = 1 + ids.size() * width / 150;
  for (size_t i = 0; i < ids.size() * width; i += step) {
    double& value = values[static_cast<size_t>(ids[i / width]) * width + i % width];
    const double old = value, h = 1e-4;
    value = old + h;
    const double above = loss(given, x);
    value = old - h;
    const double below = loss(given, x);
    value = old;
    const double want = (above - below) / (2 * h);
    ASSERT_NEAR(got[i], want, 1e-3 * (0.1 + std::abs(want))) << name << " " << i;
  }
}

void check_self(const SelfGiven& given) {
  const size_t rows = given.sequence.size(), width = static_cast<size_t>(given.heads * kHeadDim);
  const std::vector<int32_t> queries = kept(given.queries, given.some_queries, rows),
                             keys = kept(given.keys, given.some_keys, rows);
  const Result got = run(given), untaped = run(given, false);
  const std::vector<double> want = reference(given, Values(given));
  for (size_t i = 0; i < queries.size() * width; ++i) {
    const double there = want[static_cast<size_t>(queries[i / width]) * width + i % width];
    ASSERT_NEAR(got.out[i], there, 1e-5) << i;
    ASSERT_EQ(untaped.out[i], got.out[i]) << i;
  }
  EXPECT_EQ(got.forward.madds, untaped.forward.madds);
  EXPECT_EQ(got.backward.madds, got.forward.madds / 2 * 5);
  check_differences(given, &Values::q, queries, got.dq, "dq");
  check_differences(given, &Values::k, keys, got.dk, "dk");
  check_differences(given, &Values::v, keys, got.dv, "dv");
  if (given.bias) {
    for (size_t i = 0; i < rows; ++i) {
      const bool is_key = std::find(keys.begin(), keys.end(), static_cast<int32_t>(i)) != keys.end();
      if (!is_key || std::isinf(Values(given).bias[i])) {
        ASSERT_EQ(got.d_bias[i], 0.0f) << "bias " << i;
      } else {
        check_differences(given, &Values::bias, {static_cast<int32_t>(i)}, {got.d_bias[i]}, "bias");
      }
    }
  }
  for (int threads : {2, 3}) {
    SelfGiven other = given;
    other.threads = threads;
    const Result again = run(other);
    // What is not there stays as it was: zeros in the gradients, anything in the output.
    EXPECT_EQ(again.dq, got.dq) << threads;
    EXPECT_EQ(again.dk, got.dk) << threads;
    EXPECT_EQ(again.dv, got.dv) << threads;
    EXPECT_EQ(again.d_bias, got.d_bias) << threads;
    for (size_t i = 0; i < queries.size() * width; ++i) ASSERT_EQ(again.out[i], got.out[i]);
  }
}

TEST(SelfAttention, OneSequence) {
  check_self(batch({1}));
  check_self(batch({9}));
  check_self(batch({70}));  // more than one strip of queries
}

TEST(SelfAttention, EveryGrouping) {
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {3, 3}, {3, 1}, {6, 2}}) {
    SelfGiven given = batch({7, 5});
    given.heads = heads, given.kv_heads = kv_heads;
    check_self(given);
  }
}

TEST(SelfAttention, WindowSoftCapAndBias) {
  for (const int32_t window : {1, 4, 100}) {
    SelfGiven given = batch({11, 3});
    given.params.window = window;
    check_self(given);
  }
  SelfGiven given = batch({11, 3});
  given.params.soft_cap = 1.5f;
  check_self(given);
  given.bias = true;
  check_self(given);
  given.params.window = 5;
  check_self(given);
  SelfGiven strips = batch({80, 66});
  strips.bias = true;
  strips.params.window = 20;
  check_self(strips);
}

TEST(SelfAttention, KeptQueriesAndKeys) {
  SelfGiven given = batch({6, 1, 5});
  given.bias = true;
  given.some_queries = given.some_keys = true;
  given.queries = {1, 2, 5, 8, 11};
  given.keys = {0, 2, 3, 4, 9, 10};  // sequence 1 has neither; row 8 sees nothing
  check_self(given);
  given.keys = given.queries;
  check_self(given);
  given.some_keys = false;
  check_self(given);
  given.some_keys = true, given.some_queries = false;
  check_self(given);
  given.keys = {};
  check_self(given);
  given.some_queries = true, given.queries = {};
  check_self(given);
  given.keys = {3};
  check_self(given);
}

// Sequences row by row in turn, positions with gaps.
TEST(SelfAttention, InterleavedSequences) {
  SelfGiven given;
  for (int32_t i = 0; i < 20; ++i) {
    given.sequence.push_back(i % 3 == 2 ? 4 : i % 3);
    given.positions.push_back(2 * i + i % 4);
  }
  given.bias = true;
  given.params.window = 9;
  check_self(given);
}

TEST(SelfAttention, OnlyWhatIsWantedIsComputed) {
  Context ctx({.threads = 1});
  Tape tape(Device::kCpu);
  const TapeScope recording(ctx, tape);
  const SelfGiven given = batch({6});
  const Values x(given);
  const auto tensor = [&](const std::vector<double>& values, int64_t heads) {
    return Tensor::from(ctx, std::vector<float>(values.begin(), values.end()), {6, heads, kHeadDim});
  };
  const Tensor dv = zeros({6, 2, kHeadDim});
  const Tensor out = self_attention(ctx, tensor(x.q, 4), tensor(x.k, 2), parameter(tensor(x.v, 2), dv), {},
                                    RowSet::all(6), RowSet::all(6), Tensor::from(ctx, given.positions, {6}),
                                    Tensor::from(ctx, given.sequence, {6}), given.params);
  const uint64_t before = ctx.counters().total().madds;
  accumulate(ctx, out, Tensor::from(ctx, std::vector<float>(6 * 32, 1.0f), out.shape()));
  const float zero = 0.0f;
  tape.backward(ctx, Tensor::from(ctx, std::span(&zero, 1), {1}).with_gradient(std::make_shared<Gradient>()));
  EXPECT_EQ(ctx.counters().total().madds - before, 21u * 4 * kHeadDim * 2);
  EXPECT_NE(values_of(dv), std::vector<float>(6 * 2 * kHeadDim));
}

TEST(SelfAttention, RefusesWhatDoesNotFit) {
  Context ctx({.threads = 1});
  const Tensor rows = Tensor::from(ctx, std::vector<int32_t>{0, 0, 0}, {3});
  const auto message = [&](const Shape& q, const Shape& k, std::vector<int32_t> positions) {
    try {
      self_attention(ctx, zeros(q), zeros(k), zeros(k), {}, RowSet::all(3), RowSet::all(3),
                     Tensor::from(ctx, positions, {3}), rows, {});
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message({3, 4, 8}, {3, 2, 8}, {0, 1, 2}), "no error");
  EXPECT_EQ(message({3, 4, 8}, {2, 2, 8}, {0, 1, 2}),
            "self_attention: k must be dense f32 (3, heads, 8), got f32 (2, 2, 8)");
  EXPECT_EQ(message({3, 4, 8}, {3, 3, 8}, {0, 1, 2}),
            "self_attention: 4 heads cannot share 3 heads of keys and 3 of values");
  EXPECT_EQ(message({3, 4, 8}, {3, 2, 8}, {0, 2, 1}), "self_attention: rows of sequence 0 are not in order");
}

}  // namespace
}  // namespace fathom
