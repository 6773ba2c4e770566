// One case, every check: what an op is tested and timed with. Each <op>_test.cc lists its cases and calls
// check().
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace fathom {

struct OpInput {
  Shape shape;
  DType dtype =
      DType::kF32;  // kF32: normal(0, 1) × scale; kI32: uniform in [0, below); others: encoded from normals
  float scale = 1.0f;
  int32_t below = 1;
};

struct OpTolerance {
  float forward = 1e-5f;  // relative to 1 + |reference|
  float grad = 0.0f;      // relative to 1 + |difference quotient|; 0: gradients are not asked for
};

struct OpCase {
  std::string name;
  std::vector<OpInput> inputs;
  std::function<Tensor(Context&, std::span<const Tensor>)> run;
  // The definition, in plain double loops: an implementation that shares nothing with the kernels.
  std::function<std::vector<double>(std::span<const Tensor>)> reference;
  OpTolerance tol = {};
  std::vector<size_t> differentiable = {};  // inputs; none named: every f32 one
  bool row_invariant = true;                // dimension 0 of the first input and of the output are rows
  bool cpu_only = false;                    // run() reads and writes memory itself
};

// The devices that this build has kernels for and this machine has, the CPU first. FATHOM_CHECK_DEVICES=cuda
// in the environment: the GPU alone, a UserError where there is none. Under compute-sanitizer the others only
// take time.
const std::vector<Device>& devices_to_check();

// Runs the case on every device (on the CPU alone where cpu_only) and every instruction set that its kernels
// know, with 1, 2 and 3 threads (on a GPU these only repeat it), and compares
// - with the reference;
// - row by row with all rows at once, bit for bit;
// - 1 thread with more, bit for bit;
// - with tol.grad: the tape's gradients of Σ out · r, r random, with central differences of the reference at
// up
//   to 48 elements of each input: bit for bit at 1, 2 and 3 threads, as a fresh gradient and as one that is
//   added to another, in memory that held NaN.
// Throws std::runtime_error naming the case, the check and the first difference.
void check(const OpCase& op_case);

}  // namespace fathom
