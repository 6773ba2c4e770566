// The source of every RowKernels table; included once by each row_kernels_<isa>.cc.
#pragma once

#include "ops/kernels/row_kernels.h"
#include "ops/kernels/simd_math.h"

namespace fathom {
namespace {

// The last elements of a row go through zero-padded copies, so that they see the same arithmetic as the
// others.
struct Padded {
  float lane[8] = {};
  Padded(const float* from, int64_t count) {
    for (int64_t i = 0; i < count; ++i) lane[i] = from[i];
  }
};

inline void store_first(float* to, F8 value, int64_t count) {
  float lane[8];
  store(lane, value);
  for (int64_t i = 0; i < count; ++i) to[i] = lane[i];
}

template <class Fn>
void map1(const float* x, float* out, int64_t n, Fn fn) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store(out + i, fn(load(x + i)));
  if (i < n) store_first(out + i, fn(load(Padded(x + i, n - i).lane)), n - i);
}

template <class Fn>
void map2(const float* a, const float* b, float* out, int64_t n, Fn fn) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store(out + i, fn(load(a + i), load(b + i)));
  if (i < n)
    store_first(out + i, fn(load(Padded(a + i, n - i).lane), load(Padded(b + i, n - i).lane)), n - i);
}

template <class Fn>
void map3(const float* a, const float* b, const float* c, float* out, int64_t n, Fn fn) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store(out + i, fn(load(a + i), load(b + i), load(c + i)));
  if (i == n) return;
  const int64_t rest = n - i;
  store_first(
      out + i,
      fn(load(Padded(a + i, rest).lane), load(Padded(b + i, rest).lane), load(Padded(c + i, rest).lane)),
      rest);
}

// Σ over i: add_to(read, sum) adds eight terms, read(x) being eight elements of x. Element i goes to
// accumulator (i / 8) mod 4, lane i mod 8.
template <class Fn>
float sum_of(int64_t n, Fn add_to) {
  F8 sum[4] = {broadcast(0.0f), broadcast(0.0f), broadcast(0.0f), broadcast(0.0f)};
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    FATHOM_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int64_t at = i + 8 * j;
      sum[j] = add_to([at](const float* x) { return load(x + at); }, sum[j]);
    }
  }
  for (int j = 0; i < n; i += 8, ++j) {
    sum[j] = i + 8 <= n ? add_to([i](const float* x) { return load(x + i); }, sum[j])
                        : add_to([i, n](const float* x) { return load(Padded(x + i, n - i).lane); }, sum[j]);
  }
  return sum_lanes(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

float sum_row(const float* x, int64_t n) {
  return sum_of(n, [x](auto read, F8 sum) { return add(sum, read(x)); });
}

float dot(const float* a, const float* b, int64_t n) {
  return sum_of(n, [a, b](auto read, F8 sum) { return fma(read(a), read(b), sum); });
}

float sum_of_squares(const float* x, int64_t n) {
  return sum_of(n, [x](auto read, F8 sum) {
    const F8 v = read(x);
    return fma(v, v, sum);
  });
}

void rms_norm(const float* x, const float* weight, float* out, int64_t n, float eps, float offset) {
  const float mean = sum_of_squares(x, n) / static_cast<float>(n);
  const F8 inverse = broadcast(1.0f / __builtin_sqrtf(mean + eps)), more = broadcast(offset);
  map2(x, weight, out, n, [&](F8 v, F8 w) { return mul(mul(v, inverse), add(w, more)); });
}

// With w = weight + offset and i = 1 / sqrt(mean(x²) + eps): dx = i · w · d − x · i³ / n · Σ w d x.
void rms_norm_gradient(const float* x, const float* weight, const float* d, float* dx, int64_t n, float eps,
                       float offset) {
  const float count = static_cast<float>(n),
              inverse = 1.0f / __builtin_sqrtf(sum_of_squares(x, n) / count + eps);
  const F8 more = broadcast(offset);
  const float along =
      sum_of(n, [&](auto read, F8 sum) { return fma(mul(add(read(weight), more), read(d)), read(x), sum); });
  const F8 i = broadcast(inverse), back = broadcast(-along / count * inverse * inverse * inverse);
  map3(x, weight, d, dx, n, [&](F8 v, F8 w, F8 g) { return fma(v, back, mul(mul(g, add(w, more)), i)); });
}

void silu_product(const float* gate, const float* up, float* out, int64_t n) {
  const F8 one = broadcast(1.0f), zero = broadcast(0.0f);
  map2(gate, up, out, n, [&](F8 g, F8 u) { return mul(div(g, add(one, exp(sub(zero, g)))), u); });
}

// GELU's tanh form: g / 2 · (1 + tanh(√(2/π) (g + 0.044715 g³)))
void gelu_product(const float* gate, const float* up, float* out, int64_t n) {
  const F8 one = broadcast(1.0f), half = broadcast(0.5f), cubic = broadcast(0.044715f),
           root = broadcast(0.797884561f);
  map2(gate, up, out, n, [&](F8 g, F8 u) {
    const F8 inner = mul(root, fma(mul(mul(g, g), g), cubic, g));
    return mul(mul(mul(half, g), add(one, tanh(inner))), u);
  });
}

// both(gate, up, d, &d_gate, &d_up), eight at a time.
template <class Fn>
void product_gradient(const float* gate, const float* up, const float* d, float* d_gate, float* d_up,
                      int64_t n, Fn both) {
  F8 first, second;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    both(load(gate + i), load(up + i), load(d + i), &first, &second);
    store(d_gate + i, first);
    store(d_up + i, second);
  }
  if (i == n) return;
  const int64_t rest = n - i;
  both(load(Padded(gate + i, rest).lane), load(Padded(up + i, rest).lane), load(Padded(d + i, rest).lane),
       &first, &second);
  store_first(d_gate + i, first, rest);
  store_first(d_up + i, second, rest);
}

