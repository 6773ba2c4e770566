#include "ops/kernels/row_kernels_body.h"

namespace fathom {

const RowKernels kRowKernelsAvx2 = kTable;

}  // namespace fathom
