// The ops whose operands an OpCase cannot make (row sets, caches) and every weight format, on a GPU against
// the CPU.
#include "tensor/cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "base/rng.h"
#include "ops/attention/append_kv.h"
#include "ops/attention/attention.h"
#include "ops/attention/rope.h"
#include "ops/linear/embed.h"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/linear.h"
#include "ops/loss/cross_entropy.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/add_rows.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/quantile.h"
#include "ops/rows/select_rows.h"
#include "quant/formats.h"
#include "quant/half.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

using Values = std::vector<float>;
using Ints = std::vector<int32_t>;

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      gpu_ = std::make_unique<Context>(ContextOptions{.device = Device::kCuda, .threads = 1});
    } catch (const UserError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  Values normals(int64_t count, float scale = 1.0f) {
    Values values(static_cast<size_t>(count));
    for (float& value : values) value = rng_.normal() * scale;
    return values;
  }

  std::unique_ptr<Context> gpu_;
  Context cpu_{{.threads = 2}};
  Rng rng_{42};
};

Tensor floats(Context& ctx, const Values& values, const Shape& shape) {
  return Tensor::from(ctx, values, shape);
}
Tensor ints(Context& ctx, const Ints& values, const Shape& shape) {
  return Tensor::from(ctx, values, shape);
}

RowSet some(Context& ctx, const Ints& ids, int32_t count) {
  return RowSet::some(ints(ctx, ids, {static_cast<int64_t>(ids.size())}), ints(ctx, {count}, {1}));
}

