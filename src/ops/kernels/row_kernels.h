// The loops over one row that the element-wise ops share, one table per instruction set. Plain pointers:
// files built with ISA flags include this. Every sum has one fixed order, so a row's bits do not depend on
// the table chosen.
#pragma once

#include <cstdint>

namespace fathom {

struct RowKernels {
  // out = x / sqrt(mean(x²) + eps) · (weight + offset)
  void (*rms_norm)(const float* x, const float* weight, float* out, int64_t n, float eps, float offset);
  // d: gradient of rms_norm's out -> gradient of its x
  void (*rms_norm_gradient)(const float* x, const float* weight, const float* d, float* dx, int64_t n,
                            float eps, float offset);
  void (*silu_product)(const float* gate, const float* up, float* out, int64_t n);
  void (*gelu_product)(const float* gate, const float* up, float* out, int64_t n);
  // d: gradient of the product -> gradients of gate and up
  void (*silu_product_gradient)(const float* gate, const float* up, const float* d, float* d_gate,
                                float* d_up, int64_t n);
  void (*gelu_product_gradient)(const float* gate, const float* up, const float* d, float* d_gate,
                                float* d_up, int64_t n);
  void (*sigmoid)(const float* x, float* out, int64_t n);
  void (*soft_cap)(const float* x, float* out, int64_t n, float cap);
  void (*add)(const float* a, const float* b, float* out, int64_t n);
  // out_a = a · cos − b · sin, out_b = b · cos + a · sin
  void (*rotate)(const float* a, const float* b, const float* cos, const float* sin, float* out_a,
                 float* out_b, int64_t n);
  // Sine and cosine, times magnitude, of angles below 2e5: position · inverse_frequency.
  void (*turn)(float position, const float* inverse_frequency, float magnitude, float* cos, float* sin,
               int64_t n);
  float (*sum)(const float* x, int64_t n);
  float (*dot)(const float* a, const float* b, int64_t n);
  float (*max)(const float* x, int64_t n);
  void (*exp_less)(const float* x, float less, float* out, int64_t n);  // e^(x − less), for x ≤ less
  void (*to_f16)(const float* x, void* out, int64_t n);
  void (*to_bf16)(const float* x, void* out, int64_t n);
  void (*to_q8_0)(const float* x, void* out, int64_t n);  // n: whole blocks of 32
};

extern const RowKernels kRowKernelsScalar;
extern const RowKernels kRowKernelsDotprod;  // aarch64
extern const RowKernels kRowKernelsAvx2;     // x86-64

}  // namespace fathom
