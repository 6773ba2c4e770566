#define FATHOM_SIMD_PLAIN  // the oracle: the same lanes as plain loops
#include "ops/kernels/row_kernels_body.h"

namespace fathom {

const RowKernels kRowKernelsScalar = kTable;

}  // namespace fathom