template <class T>
std::vector<T> host(Context& ctx, const Tensor& tensor) {
  std::vector<T> values(static_cast<size_t>(tensor.numel()));
  copy_to_host(ctx, tensor, values);
  return values;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TEST_F(Cuda, RowsAreGatheredAndAdded) {
  const Values h = normals(7 * 300), branch = normals(4 * 300);
  const auto run = [&](Context& ctx) {
    const RowSet kept = some(ctx, {1, 2, 6, 0}, 3);
    const Tensor x = floats(ctx, h, {7, 300});
    Values out = host<float>(ctx, gather_rows(ctx, x, kept).rows(0, 3));
    const Values strided = host<float>(ctx, gather_rows(ctx, x.columns(10, 33), kept).rows(0, 3));
    const Ints ids =
        host<int32_t>(ctx, gather_rows(ctx, ints(ctx, {9, 8, 7, 6, 5, 4, 3}, {7}), kept).rows(0, 3));
    const Values sum = host<float>(ctx, add_rows(ctx, x, kept, floats(ctx, branch, {4, 300})));
    const Values all =
        host<float>(ctx, add_rows(ctx, x.rows(0, 4), RowSet::all(4), floats(ctx, branch, {4, 300})));
    out.insert(out.end(), strided.begin(), strided.end());
    out.insert(out.end(), ids.begin(), ids.end());
    out.insert(out.end(), sum.begin(), sum.end());
    out.insert(out.end(), all.begin(), all.end());
    return out;
  };
  EXPECT_TRUE(same_bits(run(*gpu_), run(cpu_)));
}

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
      append_kv(ctx, above, table_above, rows_v, rows_k, some(ctx, ids, 25), ints(ctx, positions, {40}),
                ints(ctx, sequence, {40}), {{}, &kv});
      append_kv(ctx, kv, table, rows_k, rows_v, some(ctx, ids, 25), ints(ctx, positions, {40}),
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

class CudaScores : public Cuda {
 protected:
  // Normals with ties, both zeros, NaN and +∞ among them.
  Values scores(int64_t rows) {
    Values values = normals(rows);
    for (float& value : values) {
      const uint32_t kind = rng_.below(10);
      if (kind < 4) value = std::round(value);
      if (kind == 4) value = rng_.below(2) ? NAN : INFINITY;
    }
    return values;
  }
  Ints below(int64_t count, uint32_t most) {
    Ints values(static_cast<size_t>(count));
    for (int32_t& value : values) value = static_cast<int32_t>(rng_.below(most));
    return values;
  }
  // As many rows as there is room for, or fewer.
  static Tensor counted(Context& ctx, const Values& values, int32_t count) {
    const auto room = static_cast<int64_t>(values.size());
    const Tensor out = floats(ctx, values, {room});
    return count < room ? out.counted_by(ints(ctx, {count}, {1})) : out;
  }
};

TEST_F(CudaScores, QuantilesAreTheCpus) {
  for (const int32_t rows : {1, 2, 7, 300, 5000, 70000}) {
    const Values values = scores(rows), valid = normals(rows);
    for (const int32_t count : {rows, rows / 2 + 1}) {
      const auto run = [&](Context& ctx) {
        const ArenaScope scope(ctx);
        Values out;
        for (const float q : {0.0f, 0.2f, 0.5f, 0.77f, 1.0f}) {
          out.push_back(host<float>(ctx, quantile(ctx, counted(ctx, values, count), q))[0]);
          if (*std::max_element(valid.begin(), valid.begin() + count) <= 0) continue;
          const Tensor mask = floats(ctx, valid, {rows});
          out.push_back(host<float>(ctx, quantile(ctx, counted(ctx, values, count), q, mask))[0]);
        }
        return out;
      };
      EXPECT_EQ(run(*gpu_), run(cpu_)) << count << " of " << rows;
    }
  }
}

TEST_F(CudaScores, WeightedQuantilesAreTheCpus) {
  Values shares;
  for (int i = 0; i < 150; ++i) shares.push_back(static_cast<float>(i) / 149.0f);
  for (const int32_t rows : {1, 7, 300, 1025, 70000}) {
    const Values values = scores(rows);
    Values weights = normals(rows);
    for (float& weight : weights) weight = rng_.below(3) ? std::abs(weight) : std::round(std::abs(weight));
    for (const int32_t count : {rows, rows / 2 + 1}) {
      const auto run = [&](Context& ctx) {
        const ArenaScope scope(ctx);
        return host<float>(
            ctx, weighted_quantile(ctx, counted(ctx, values, count), floats(ctx, weights, {rows}), shares));
      };
      EXPECT_EQ(run(*gpu_), run(cpu_)) << count << " of " << rows;
    }
  }
}

TEST_F(CudaScores, TopSharesAreTheCpus) {
  for (const int32_t rows : {1, 7, 300, 5000, 70000}) {
    const Values values = scores(rows);
    Ints sequence = below(rows, 9);
    for (int32_t& of : sequence) of = of == 0 ? INT32_MAX : of == 1 ? -5 : of;
    for (const int32_t count : {rows, rows / 2 + 1}) {
      for (const float share : {0.0f, 0.125f, 0.3f, 0.5f, 1.0f}) {
        const auto run = [&](Context& ctx) {
          const ArenaScope scope(ctx);
          return host<float>(
              ctx, top_share_by_sequence(ctx, counted(ctx, values, count), ints(ctx, sequence, {rows}), share)
                       .rows(0, count));
        };
        EXPECT_EQ(run(*gpu_), run(cpu_)) << count << " of " << rows << ", " << share;
      }
    }
  }
}

TEST_F(CudaScores, WithoutAScoreThereIsNoQuantile) {
  const auto refused = [&](const Tensor& out) { EXPECT_THROW(host<float>(*gpu_, out), UserError); };
  const float half = 0.5f;
  const std::span<const float> shares(&half, 1);
  const Tensor two = floats(*gpu_, {1, 2}, {2}), none = floats(*gpu_, {}, {0});
  refused(quantile(*gpu_, two, half, floats(*gpu_, {0, 0}, {2})));
  refused(quantile(*gpu_, counted(*gpu_, {1, 2}, 0), half));
  refused(quantile(*gpu_, none, half));
  refused(weighted_quantile(*gpu_, counted(*gpu_, {1, 2}, 0), two, shares));
  refused(weighted_quantile(*gpu_, none, none, shares));
  refused(weighted_quantile(*gpu_, two, floats(*gpu_, {1, -1}, {2}), shares));
}

class CudaGradient : public Cuda {
 protected:
  using Run = std::function<Tensor(Context&, const Tensor&)>;
  struct Result {
    Values out, dx;
  };

  // run(x) and the gradient of Σ run(x) · r at x. held: x is still needed, and may not become its gradient.
  // there: x is a parameter whose gradient so far is this, if anything.
  static Result differentiated(Context& ctx, const Values& x, const Shape& shape, const Values& r,
                               const Run& run, bool held = false, const Values& there = {}) {
    const ArenaScope scope(ctx);
    Tape tape(ctx.device());
    const TapeScope taped(ctx, tape);
    auto gradient = std::make_shared<Gradient>();
    if (!there.empty()) *gradient = {floats(ctx, there, shape), true};
    Tensor kept, loss = Tensor::empty(ctx, DType::kF32, {1});
    Result result;
    {
      const Tensor input = floats(ctx, x, shape).with_gradient(gradient);
      if (held) kept = input;
      const Tensor out = run(ctx, input);
      result.out = host<float>(ctx, out);
      differentiate(ctx, {&out}, loss, [out, d = floats(ctx, r, out.shape())](Context& c, const Tensor&) {
        accumulate(c, out, d);
      });
    }
    tape.backward(ctx, loss);
    result.dx = host<float>(ctx, gradient->value);
    if (held) {
      EXPECT_TRUE(same_bits(host<float>(ctx, kept), x));
    }
    return result;
  }

  static void expect_near(const Values& got, const Values& want, double tolerance, const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::abs(want[i]))) << what << ", element " << i;
  }

  // Both devices, with rows of weight 0 (nothing but NaN in them), twice on the GPU. width: of a row.
  void check_loss(const char* op, int64_t width, const Values& x, const Run& run, double tolerance) {
    const Shape shape{static_cast<int64_t>(kWeights.size()), width};
    const std::string what = std::string(op) + ", width " + std::to_string(width);
    const Result want = differentiated(cpu_, x, shape, {-1.5f}, run);
    for (const bool held : {false, true}) {
      const Result got = differentiated(*gpu_, x, shape, {-1.5f}, run, held);
      expect_near(got.out, want.out, tolerance, what);
      expect_near(got.dx, want.dx, tolerance, what + ", gradient");
      EXPECT_TRUE(same_bits(differentiated(*gpu_, x, shape, {-1.5f}, run, held).dx, got.dx)) << what;
    }
  }
  Values rows_with_nan(int64_t width, float scale) {
    const auto rows = static_cast<int64_t>(kWeights.size());
    Values x = normals(rows * width, scale);
    for (int64_t i = 0; i < rows * width; ++i)
      if (kWeights[static_cast<size_t>(i / width)] == 0) x[static_cast<size_t>(i)] = NAN;
    return x;
  }

  const Values kWeights{1.0f, 0.0f, 0.25f, -2.0f, 0.0f, 0.5f, 3.0f};
  const std::vector<int64_t> kWidths{1, 3, 7, 64, 130, 1003, 4096, 49157, 50000};
};

