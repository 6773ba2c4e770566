// The view that attention() reads, and the gradient by f32 products of blocks. A unit of work is one head of
// one sequence; its queries are taken some at a time against all keys that they see, and their scores are
// computed again, so no more than a strip of them exists at once. A unit is computed by one thread: what the
// heads of a group give to their shared keys and values is kept apart and summed in the heads' order.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "base/format.h"
#include "ops/attention/self_attention_kernel.h"
#include "ops/kernels/row_access.h"
#include "ops/linear/gemm.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// Rows in groups, one per sequence, order kept within one.
struct Grouped {
  std::vector<int32_t> starts;  // (sequences + 1)
  std::vector<int32_t> rows;    // places in the compacted tensor
  int64_t size(int64_t s) const {
    return starts[static_cast<size_t>(s) + 1] - starts[static_cast<size_t>(s)];
  }
  const int32_t* of(int64_t s) const { return rows.data() + starts[static_cast<size_t>(s)]; }
};

Grouped group_by_sequence(const KeptRows& kept, const int32_t* sequence, int64_t sequences) {
  Grouped out{std::vector<int32_t>(static_cast<size_t>(sequences) + 2),
              std::vector<int32_t>(static_cast<size_t>(kept.count))};
  // starts[s + 1] first counts sequence s - 1's end, and has moved to its own end once the rows are placed.
  for (int64_t i = 0; i < kept.count; ++i) ++out.starts[static_cast<size_t>(sequence[kept[i]]) + 2];
  for (size_t s = 1; s < out.starts.size(); ++s) out.starts[s] += out.starts[s - 1];
  for (int64_t i = 0; i < kept.count; ++i)
    out.rows[static_cast<size_t>(out.starts[static_cast<size_t>(sequence[kept[i]]) + 1]++)] =
        static_cast<int32_t>(i);
  out.starts.pop_back();
  return out;
}

// Who is where, and which of its sequence's keys each query sees: [begin, end).
struct Scene {
  Scene(const SelfAttentionCall& call);
  KeptRows queries, keys;
  int64_t sequences = 0;
  Grouped query_groups, key_groups;
  std::vector<int32_t> key_positions;  // in the order of key_groups.rows
  std::vector<int32_t> begin, end;     // in the order of query_groups.rows
  int64_t pairs = 0;
};

int64_t count_sequences(const KeptRows& kept, const int32_t* sequence) {
  int32_t last = -1;
  for (int64_t i = 0; i < kept.count; ++i) {
    if (sequence[kept[i]] < 0) fail("self_attention: sequence must be at least 0, got {}", sequence[kept[i]]);
    last = std::max(last, sequence[kept[i]]);
  }
  return last + 1;
}

Scene::Scene(const SelfAttentionCall& call) : queries(call.queries), keys(call.keys) {
  const auto *sequence = call.sequence.data<int32_t>(), *positions = call.positions.data<int32_t>();
  sequences = std::max(count_sequences(queries, sequence), count_sequences(keys, sequence));
  query_groups = group_by_sequence(queries, sequence, sequences);
  key_groups = group_by_sequence(keys, sequence, sequences);
  for (const int32_t row : key_groups.rows) key_positions.push_back(positions[keys[row]]);
  for (int64_t s = 0; s < sequences; ++s) {
    const int32_t* first = key_positions.data() + key_groups.starts[static_cast<size_t>(s)];
    const int32_t* last = first + key_groups.size(s);
    if (!std::is_sorted(first, last)) fail("self_attention: rows of sequence {} are not in order", s);
    const auto first_above = [&](int64_t limit) {
      return static_cast<int32_t>(std::upper_bound(first, last, limit) - first);
    };
    for (int64_t i = 0; i < query_groups.size(s); ++i) {
      const int64_t position = positions[queries[query_groups.of(s)[i]]];
      end.push_back(first_above(position));
      begin.push_back(call.params.window > 0 ? first_above(position - call.params.window) : 0);
      pairs += end.back() - begin.back();
    }
  }
}

