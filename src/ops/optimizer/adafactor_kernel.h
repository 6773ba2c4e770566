// Between adafactor.cc and its backends.
#pragma once

#include "ops/optimizer/adafactor.h"

namespace fathom {

inline constexpr double kSmallestSize = 1e-3;   // root mean square of a tensor that a step is relative to
inline constexpr int64_t kAdafactorRows = 256;  // of a partial sum of a column

struct AdafactorCall {
  Tensor value, gradient;  // (rows, columns) elements
  Tensor moments;          // factored: the rows' means, then the columns'; else one for each element
  Tensor mean;             // undefined: beta1 is 0
  Tensor scratch;          // room for adafactor_scratch() f64 numbers
  int64_t rows = 1, columns = 0;
  bool factored = false;
  AdafactorParams params;
};

// Some numbers, one for each row, one for each column and kAdafactorRows rows.
inline int64_t adafactor_scratch(int64_t rows, int64_t columns) {
  return 4 + rows + columns * ((rows + kAdafactorRows - 1) / kAdafactorRows);
}

void adafactor_kernel(CpuBackend dev, AdafactorCall& call);
void adafactor_kernel(CudaBackend dev, AdafactorCall& call);

}  // namespace fathom