TEST_F(CudaGradient, CrossEntropyIsTheCpus) {
  for (const int64_t width : kWidths) {
    Values x = rows_with_nan(width, 4.0f);
    if (width > 3) x[0] = x[static_cast<size_t>(width - 1)] = -INFINITY;  // hidden tokens
    Ints targets;
    for (const float weight : kWeights)
      targets.push_back(weight == 0 ? -100 : static_cast<int32_t>(width / 2 + (width - 1) / 2 % 2));
    const auto run = [&](Context& ctx, const Tensor& logits) {
      const auto rows = static_cast<int64_t>(kWeights.size());
      return cross_entropy(ctx, logits, ints(ctx, targets, {rows}), floats(ctx, kWeights, {rows}));
    };
    check_loss("cross_entropy", width, x, run, 2e-6);
  }
}

TEST_F(CudaGradient, DivergenceIsTheCpus) {
  for (const int64_t width : kWidths) {
    const Values x = rows_with_nan(width, 2.0f);
    Values teacher = rows_with_nan(width, 3.0f);
    if (width > 3) teacher[1] = teacher[static_cast<size_t>(2 * width + 2)] = -INFINITY;
    const auto run = [&](Context& ctx, const Tensor& student) {
      const auto rows = static_cast<int64_t>(kWeights.size());
      return kl_divergence(ctx, floats(ctx, teacher, {rows, width}), student, floats(ctx, kWeights, {rows}));
    };
    check_loss("kl_divergence", width, x, run, 4e-6);
  }
}

TEST_F(CudaGradient, SquaresAreTheCpus) {
  for (const int64_t width : kWidths) {
    const Values x = rows_with_nan(width, 2.0f), other = rows_with_nan(width, 1.0f);
    for (const bool first : {true, false}) {
      const auto run = [&](Context& ctx, const Tensor& a) {
        const auto rows = static_cast<int64_t>(kWeights.size());
        const Tensor b = floats(ctx, other, {rows, width}), weights = floats(ctx, kWeights, {rows});
        return first ? mean_squared(ctx, a, b, weights) : mean_squared(ctx, b, a, weights);
      };
      check_loss("mean_squared", width, x, run, 1e-6);
    }
  }
}

// Of counted rows only those that are there are read, and get a gradient.
TEST_F(CudaGradient, LossesOfTheRowsThatAreThere) {
  constexpr int64_t kRows = 2500, kWidth = 12;
  constexpr int32_t kThere = 2100;
  const Values x = normals(kRows * kWidth), other = normals(kRows * kWidth), weights = normals(kRows);
  Ints targets;
  for (int32_t r = 0; r < kRows; ++r) targets.push_back(r < kThere ? r % kWidth : -1);
  for (int loss = 0; loss < 3; ++loss) {
    const auto run = [&](Context& ctx, const Tensor& all) {
      const Tensor rows = all.counted_by(ints(ctx, {kThere}, {1})), w = floats(ctx, weights, {kRows});
      const Tensor b = floats(ctx, other, {kRows, kWidth});
      if (loss == 0) return cross_entropy(ctx, rows, ints(ctx, targets, {kRows}), w);
      return loss == 1 ? kl_divergence(ctx, b, rows, w) : mean_squared(ctx, rows, b, w);
    };
    Result got = differentiated(*gpu_, x, {kRows, kWidth}, {0.5f}, run);
    Result want = differentiated(cpu_, x, {kRows, kWidth}, {0.5f}, run);
    for (Result* result : {&got, &want}) result->dx.resize(kThere * kWidth);
    expect_near(got.out, want.out, 2e-6, std::to_string(loss));
    expect_near(got.dx, want.dx, 2e-6, std::to_string(loss));
  }
}

TEST_F(CudaGradient, EmbedAddsEqualIdsInRowOrder) {
  constexpr int64_t kRows = 700, kVocab = 50;
  Ints ids(kRows);
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t kind = rng_.below(4);  // one id in a quarter of the rows, the first and the last too
    ids[i] = kind == 0   ? 7
             : kind == 1 ? (rng_.below(2) ? 0 : kVocab - 1)
                         : static_cast<int32_t>(rng_.below(kVocab));
  }
  for (const int64_t width : {1, 33, 128, 300}) {
    const Values table = normals(kVocab * width), d = normals(kRows * width), there = normals(kVocab * width);
    const auto run = [&](Context& ctx, const Tensor& weight) {
      return embed(ctx, ints(ctx, ids, {kRows}), weight, 1.7f);
    };
    for (const Values& before : {Values(), there}) {
      const Result got = differentiated(*gpu_, table, {kVocab, width}, d, run, true, before);
      const Result want = differentiated(cpu_, table, {kVocab, width}, d, run, true, before);
      EXPECT_TRUE(same_bits(got.dx, want.dx)) << width;
    }
  }
}

