// A tensor and the name that files and lists of parameters know it by.
#pragma once

#include <string>

#include "tensor/tensor.h"

namespace fathom {

struct NamedTensor {
  std::string name;
  Tensor tensor;  // on the CPU, contiguous
};

}  // namespace fathom
