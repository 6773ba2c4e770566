#include "ops/kernels/row_kernels_body.h"

namespace fathom {

const RowKernels kRowKernelsDotprod = kTable;

}  // namespace fathom