TEST_F(CudaGradient, RopeTurnsBack) {
  constexpr int64_t kRows = 9, kHeads = 3, kDim = 24;
  const Values x = normals(kRows * kHeads * kDim), d = normals(kRows * kHeads * kDim);
  const Values frequency = normals(kDim / 2);
  Ints positions;
  for (int32_t r = 0; r < kRows; ++r) positions.push_back(r * r);
  for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kPairs}) {
    const auto run = [&](Context& ctx, const Tensor& heads) {
      return rope(ctx, heads, ints(ctx, positions, {kRows}), floats(ctx, frequency, {kDim / 2}),
                  {.style = style, .magnitude = 1.3f});
    };
    const Result got = differentiated(*gpu_, x, {kRows, kHeads, kDim}, d, run);
    const Result want = differentiated(cpu_, x, {kRows, kHeads, kDim}, d, run);
    expect_near(got.dx, want.dx, 2e-6, "rope");
  }
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
    return host<float>(*gpu_,
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

// Any bytes are a block of the formats that nobody encodes, but for its f16 scales, which must be tame.
Tensor random_blocks(Rng& rng, DType dtype, const Shape& shape, const std::vector<int64_t>& scales) {
  Tensor out = Tensor::owned(Device::kCpu, dtype, shape);
  const int64_t size = traits(dtype).block_bytes;
  for (int64_t i = 0; i < out.nbytes(); ++i) out.data<uint8_t>()[i] = static_cast<uint8_t>(rng.below(256));
  for (int64_t block = 0; block < out.nbytes() / size; ++block) {
    for (const int64_t at : scales) {
      const uint16_t scale = f16_of_f32(0.002f * (1.0f + rng.uniform()));
      std::memcpy(out.data<std::byte>() + block * size + at, &scale, sizeof scale);
    }
  }
  return out;
}

class CudaLinear : public Cuda {
 protected:
  Tensor weight_of(DType dtype, int64_t out, int64_t in) {
    switch (dtype) {
      case DType::kQ2_K:
        return random_blocks(rng_, dtype, {out, in}, {80, 82});
      case DType::kQ3_K:
        return random_blocks(rng_, dtype, {out, in}, {108});
      case DType::kQ4_K:
      case DType::kQ5_K:
        return random_blocks(rng_, dtype, {out, in}, {0, 2});
      case DType::kQ6_K:
        return random_blocks(rng_, dtype, {out, in}, {208});
      default:
        break;
    }
    Tensor weight = Tensor::owned(Device::kCpu, dtype, {out, in});
    const Values values = normals(out * in, 0.1f);
    for (int64_t r = 0; r < out; ++r) {
      encode_row(dtype, values.data() + r * in, weight.data<std::byte>() + r * row_bytes(dtype, in), in);
    }
    return weight;
  }

  // Products of the decoded weights in f64; every number of rows gives a row the same bits. `apart`: rows
  // begin after two other elements and are followed by one, so that nothing is aligned.
  void check(DType dtype, int64_t in, int64_t out, bool apart = true) {
    constexpr int64_t kRows = 101;
    const int64_t before = apart ? 2 : 0, step = apart ? in + 3 : in;
    const Tensor weight = weight_of(dtype, out, in), there = weight.to(*gpu_, Device::kCuda);
    const Values x = normals(kRows * step), bias = normals(out);
    const ArenaScope scope(*gpu_);
    const Tensor rows = floats(*gpu_, x, {kRows, step}).columns(before, in);
    const Values all = host<float>(*gpu_, linear(*gpu_, rows, there, floats(*gpu_, bias, {out})));
    Values decoded(static_cast<size_t>(in));
    const double rounding = dtype == DType::kBF16 ? 4e-6 : 1e-6;  // tensor cores cut their sums off
    for (int64_t c = 0; c < out; ++c) {
      decode_row(dtype, weight.data<std::byte>() + c * row_bytes(dtype, in), decoded.data(), in);
      for (int64_t r = 0; r < kRows; ++r) {
        double want = bias[static_cast<size_t>(c)], size = 1.0;
        for (int64_t i = 0; i < in; ++i) {
          const double term =
              double{x[static_cast<size_t>(r * step + before + i)]} * decoded[static_cast<size_t>(i)];
          want += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(all[static_cast<size_t>(r * out + c)], want, rounding * size)
            << name_of(dtype) << " " << r << ", " << c;
      }
    }
    for (const int64_t count : {1, 2, 8, 9, 16, 17, 64, 65}) {
      const Values few = host<float>(
          *gpu_, linear(*gpu_, rows.rows(kRows - count, count), there, floats(*gpu_, bias, {out})));
      ASSERT_TRUE(same_bits(few, std::span(all).subspan(static_cast<size_t>((kRows - count) * out))))
          << name_of(dtype) << ", " << count << " rows";
    }
  }
};

TEST_F(CudaLinear, EveryFormatAndRowCount) {
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype == DType::kI32 || dtype == DType::kU8) continue;
    check(dtype, traits(dtype).block == 256 ? 768 : 576, 101);
  }
  check(DType::kF32, 7, 3);
  check(DType::kBF16, 45, 1);
  check(DType::kBF16, 576, 64, false);
  check(DType::kBF16, 1544, 130, false);  // the last piece of a row is a part of one
  check(DType::kBF16, 8, 5, false);
  check(DType::kBF16, 64, 16384, false);  // few rows, some rows and many rows are three kernels here
}