// silu(g) = g σ, silu'(g) = σ (1 + g (1 − σ))
void silu_product_gradient(const float* gate, const float* up, const float* d, float* d_gate, float* d_up,
                           int64_t n) {
  const F8 one = broadcast(1.0f), zero = broadcast(0.0f);
  product_gradient(gate, up, d, d_gate, d_up, n, [&](F8 g, F8 u, F8 v, F8* dg, F8* du) {
    const F8 s = div(one, add(one, exp(sub(zero, g))));
    *du = mul(v, mul(g, s));
    *dg = mul(mul(v, u), mul(s, fma(g, sub(one, s), one)));
  });
}

// With t = tanh(inner): ½ (1 + t) + ½ g (1 − t²) inner', where 1 − t² is 0 long before |g| = 16.
void gelu_product_gradient(const float* gate, const float* up, const float* d, float* d_gate, float* d_up,
                           int64_t n) {
  const F8 one = broadcast(1.0f), half = broadcast(0.5f), cubic = broadcast(0.044715f),
           root = broadcast(0.797884561f), three = broadcast(0.134145f), most = broadcast(16.0f),
           least = broadcast(-16.0f);
  product_gradient(gate, up, d, d_gate, d_up, n, [&](F8 g, F8 u, F8 v, F8* dg, F8* du) {
    const F8 c = min(max(g, least), most), square = mul(c, c);
    const F8 t = tanh(mul(root, fma(mul(square, c), cubic, c))), high = mul(half, add(one, t));
    *du = mul(v, mul(g, high));
    const F8 steep = mul(mul(half, c), mul(sub(one, mul(t, t)), mul(root, fma(square, three, one))));
    *dg = mul(mul(v, u), add(high, steep));
  });
}

void sigmoid(const float* x, float* out, int64_t n) {
  const F8 one = broadcast(1.0f), zero = broadcast(0.0f);
  map1(x, out, n, [&](F8 v) { return div(one, add(one, exp(sub(zero, v)))); });
}

void soft_cap(const float* x, float* out, int64_t n, float cap) {
  const F8 c = broadcast(cap);
  map1(x, out, n, [&](F8 v) { return mul(c, tanh(div(v, c))); });
}

void add_rows(const float* a, const float* b, float* out, int64_t n) {
  map2(a, b, out, n, [](F8 x, F8 y) { return add(x, y); });
}