// One head's rows of a (rows, heads, dim) tensor, dense.
void gather(const Tensor& from, const int32_t* rows, int64_t count, int64_t head, float* to) {
  const int64_t dim = from.dim(2), step = from.dim(1) * dim;
  for (int64_t i = 0; i < count; ++i)
    std::copy_n(from.data<float>() + rows[i] * step + head * dim, dim, to + i * dim);
}

void scatter(const float* from, const int32_t* rows, int64_t count, int64_t head, Tensor& to) {
  const int64_t dim = to.dim(2), step = to.dim(1) * dim;
  for (int64_t i = 0; i < count; ++i)
    std::copy_n(from + i * dim, dim, to.data<float>() + rows[i] * step + head * dim);
}

float* arena_floats(Context& ctx, int64_t n) {
  return static_cast<float*>(ctx.arena().allocate(static_cast<size_t>(n) * sizeof(float)));
}

constexpr int64_t kStrip = 64;  // queries taken together

// What one thread needs. Keys: of one sequence and head; strips: of some queries and the keys they see.
struct Workspace {
  static int64_t floats(int64_t dim, int64_t keys) {
    return 2 * keys * (dim + 1) + 3 * kStrip * (dim + keys);
  }
  Workspace(float* memory, void* room, int64_t dim, int64_t keys)
      : k(memory),
        v(k + keys * dim),
        bias(v + keys * dim),
        d_bias(bias + keys),
        q(d_bias + keys),
        d(q + kStrip * dim),
        dq(d + kStrip * dim),
        p(dq + kStrip * dim),
        dp(p + kStrip * keys),
        slope(dp + kStrip * keys),
        panels(room) {}
  float *k, *v;           // (keys, dim)
  float *bias, *d_bias;   // (keys)
  float *q, *d, *dq;      // (kStrip, dim); d: the output's gradient
  float *p, *dp, *slope;  // (kStrip, keys)
  void* panels;           // gemm_in_thread()'s
};

class SelfAttention {
 public:
  SelfAttention(CpuBackend dev, Context& ctx, const SelfAttentionCall& call, const Scene& scene)
      : dev_(dev),
        ctx_(ctx),
        kernels_(row_kernels(dev.isa)),
        call_(call),
        scene_(scene),
        heads_(call.q.dim(1)),
        dim_(call.q.dim(2)),
        group_(heads_ / call.k.dim(1)) {}

  // work(sequence, head, workspace) for every unit, by whoever is free.
  template <class Work>
  void for_units(Work&& work) const {
    int64_t most = 0;
    for (int64_t s = 0; s < scene_.sequences; ++s) most = std::max(most, scene_.key_groups.size(s));
    const int64_t units = scene_.sequences * heads_, floats = Workspace::floats(dim_, most);
    const auto panels = [&](int64_t m, int64_t n, int64_t k) {
      return gemm_scratch_bytes(dev_.isa, Precision::kF32, m, n, k);
    };
    // The products of a strip: scores, dq; dk and dv.
    const int64_t bytes = std::max(
        {panels(kStrip, most, dim_), panels(kStrip, dim_, most), panels(most, dim_, kStrip), int64_t{64}});
    float* memory = arena_floats(ctx_, floats * dev_.pool.threads());
    auto* room =
        static_cast<std::byte*>(ctx_.arena().allocate(static_cast<size_t>(bytes * dev_.pool.threads())));
    std::atomic<int64_t> next{0};
    dev_.pool.run([&](int thread) {
      Workspace space(memory + floats * thread, room + bytes * thread, dim_, most);
      for (int64_t unit = next++; unit < units; unit = next++) work(unit / heads_, unit % heads_, space);
    });
  }

  // dk, dv (heads, keys, dim) and d_bias (heads, keys): what this head gives, in the order of the key groups;
  // null: not wanted. dq goes where it belongs.
  struct HeadGradients {
    Tensor q;
    float *k, *v, *bias;
    bool scores() const { return q || k || bias; }
  };
  void backward(int64_t s, int64_t head, Workspace& work, const Tensor& d, HeadGradients to) const;