TEST_F(CudaLinear, AGroupIsItsMembers) {
  const Tensor x = floats(*gpu_, normals(5 * 64), {5, 64});
  const std::vector<Tensor> weights{weight_of(DType::kQ4_1, 33, 64).to(*gpu_, Device::kCuda),
                                    weight_of(DType::kF16, 8, 64).to(*gpu_, Device::kCuda),
                                    weight_of(DType::kBF16, 70, 64).to(*gpu_, Device::kCuda),
                                    weight_of(DType::kBF16, 8, 64).to(*gpu_, Device::kCuda)};
  const std::vector<Tensor> biases{floats(*gpu_, normals(33), {33}), {}, {}, floats(*gpu_, normals(8), {8})};
  std::vector<Tensor> outputs(weights.size());
  linear_group(*gpu_, x, weights, biases, outputs);
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(same_bits(host<float>(*gpu_, outputs[i]),
                          host<float>(*gpu_, linear(*gpu_, x, weights[i], biases[i]))));
  }
  EXPECT_EQ(gpu_->counters().total().madds, 2u * 5 * 64 * (33 + 8 + 70 + 8));
}

TEST_F(Cuda, FaultsAppearAtTheNextCopyAndOnlyThere) {
  const Tensor table = Tensor::owned(Device::kCuda, DType::kF32, {10, 8});
  for (const int32_t id : {-1, 10}) {
    const Tensor out = embed(*gpu_, ints(*gpu_, {3, id}, {2}), table);
    EXPECT_THROW(host<float>(*gpu_, out), UserError);
    EXPECT_NO_THROW(host<float>(*gpu_, out));
  }
  for (const int32_t target : {-1, 8}) {
    const Tensor loss = cross_entropy(*gpu_, table, ints(*gpu_, {0, 1, 2, 3, target, 5, 6, 7, 0, 1}, {10}),
                                      floats(*gpu_, Values(10, 1.0f), {10}));
    EXPECT_THROW(host<float>(*gpu_, loss), UserError);
  }
  KvView kv = empty_cache(Device::kCuda, DType::kF32, 4, 1, 4, 1, 8);
  const Tensor rows = floats(*gpu_, normals(5 * 8), {5, 1, 8});
  KvPages page{ints(*gpu_, {0}, {1, 1}), Tensor::owned(Device::kCuda, DType::kI32, {1}), 4};
  append_kv(*gpu_, kv, page, rows, rows, RowSet::all(5), ints(*gpu_, {0, 1, 2, 3, 4}, {5}),
            ints(*gpu_, {0, 0, 0, 0, 0}, {5}));
  EXPECT_THROW(host<int32_t>(*gpu_, kv.lengths), UserError);
  EXPECT_EQ(host<int32_t>(*gpu_, kv.lengths), Ints{4});
}

// What only a build with CUDA has.
void multiply_on_gpu(Context& ctx, const CudaGemmArgs& args) {
  if constexpr (kHasCuda) cuda_gemm(ctx.cuda(), args);
}
int64_t present_on_gpu(Context& ctx, const Tensor& t) {
  if constexpr (kHasCuda) return present_rows(ctx.cuda(), t);
  return -1;
}
int64_t bound_on_gpu(Context& ctx, const Tensor& t) {
  if constexpr (kHasCuda) return bound(ctx.cuda(), t);
  return -1;
}

std::string message_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

struct GemmCase {
  GemmLayout layout;
  int64_t m, n, k;
  bool bf16;
  float alpha = 1.0f, beta = 0.0f;
  int64_t gap = 0;  // elements between rows
};

class CudaGemm : public Cuda {
 protected:
  // (rows, columns + gap) on the CPU, NaN in the gaps.
  Tensor matrix(int64_t rows, int64_t columns, int64_t gap, DType dtype) {
    Tensor out = Tensor::owned(Device::kCpu, dtype, {rows, columns + gap});
    for (int64_t r = 0; r < rows; ++r) {
      Values values = normals(columns);
      values.resize(static_cast<size_t>(columns + gap), NAN);
      encode_row(dtype, values.data(), out.data<std::byte>() + r * row_bytes(dtype, columns + gap),
                 columns + gap);
    }
    return out;
  }