void rotate(const float* a, const float* b, const float* cos, const float* sin, float* out_a, float* out_b,
            int64_t n) {
  const auto turn = [](F8 x, F8 y, F8 c, F8 s, F8* x_out, F8* y_out) {
    *x_out = sub(mul(x, c), mul(y, s));
    *y_out = add(mul(y, c), mul(x, s));
  };
  F8 first, second;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    turn(load(a + i), load(b + i), load(cos + i), load(sin + i), &first, &second);
    store(out_a + i, first);
    store(out_b + i, second);
  }
  if (i == n) return;
  const int64_t rest = n - i;
  turn(load(Padded(a + i, rest).lane), load(Padded(b + i, rest).lane), load(Padded(cos + i, rest).lane),
       load(Padded(sin + i, rest).lane), &first, &second);
  store_first(out_a + i, first, rest);
  store_first(out_b + i, second, rest);
}

void turn(float position, const float* inverse_frequency, float magnitude, float* cos, float* sin,
          int64_t n) {
  const F8 at = broadcast(position), size = broadcast(magnitude);
  for (int64_t i = 0; i < n; i += 8) {
    const int64_t rest = n - i;
    const F8 frequency =
        rest >= 8 ? load(inverse_frequency + i) : load(Padded(inverse_frequency + i, rest).lane);
    F8 s, c;
    sin_cos(mul(at, frequency), &s, &c);
    store_first(sin + i, mul(s, size), rest < 8 ? rest : 8);
    store_first(cos + i, mul(c, size), rest < 8 ? rest : 8);
  }
}

float max_of(const float* x, int64_t n) {
  F8 best = broadcast(-__builtin_inff());
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) best = max(best, load(x + i));
  float result = max_lane(best);
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

void exp_less(const float* x, float less, float* out, int64_t n) {
  const F8 shift = broadcast(less);
  map1(x, out, n, [&](F8 v) { return exp(sub(v, shift)); });
}

void to_f16(const float* x, void* out, int64_t n) {
  auto* half = static_cast<uint16_t*>(out);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store_half(half + i, load(x + i));
  for (; i < n; ++i) half[i] = float_to_half(x[i]);
}

void to_bf16(const float* x, void* out, int64_t n) {
  auto* bfloat = static_cast<uint16_t*>(out);
  for (int64_t i = 0; i < n; ++i) bfloat[i] = float_to_bfloat(x[i]);
}

// A block: its scale, largest / 127, as a half, then 32 int8.
void to_q8_0(const float* x, void* out, int64_t n) {
  auto* block = static_cast<uint8_t*>(out);
  const F8 magic = broadcast(12582912.0f);  // 1.5 · 2²³: the sum rounds to a whole number
  for (int64_t i = 0; i < n; i += 32, block += 34) {
    F8 largest = broadcast(0.0f), nothing = broadcast(0.0f);
    for (int j = 0; j < 32; j += 8) {
      largest = max(largest, absolute(load(x + i + j)));
      nothing = fma(load(x + i + j), broadcast(0.0f), nothing);  // NaN where something is not finite
    }
    const float scale = max_lane(largest) / 127.0f + sum_lanes(nothing);
    const F8 inverse = broadcast(scale > 0 ? 1.0f / scale : 0.0f);
    const uint16_t half = float_to_half(scale);
    __builtin_memcpy(block, &half, sizeof half);
    for (int j = 0; j < 32; j += 8) {
      float rounded[8];
      store(rounded, sub(fma(load(x + i + j), inverse, magic), magic));
      for (int l = 0; l < 8; ++l) {
        const float value = rounded[l] == rounded[l] ? rounded[l] : 0.0f;
        block[2 + j + l] = static_cast<uint8_t>(static_cast<int8_t>(value));
      }
    }
  }
}

constexpr RowKernels kTable{
    .rms_norm = rms_norm,
    .rms_norm_gradient = rms_norm_gradient,
    .silu_product = silu_product,
    .gelu_product = gelu_product,
    .silu_product_gradient = silu_product_gradient,
    .gelu_product_gradient = gelu_product_gradient,
    .sigmoid = sigmoid,
    .soft_cap = soft_cap,
    .add = add_rows,
    .rotate = rotate,
    .turn = turn,
    .sum = sum_row,
    .dot = dot,
    .max = max_of,
    .exp_less = exp_less,
    .to_f16 = to_f16,
    .to_bf16 = to_bf16,
    .to_q8_0 = to_q8_0,
};

}  // namespace
}  // namespace fathom