 private:
  // Queries [first, last) of a sequence and the keys [low, high) that some of them see.
  struct Strip {
    int64_t first, last, low, high;
    int64_t count() const { return last - first; }
    int64_t width() const { return high - low; }
  };
  Strip strip(int64_t s, int64_t first) const;
  // c (m, n) = alpha · product + beta · c. The factors are dense.
  void product(GemmLayout layout, int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c,
               float alpha, float beta, Workspace& work) const {
    gemm_in_thread(dev_.isa,
                   {.layout = layout,
                    .precision = Precision::kF32,
                    .m = m,
                    .n = n,
                    .k = k,
                    .a = {a, layout == GemmLayout::kTN ? m : k, false},
                    .b = {b, layout == GemmLayout::kNT ? k : n, false},
                    .c = c,
                    .c_stride = n,
                    .alpha = alpha,
                    .beta = beta},
                   work.panels);
  }
  void open(int64_t s, int64_t head, Workspace& work) const;
  void probabilities(int64_t s, const Strip& strip, Workspace& work) const;
  void score_gradients(int64_t s, const Strip& strip, Workspace& work) const;
  int32_t begin(int64_t s, int64_t i) const { return scene_.begin[at(s, i)]; }
  int32_t end(int64_t s, int64_t i) const { return scene_.end[at(s, i)]; }
  size_t at(int64_t s, int64_t i) const {
    return static_cast<size_t>(scene_.query_groups.starts[static_cast<size_t>(s)] + i);
  }

  CpuBackend dev_;
  Context& ctx_;
  const RowKernels& kernels_;
  const SelfAttentionCall& call_;
  const Scene& scene_;
  int64_t heads_, dim_, group_;
};

SelfAttention::Strip SelfAttention::strip(int64_t s, int64_t first) const {
  Strip out{first, std::min(first + kStrip, scene_.query_groups.size(s)), INT64_MAX, 0};
  for (int64_t i = first; i < out.last; ++i) {
    if (begin(s, i) == end(s, i)) continue;
    out.low = std::min<int64_t>(out.low, begin(s, i));
    out.high = std::max<int64_t>(out.high, end(s, i));
  }
  out.low = std::min(out.low, out.high);
  return out;
}

void SelfAttention::open(int64_t s, int64_t head, Workspace& work) const {
  const int64_t count = scene_.key_groups.size(s);
  const int32_t* rows = scene_.key_groups.of(s);
  gather(call_.k, rows, count, head / group_, work.k);
  gather(call_.v, rows, count, head / group_, work.v);
  for (int64_t i = 0; i < count && call_.key_bias; ++i)
    work.bias[i] = call_.key_bias.data<float>()[scene_.keys[rows[i]]];
}

// p = softmax of the strip's scores, zero where a key is not seen. With a soft cap, slope = d logit / d
// score.
void SelfAttention::probabilities(int64_t s, const Strip& strip, Workspace& work) const {
  const int64_t width = strip.width();
  const float scale = call_.params.scale, cap = call_.params.soft_cap;
  product(GemmLayout::kNT, strip.count(), width, dim_, work.q, work.k + strip.low * dim_, work.p, scale, 0.0f,
          work);
  for (int64_t i = 0; i < strip.count(); ++i) {
    const int64_t from = begin(s, strip.first + i) - strip.low, to = end(s, strip.first + i) - strip.low;
    float* p = work.p + i * width;
    if (from == to) {
      std::fill_n(p, width, 0.0f);
      continue;
    }
    const int64_t seen = to - from;
    if (cap > 0) {
      kernels_.soft_cap(p + from, p + from, seen, cap);
      float* slope = work.slope + i * width;
      for (int64_t j = from; j < to; ++j) slope[j] = 1.0f - (p[j] / cap) * (p[j] / cap);
    }
    const float* bias = work.bias + strip.low;
    for (int64_t j = from; call_.key_bias && j < to; ++j) p[j] += bias[j];
    const float largest = kernels_.max(p + from, seen);
    std::fill(p, p + from, 0.0f);
    std::fill(p + to, p + width, 0.0f);
    if (largest == kHidden) {
      std::fill(p + from, p + to, 0.0f);
      continue;
    }
    kernels_.exp_less(p + from, largest, p + from, seen);
    const float total = 1.0f / kernels_.sum(p + from, seen);
    for (int64_t j = from; j < to; ++j) p[j] *= total;
  }
}