  void check(const GemmCase& p) {
    const DType dtype = p.bf16 ? DType::kBF16 : DType::kF32;
    const bool a_turned = p.layout == GemmLayout::kTN, b_turned = p.layout == GemmLayout::kNT;
    const Tensor a = matrix(a_turned ? p.k : p.m, a_turned ? p.m : p.k, p.gap, dtype),
                 b = matrix(b_turned ? p.n : p.k, b_turned ? p.k : p.n, p.gap, dtype);
    Tensor c = matrix(p.m, p.n, p.gap, DType::kF32);
    if (p.beta == 0.0f) std::fill_n(c.data<float>(), c.numel(), NAN);
    const auto there = [&](const Tensor& t) { return t.to(*gpu_, Device::kCuda); };
    const Tensor a_there = there(a), b_there = there(b);
    Tensor c_there = there(c), again = there(c);
    for (Tensor* out : {&c_there, &again})
      multiply_on_gpu(*gpu_, {.layout = p.layout,
                              .m = p.m,
                              .n = p.n,
                              .k = p.k,
                              .a = {a_there.raw(), a.stride(0), p.bf16},
                              .b = {b_there.raw(), b.stride(0), p.bf16},
                              .c = out->raw(),
                              .c_stride = c.stride(0),
                              .alpha = p.alpha,
                              .beta = p.beta});
    gemm(cpu_.cpu(), cpu_,
         {.layout = p.layout,
          .precision = p.bf16 ? Precision::kBf16 : Precision::kF32,
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .a = {a.raw(), a.stride(0), p.bf16},
          .b = {b.raw(), b.stride(0), p.bf16},
          .c = c.data<float>(),
          .c_stride = c.stride(0),
          .alpha = p.alpha,
          .beta = p.beta});
    const Values got = host<float>(*gpu_, c_there);
    EXPECT_TRUE(same_bits(got, host<float>(*gpu_, again)));
    const double size = 1e-5 * std::sqrt(static_cast<double>(p.k) + 1.0);  // of a sum of normal numbers
    for (int64_t i = 0; i < c.numel(); ++i) {
      const float want = c.data<float>()[i], is = got[static_cast<size_t>(i)];
      if (std::isnan(want)) {  // between the rows
        ASSERT_TRUE(std::isnan(is)) << i;
      } else {
        ASSERT_NEAR(is, want, size) << "layout " << static_cast<int>(p.layout) << " bf16 " << p.bf16 << " m "
                                    << p.m << " n " << p.n << " k " << p.k << " gap " << p.gap << ", element "
                                    << i;
      }
    }
  }
};

TEST_F(CudaGemm, EveryLayoutAndType) {
  for (const GemmLayout layout : {GemmLayout::kNN, GemmLayout::kNT, GemmLayout::kTN}) {
    for (const bool bf16 : {false, true}) {
      check({layout, 128, 192, 256, bf16});
      check({layout, 128, 192, 256, bf16, 1.0f, 1.0f});
      check({layout, 5, 576, 1536, bf16, 0.5f, 2.0f});
      check({layout, 7, 3, 45, bf16});                   // nothing is aligned
      check({layout, 33, 17, 65, bf16, 1.0f, 1.0f, 3});  // and the strides are odd
      check({layout, 64, 64, 8192, bf16, 1.0f, 1.0f});   // a sum worth splitting
      check({layout, 1, 1, 1, bf16});
    }
  }
}

TEST_F(CudaGemm, NothingToMultiply) {
  for (const GemmLayout layout : {GemmLayout::kNN, GemmLayout::kNT, GemmLayout::kTN}) {
    for (const float beta : {0.0f, 1.0f, 0.5f}) check({layout, 5, 300, 0, false, 1.0f, beta, 3});
    check({layout, 0, 5, 7, true});
    check({layout, 5, 0, 7, false});
  }
}

// A product of training and its gradient: two weights, a bias on the first one.
struct TapedProduct {
  DType type = DType::kF32;
  bool frozen = false;
  int32_t present = 300;
  bool compacted = false, selected = false;  // selected: by a score instead of a given count
  int64_t rows = 300, in = 96;
  std::vector<int64_t> outs = {40, 65};
};

struct Taped {
  std::vector<Values> outputs, dw;
  Values dx, db;
  Work work;
};

class CudaTaped : public CudaLinear {
 protected:
  // The same operands for both devices.
  void make_operands(const TapedProduct& p) {
    x_ = normals(p.rows * p.in);
    if (p.compacted) std::fill(x_.begin() + p.present * p.in, x_.end(), NAN);
    weights_.clear();
    d_.clear();
    for (const int64_t out : p.outs) {
      weights_.push_back(weight_of(p.type, out, p.in));
      d_.push_back(normals(p.rows * out));
      if (p.compacted) std::fill(d_.back().begin() + p.present * out, d_.back().end(), NAN);
    }
    bias_ = normals(p.outs[0]);
  }

  Tensor count_of(Context& ctx, const TapedProduct& p) const {
    if (!p.selected) return ints(ctx, {p.present}, {1});
    Values score(static_cast<size_t>(p.rows));
    std::fill_n(score.begin(), p.present, 1.0f);
    const RowSet kept =
        select_rows(ctx, floats(ctx, score, {p.rows}), Compare::kAbove, floats(ctx, {0.0f}, {1}));
    return kept.count();
  }

  static void backward(Context& ctx) {
    const Tensor loss = floats(ctx, {0.0f}, {1}).with_gradient(std::make_shared<Gradient>());
    ctx.tape()->backward(ctx, loss);
  }

