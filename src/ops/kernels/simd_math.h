// exp, tanh, sine and cosine over F8, to one or two units in the last place, the same bits on every
// instruction set.
#pragma once

#include "ops/kernels/simd.h"

namespace fathom {
namespace {

// eˣ. Below −87.3 the result is 0 (not a subnormal), above 88.3 it stays at e^88.3: callers divide by it or
// know x ≤ 0.
inline F8 exp(F8 x) {
  const F8 lowest = broadcast(-87.33f);
  const F8 clamped = clamp(x, lowest, broadcast(88.37f));  // a NaN stays one
  // x = n ln 2 + r, |r| ≤ ln 2 / 2. Adding 1.5 · 2²³ rounds to a whole number and leaves it in the low bits.
  const F8 magic = broadcast(12582912.0f);
  const F8 rounded = fma(clamped, broadcast(1.44269504f), magic);
  const F8 n = sub(rounded, magic);
  F8 r = fma(n, broadcast(-0.693145751953125f), clamped);  // ln 2 in two parts; n times the first is exact
  r = fma(n, broadcast(-1.42860682e-6f), r);
  // Minimax polynomial of degree 6 for eʳ, relative error 3e-9 before rounding.
  F8 p = broadcast(0.00139505406f);
  p = fma(p, r, broadcast(0.00836891786f));
  p = fma(p, r, broadcast(0.0416662051f));
  p = fma(p, r, broadcast(0.166665186f));
  p = fma(p, r, broadcast(0.50000001f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  return select_less(x, lowest, broadcast(0.0f), mul(p, power_of_two(rounded)));
}

// 2ʸ for y ≤ 0, exactly 1 at 0, to 2e-7 of the result, 0 below −125 (−infinity too), NaN of a NaN: the
// weights of a softmax.
// N of them step by step: more of these long chains than a core looks ahead over by itself.
template <int N>
[[gnu::always_inline]] inline void exp2_below_zero(F8* y) {
  const F8 magic = broadcast(12582912.0f);
  F8 rounded[N], r[N], p[N];
  FATHOM_UNROLL
  for (int i = 0; i < N; ++i) rounded[i] = add(y[i], magic);
  FATHOM_UNROLL
  for (int i = 0; i < N; ++i) r[i] = sub(y[i], sub(rounded[i], magic));  // |r| ≤ ½
  FATHOM_UNROLL
  for (int i = 0; i < N; ++i) p[i] = fma(broadcast(0.00132647273f), r[i], broadcast(0.00967151299f));
  constexpr float kFactors[] = {0.0555073358f, 0.240222424f, 0.693147004f, 1.0f};
  FATHOM_UNROLL
  for (int k = 0; k < 4; ++k) {
    FATHOM_UNROLL
    for (int i = 0; i < N; ++i) p[i] = fma(p[i], r[i], broadcast(kFactors[k]));
  }
  FATHOM_UNROLL
  for (int i = 0; i < N; ++i)
    y[i] = select_less(y[i], broadcast(-125.0f), broadcast(0.0f), mul(p[i], power_of_two(rounded[i])));
}

inline F8 exp2_below_zero(F8 y) {
  exp2_below_zero<1>(&y);
  return y;
}

inline F8 tanh(F8 x) {
  const F8 size = absolute(x);
  // Small: x + x³ Q(x²), a minimax polynomial on |x| ≤ 0.625; 1 − 2 / (e²ˣ + 1) would lose the low bits
  // there.
  const F8 square = mul(x, x);
  F8 q = broadcast(-0.00571704531f);
  q = fma(q, square, broadcast(0.0206505876f));
  q = fma(q, square, broadcast(-0.0537434982f));
  q = fma(q, square, broadcast(0.133314913f));
  q = fma(q, square, broadcast(-0.333332839f));
  const F8 small = fma(mul(square, x), q, x);
  const F8 e = exp(add(size, size));
  const F8 large = sub(broadcast(1.0f), div(broadcast(2.0f), add(e, broadcast(1.0f))));
  const F8 zero = broadcast(0.0f);
  const F8 signed_large = select_less(x, zero, sub(zero, large), large);
  return select_less(size, broadcast(0.625f), small, signed_large);
}

// |x| < 2e5. x = n π/2 + r with π/2 in three parts; then polynomials on |r| ≤ π/4, exchanged and negated by
// quadrant.
inline void sin_cos(F8 x, F8* sin, F8* cos) {
  const F8 magic = broadcast(12582912.0f);
  const F8 rounded = fma(x, broadcast(0.636619772f), magic);
  const F8 n = sub(rounded, magic);
  F8 r = fma(n, broadcast(-1.57079637f), x);
  r = fma(n, broadcast(4.37113883e-8f), r);
  r = fma(n, broadcast(1.71512451e-15f), r);
  const F8 square = mul(r, r);
  F8 s = fma(broadcast(-0.000195166562f), square, broadcast(0.00833217334f));
  s = fma(s, square, broadcast(-0.166666552f));
  s = fma(mul(s, square), r, r);
  F8 c = fma(broadcast(2.44377305e-5f), square, broadcast(-0.00138873621f));
  c = fma(c, square, broadcast(0.0416666456f));
  c = fma(mul(c, square), square, fma(square, broadcast(-0.5f), broadcast(1.0f)));
  *sin = negate_by_second_bit(select_odd(rounded, c, s), rounded);
  *cos = negate_by_second_bit(select_odd(rounded, s, c), add(rounded, broadcast(1.0f)));
}

}  // namespace
}  // namespace fathom
