#include "ops/kernels/row_access.h"

#include "base/format.h"

namespace fathom {

void expect_rows(const Tensor& tensor, const char* op, const char* name) {
  if (!tensor.defined()) fail("{}: {} must be f32, got nothing", op, name);
  if (tensor.dtype() != DType::kF32) fail("{}: {} must be f32, got {}", op, name, name_of(tensor.dtype()));
  if (tensor.rank() < 1)
    fail("{}: {} must have at least one dimension, got {}", op, name, to_string(tensor.shape()));
  if (tensor.rank() != 2 && !tensor.is_contiguous()) {
    fail("{}: {} must be dense, got a strided {}", op, name, to_string(tensor.shape()));
  }
}

}  // namespace fathom