// dp = d loss / d p -> d loss / d (scale · q·k), in place; what goes to the key's bias is added on the way.
void SelfAttention::score_gradients(int64_t s, const Strip& strip, Workspace& work) const {
  const int64_t width = strip.width();
  for (int64_t i = 0; i < strip.count(); ++i) {
    const int64_t from = begin(s, strip.first + i) - strip.low, to = end(s, strip.first + i) - strip.low;
    const float *p = work.p + i * width, *slope = work.slope + i * width;
    float *dp = work.dp + i * width, *d_bias = work.d_bias + strip.low;
    const float mean = kernels_.dot(p + from, dp + from, to - from);
    std::fill(dp, dp + from, 0.0f);
    std::fill(dp + to, dp + width, 0.0f);
    for (int64_t j = from; j < to; ++j) dp[j] = p[j] * (dp[j] - mean);
    for (int64_t j = from; call_.key_bias && j < to; ++j) d_bias[j] += dp[j];
    for (int64_t j = from; call_.params.soft_cap > 0 && j < to; ++j) dp[j] *= slope[j];
  }
}

void SelfAttention::backward(int64_t s, int64_t head, Workspace& work, const Tensor& d,
                             HeadGradients to) const {
  const int64_t count = scene_.query_groups.size(s), keys = scene_.key_groups.size(s);
  const int64_t place = head * scene_.keys.count + scene_.key_groups.starts[static_cast<size_t>(s)];
  const int32_t* rows = scene_.query_groups.of(s);
  open(s, head, work);
  float* dk = to.k ? to.k + place * dim_ : nullptr;
  float* dv = to.v ? to.v + place * dim_ : nullptr;
  if (dk) std::fill_n(dk, keys * dim_, 0.0f);
  if (dv) std::fill_n(dv, keys * dim_, 0.0f);
  std::fill_n(work.d_bias, keys, 0.0f);
  for (int64_t first = 0; first < count; first += kStrip) {
    const Strip part = strip(s, first);
    const int64_t n = part.count(), width = part.width();
    std::fill_n(work.dq, n * dim_, 0.0f);
    if (width > 0) {
      gather(call_.q, rows + first, n, head, work.q);
      gather(d, rows + first, n, head, work.d);
      const float *k = work.k + part.low * dim_, *v = work.v + part.low * dim_;
      probabilities(s, part, work);
      if (dv)
        product(GemmLayout::kTN, width, dim_, n, work.p, work.d, dv + part.low * dim_, 1.0f, 1.0f, work);
      if (to.scores()) {
        product(GemmLayout::kNT, n, width, dim_, work.d, v, work.dp, 1.0f, 0.0f, work);
        score_gradients(s, part, work);
      }
      if (dk)
        product(GemmLayout::kTN, width, dim_, n, work.dp, work.q, dk + part.low * dim_, call_.params.scale,
                1.0f, work);
      if (to.q) product(GemmLayout::kNN, n, dim_, width, work.dp, k, work.dq, call_.params.scale, 0.0f, work);
    }
    if (to.q) scatter(work.dq, rows + first, n, head, to.q);
  }
  if (to.bias) std::copy_n(work.d_bias, keys, to.bias + place);
}

// to (keys, kv_heads, dim) = Σ over the heads of each group, in order. from: (heads, keys, dim), keys in the
// order of `rows`.
void sum_groups(ThreadPool& pool, const float* from, const std::vector<int32_t>& rows, int64_t heads,
                Tensor& to) {
  const auto keys = static_cast<int64_t>(rows.size());
  const int64_t kv_heads = to.dim(1), dim = to.dim(2), group = heads / kv_heads;
  pool.parallel_for(keys, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t head = 0; head < heads; ++head) {
        const float* part = from + (head * keys + i) * dim;
        float* sum = to.data<float>() + (rows[static_cast<size_t>(i)] * kv_heads + head / group) * dim;
        if (head % group == 0)
          std::copy_n(part, dim, sum);
        else
          for (int64_t j = 0; j < dim; ++j) sum[j] += part[j];
      }
    }
  });
}

