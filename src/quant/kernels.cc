#include "quant/matmul.h"

namespace fathom {

const MatmulKernels& matmul_kernels(Isa isa) {
  static constexpr MatmulKernels kScalar{&kScalarRow, &kScalarTile, nullptr, nullptr, &kScalarFloat, nullptr};
#if defined(__aarch64__)
  static constexpr MatmulKernels kDotprod{&kDotprodRow, &kDotprodTile,  nullptr,
                                          nullptr,      &kDotprodFloat, nullptr};
  static constexpr MatmulKernels kI8mm{&kDotprodRow, &kI8mmTile,     &kI8mmFewRows,
                                       &kI8mmFours,  &kDotprodFloat, &kI8mmBf16};
  if (isa == Isa::kDotprod) return kDotprod;
  if (isa == Isa::kI8mm) return kI8mm;
#elif defined(__x86_64__)
  static constexpr MatmulKernels kAvx2{&kAvx2Row, &kAvx2Tile, &kAvx2FewRows, nullptr, &kAvx2Float, nullptr};
  static constexpr MatmulKernels kAvx512{&kAvx2Row, &kAvx512Tile, &kAvx512FewRows,
                                         nullptr,   &kAvx2Float,  nullptr};
  if (isa == Isa::kAvx2) return kAvx2;
  if (isa == Isa::kAvx512 || isa == Isa::kAvx512Bf16 || isa == Isa::kAmx) return kAvx512;
#endif
  (void)isa;
  return kScalar;
}

}  // namespace fathom