  Taped run(Context& ctx, const TapedProduct& p) const {
    Tape tape(ctx.device());
    const TapeScope recording(ctx, tape);
    const Work before = ctx.counters().total();
    Tensor x = floats(ctx, x_, {p.rows, p.in});
    if (p.compacted) x = x.counted_by(count_of(ctx, p));
    x = x.with_gradient(std::make_shared<Gradient>());
    std::vector<Tensor> weights, dw, biases(p.outs.size()), outputs(p.outs.size());
    Tensor db = Tensor::owned(ctx.device(), DType::kF32, {p.outs[0]});
    for (const Tensor& weight : weights_) {
      dw.push_back(Tensor::owned(ctx.device(), DType::kF32, weight.shape()));
      const Tensor there = weight.to(ctx, ctx.device());
      weights.push_back(p.frozen ? there : parameter(there, dw.back()));
    }
    biases[0] = parameter(floats(ctx, bias_, {p.outs[0]}), db);
    linear_group(ctx, x, weights, biases, outputs);
    Taped result;
    for (size_t i = 0; i < outputs.size(); ++i) {
      result.outputs.push_back(host<float>(ctx, outputs[i].rows(0, p.present)));
      accumulate(ctx, outputs[i], floats(ctx, d_[i], outputs[i].shape()).counted_like(outputs[i]));
    }
    backward(ctx);
    result.dx = host<float>(ctx, x.gradient()->value.rows(0, p.present));
    result.db = host<float>(ctx, db);
    for (const Tensor& sum : dw) result.dw.push_back(host<float>(ctx, sum));
    result.work = ctx.counters().total() - before;
    return result;
  }

  static void expect_close(const Values& got, const Values& want, double tolerance, const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], tolerance * (1.0 + std::abs(want[i]))) << what << ", element " << i;
  }

  void check(const TapedProduct& p) {
    make_operands(p);
    const Taped got = run(*gpu_, p), again = run(*gpu_, p), want = run(cpu_, p);
    const std::string what = std::string(name_of(p.type)) + ", " + std::to_string(p.present) + " rows, ";
    // The CPU's quantised products round x, the GPU's do not.
    const double forward = is_block_format(p.type) ? 0.1 : 1e-4;
    for (size_t i = 0; i < p.outs.size(); ++i) {
      expect_close(got.outputs[i], want.outputs[i], forward, what + "y");
      expect_close(got.dw[i], want.dw[i], 1e-4, what + "dW");
      EXPECT_TRUE(same_bits(got.dw[i], again.dw[i])) << what;
    }
    expect_close(got.dx, want.dx, 1e-4, what + "dx");
    expect_close(got.db, want.db, 1e-4, what + "db");
    EXPECT_TRUE(same_bits(got.dx, again.dx) && same_bits(got.db, again.db)) << what;
    EXPECT_EQ(got.work.madds, want.work.madds) << what;
    EXPECT_EQ(got.work.weight_bytes, want.work.weight_bytes) << what;
  }

  Values x_, bias_;
  std::vector<Tensor> weights_;
  std::vector<Values> d_;
};

TEST_F(CudaTaped, GradientsAreTheCpus) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    check({.type = type});
    check({.type = type, .frozen = true});
    check({.type = type, .present = 1, .rows = 1});
  }
}

TEST_F(CudaTaped, OfCompactedRowsOnlyThoseThatAreThereCount) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int32_t present : {0, 1, 127, 128, 129, 299, 300}) {
      check({.type = type, .present = present, .compacted = true});
      check({.type = type, .present = present, .compacted = true, .selected = true});
    }
    check({.type = type, .present = 77, .compacted = true, .rows = 1000, .in = 45});
  }
}

TEST_F(CudaTaped, ProductsOfAFewOutputs) {
  for (const int64_t width : {2, 45, 96, 576}) {
    check({.present = 1000, .rows = 1000, .in = width, .outs = {1}});
    check({.present = 1000, .rows = 1000, .in = width, .outs = {2, 1}});
    check({.present = 129, .compacted = true, .selected = true, .in = width, .outs = {2}});
    check({.present = 0, .compacted = true, .in = width, .outs = {1, 40}});
  }
}

TEST_F(CudaTaped, FrozenQuantisedWeights) {
  for (const DType type : {DType::kQ4_0, DType::kQ8_0, DType::kF16}) {
    check({.type = type, .frozen = true});
    check({.type = type, .frozen = true, .present = 130, .compacted = true, .selected = true});
  }
}

TEST_F(CudaTaped, AFrozenQuantisedProductIsThatOfInference) {
  make_operands({.type = DType::kQ4_0});
  const Tensor x = floats(*gpu_, x_, {300, 96}), weight = weights_[0].to(*gpu_, Device::kCuda);
  const Values plain = host<float>(*gpu_, linear(*gpu_, x, weight));
  Tape tape(Device::kCuda);
  const TapeScope recording(*gpu_, tape);
  EXPECT_TRUE(same_bits(host<float>(*gpu_, linear(*gpu_, x, weight)), plain));
}

class CudaCounts : public Cuda {
 protected:
  // The first `count` of `rows` rows.
  RowSet first_rows(Context& ctx, int64_t rows, int64_t count) {
    Values score(static_cast<size_t>(rows));
    std::fill_n(score.begin(), count, 1.0f);
    return select_rows(ctx, floats(ctx, score, {rows}), Compare::kAbove, floats(ctx, {0.5f}, {1}));
  }
};