// The keys as attention() reads them.
KvView view_of(Context& ctx, const SelfAttentionCall& call) {
  const Scene scene(call);
  const int64_t sequences = std::max<int64_t>(1, scene.sequences);
  int64_t capacity = 1;
  for (int64_t s = 0; s < scene.sequences; ++s) capacity = std::max(capacity, scene.key_groups.size(s));
  KvView kv{call.k,
            call.v,
            Tensor::empty(ctx, DType::kI32, {sequences, capacity}),
            Tensor::empty(ctx, DType::kI32, {sequences, capacity}),
            Tensor::empty(ctx, DType::kI32, {sequences}),
            {}};
  if (call.key_bias) kv.bias = Tensor::empty(ctx, DType::kF32, {sequences, capacity});
  kv.lengths.data<int32_t>()[0] = 0;
  for (int64_t s = 0; s < scene.sequences; ++s) {
    const int64_t count = scene.key_groups.size(s), at = s * capacity;
    const int32_t* rows = scene.key_groups.of(s);
    kv.lengths.data<int32_t>()[s] = static_cast<int32_t>(count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = scene.keys[rows[i]];
      kv.entries.data<int32_t>()[at + i] = rows[i];
      kv.positions.data<int32_t>()[at + i] = call.positions.data<int32_t>()[row];
      if (kv.bias) kv.bias.data<float>()[at + i] = call.key_bias.data<float>()[row];
    }
  }
  return kv;
}

}  // namespace

Tensor self_attention_kernel(CpuBackend, Context& ctx, const SelfAttentionCall& call, bool,
                             SelfAttentionKept&) {
  return attention(ctx, call.q, view_of(ctx, call), call.queries, call.positions, call.sequence, call.params);
}

void self_attention_gradient_kernel(CpuBackend dev, Context& ctx, const SelfAttentionCall& call,
                                    const SelfAttentionKept&, const Tensor& d,
                                    SelfAttentionGradients& gradients) {
  const Scene scene(call);
  const int64_t heads = call.q.dim(1), dim = call.q.dim(2), keys = scene.keys.count;
  const ArenaScope scope(ctx);
  float* dk = gradients.k ? arena_floats(ctx, heads * keys * dim) : nullptr;
  float* dv = gradients.v ? arena_floats(ctx, heads * keys * dim) : nullptr;
  float* d_bias = gradients.key_bias ? arena_floats(ctx, heads * keys) : nullptr;
  const Tensor d_by_head = d.reshape(call.q.shape());
  const SelfAttention self(dev, ctx, call, scene);
  const SelfAttention::HeadGradients parts{gradients.q, dk, dv, d_bias};
  const int64_t products = 1 + parts.scores() + gradients.q.defined() + (dk != nullptr) + (dv != nullptr);
  dev.counters.add({.madds = static_cast<uint64_t>(scene.pairs * heads * dim * products)});
  self.for_units(
      [&](int64_t s, int64_t head, Workspace& work) { self.backward(s, head, work, d_by_head, parts); });
  if (gradients.k) sum_groups(dev.pool, dk, scene.key_groups.rows, heads, gradients.k);
  if (gradients.v) sum_groups(dev.pool, dv, scene.key_groups.rows, heads, gradients.v);
  if (!gradients.key_bias) return;
  float* bias = gradients.key_bias.data<float>();
  std::fill_n(bias, gradients.key_bias.numel(), 0.0f);
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < keys; ++i)
      bias[scene.keys[scene.key_groups.rows[static_cast<size_t>(i)]]] += d_bias[head * keys + i];
  }
}

}  // namespace fathom
