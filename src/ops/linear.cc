#include "ops/linear.h"

#include "base/format.h"
#include "ops/linear_kernel.h"

namespace fathom {
namespace {

void check_operands(const LinearCall& call) {
  const Tensor& x = call.x;
  require(x.defined() && x.dtype() == DType::kF32 && x.rank() == 2,
          "linear: x must be f32 (rows, in), got {} {}", x.defined() ? name_of(x.dtype()) : "nothing",
          to_string(x.shape()));
  require(call.weights.size() <= kMaxLinearGroup, "linear_group: at most {} weights, got {}", kMaxLinearGroup,
          call.weights.size());
  require(call.outputs.size() == call.weights.size() &&
              (call.biases.empty() || call.biases.size() == call.weights.size()),
          "linear_group: {} weights with {} biases and {} outputs", call.weights.size(), call.biases.size(),
          call.outputs.size());
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const Tensor& w = call.weights[i];
    require(w.defined() && w.rank() == 2 && w.dim(1) == x.dim(1) && w.is_contiguous(),
            "linear: weight must be (out, {}), got {} {}", x.dim(1),
            w.defined() ? name_of(w.dtype()) : "nothing", to_string(w.shape()));
    require(w.dtype() != DType::kI32 && w.dtype() != DType::kU8,
            "linear: weight must be f32, f16, bf16 or a block format, got {}", name_of(w.dtype()));
    if (!call.biases.empty() && call.biases[i])
      expect(call.biases[i], DType::kF32, {w.dim(0)}, "linear", "bias");
  }
}

}  // namespace

void linear_group(Context& ctx, const Tensor& x, std::span<const Tensor> weights,
                  std::span<const Tensor> biases, std::span<Tensor> outputs) {
  const LinearCall call{x, weights, biases, outputs};
  check_operands(call);
  for (size_t i = 0; i < weights.size(); ++i)
    outputs[i] = Tensor::empty(ctx, DType::kF32, {x.dim(0), weights[i].dim(0)}).counted_by(x.row_count());
  on_device(ctx, [&](auto device) { linear_kernel(device, ctx, call); });
}

Tensor linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  Tensor out;
  linear_group(ctx, x, {&weight, 1}, {&bias, 1}, {&out, 1});
  return out;
}

}  // namespace fathom