TEST_F(CudaCounts, TheHostLearnsHowManyRowsThereAre) {
  const Tensor x = floats(*gpu_, normals(300 * 8), {300, 8});
  EXPECT_EQ(bound_on_gpu(*gpu_, x), 300);
  for (const auto& [count, rounded] : std::vector<std::pair<int32_t, int64_t>>{
           {0, 0}, {1, 128}, {128, 128}, {129, 256}, {256, 256}, {257, 300}, {300, 300}}) {
    const RowSet kept = first_rows(*gpu_, 300, count);
    const Tensor others = gather_rows(*gpu_, x, complement(*gpu_, kept, 300));
    for (const Tensor& counted : {x.counted_by(kept.count()), x.counted_by(ints(*gpu_, {count}, {1})),
                                  x.counted_by(known_count(*gpu_, count)), gather_rows(*gpu_, x, kept)}) {
      EXPECT_EQ(present_on_gpu(*gpu_, counted), count);
      EXPECT_EQ(bound_on_gpu(*gpu_, counted), rounded);
    }
    EXPECT_EQ(present_on_gpu(*gpu_, others), 300 - count);
    EXPECT_EQ(host<int32_t>(*gpu_, kept.count()), Ints{count});
    EXPECT_EQ(host<int32_t>(*gpu_, known_count(*gpu_, count)), Ints{count});
  }
}

// Slots are handed out again while the selections that wrote them before are still queued.
TEST_F(CudaCounts, ASlotsEarlierSelectionIsNotMistakenForItsNext) {
  const ArenaScope scope(*gpu_);
  const Tensor x = floats(*gpu_, normals(64 * 8), {64, 8}), half = floats(*gpu_, {0.5f}, {1});
  std::vector<Tensor> scores;
  for (int64_t count = 0; count <= 64; ++count) {
    Values score(64);
    std::fill_n(score.begin(), count, 1.0f);
    scores.push_back(floats(*gpu_, score, {64}));
  }
  std::vector<RowSet> held;
  for (int i = 0; i < 10000; ++i) {
    const ArenaScope step(*gpu_);
    const auto count = static_cast<size_t>(i * 7 % 65);
    RowSet kept = select_rows(*gpu_, scores[count], Compare::kAbove, half);
    if (i % 50 == 0) {
      EXPECT_EQ(present_on_gpu(*gpu_, x.counted_by(kept.count())), static_cast<int64_t>(count)) << i;
    } else if (i % 2 == 0) {
      held.push_back(std::move(kept));  // more than one page of slots
    }
  }
  for (size_t i = 0, at = 0; i < 10000; i += 2) {
    if (i % 50 == 0) continue;
    EXPECT_EQ(present_on_gpu(*gpu_, x.counted_by(held[at++].count())), static_cast<int64_t>(i * 7 % 65)) << i;
  }
}

TEST_F(CudaCounts, WorkOnCompactedRowsIsCountedAsOnTheCpu) {
  const Values x = normals(50 * 64), w = normals(33 * 64);
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{20}, int64_t{50}}) {
    const auto run = [&](Context& ctx) {
      const ArenaScope scope(ctx);
      const Work before = ctx.counters().total();
      const Tensor rows = floats(ctx, x, {50, 64}), weight = floats(ctx, w, {33, 64});
      const Tensor some = gather_rows(ctx, rows, first_rows(ctx, 50, count));
      linear(ctx, some, weight);
      {
        const PolicyWork deciding(ctx.counters());
        linear(ctx, some, weight);
        linear(ctx, rows, weight);
      }
      return ctx.counters().total() - before;
    };
    const Work got = run(*gpu_), want = run(cpu_);
    EXPECT_EQ(got.madds, want.madds) << count;
    EXPECT_EQ(got.policy_madds, want.policy_madds) << count;
    EXPECT_EQ(got.weight_bytes, want.weight_bytes) << count;
  }
}

TEST_F(Cuda, MemoryIsZeroedAgainAndTooMuchIsAnError) {
  constexpr int64_t kBytes = int64_t{8} << 20;
  for (int i = 0; i < 3; ++i) {
    Tensor memory = Tensor::owned(Device::kCuda, DType::kU8, {kBytes});
    const std::vector<std::byte> bytes = bytes_of(*gpu_, memory);
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0}), kBytes);
    Tensor other = Tensor::owned(Device::kCpu, DType::kU8, {kBytes});
    std::memset(other.raw(), 0xff, static_cast<size_t>(kBytes));
    other.to(*gpu_, Device::kCuda);
  }
  const std::string message =
      message_of([] { Tensor::owned(Device::kCuda, DType::kU8, {int64_t{1} << 46}); });
  EXPECT_EQ(message.find("out of GPU memory: 65536.0 GiB wanted, "), 0u) << message;
  EXPECT_NE(message.find("iB are free; lower batch or context, or set recompute"), std::string::npos)
      << message;
  EXPECT_EQ(bytes_of(*gpu_, Tensor::owned(Device::kCuda, DType::kU8, {1})), std::vector{std::byte{0}});
}

TEST_F(Cuda, AGpuThatIsNotThereIsAnError) {
  for (const int index : {-1, 4711}) {
    const std::string message =
        message_of([&] { Context ctx({.device = Device::kCuda, .threads = 1, .device_index = index}); });
    EXPECT_EQ(message.find("cuda:" + std::to_string(index) + ": there "), 0u) << message;
  }
}

}  // namespace
}  // namespace fathom
