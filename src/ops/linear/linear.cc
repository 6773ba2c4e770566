#include "ops/linear/linear.h"

#include <algorithm>
#include <vector>

#include "base/format.h"
#include "ops/kernels/without_values.h"
#include "ops/linear/linear_kernel.h"
#include "ops/rows/accumulate.h"

namespace fathom {
namespace {

void check_operands(const LinearCall& call) {
  const Tensor& x = call.x;
  // The texts are made only where they are needed: this runs for every product of a decode step.
  if (!x.defined() || x.dtype() != DType::kF32 || x.rank() != 2)
    fail("linear: x must be f32 (rows, in), got {} {}", x.defined() ? name_of(x.dtype()) : "nothing",
         to_string(x.shape()));
  require(call.weights.size() <= kMaxLinearGroup, "linear_group: at most {} weights, got {}", kMaxLinearGroup,
          call.weights.size());
  require(call.outputs.size() == call.weights.size() &&
              (call.biases.empty() || call.biases.size() == call.weights.size()),
          "linear_group: {} weights with {} biases and {} outputs", call.weights.size(), call.biases.size(),
          call.outputs.size());
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const Tensor& w = call.weights[i];
    if (!w.defined() || w.rank() != 2 || w.dim(1) != x.dim(1) || !w.is_contiguous())
      fail("linear: weight must be (out, {}), got {} {}", x.dim(1),
           w.defined() ? name_of(w.dtype()) : "nothing", to_string(w.shape()));
    require(w.dtype() != DType::kI32 && w.dtype() != DType::kU8,
            "linear: weight must be f32, f16, bf16 or a block format, got {}", name_of(w.dtype()));
    require(!w.gradient() || w.dtype() == DType::kF32 || w.dtype() == DType::kBF16,
            "linear: a weight with a gradient must be f32 or bf16, got {}", name_of(w.dtype()));
    if (!call.biases.empty() && call.biases[i])
      expect(call.biases[i], DType::kF32, {w.dim(0)}, "linear", "bias");
  }
}

// What the gradient of a group of products needs.
struct GroupNote {
  Tensor x;                             // f32, bf16 where no f32 weight needs it, or without its values
  std::vector<Tensor> weights, biases;  // those without a gradient may be of any format
  std::vector<std::shared_ptr<Gradient>> outputs;
  std::vector<Shape> shapes;  // of the outputs
};

bool wants_gradient(const std::vector<Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.gradient() != nullptr; });
}

// Adds to the gradient of `to` what kernel(beta, sum) computes: into it where that is possible.
template <class Kernel>
void add_gradient(Context& ctx, const Tensor& to, Kernel&& kernel) {
  if (Tensor sum = gradient_to_add_to(to)) {
    sum = sum.reshape(to.shape());
    return kernel(1.0f, sum);
  }
  Tensor sum = Tensor::empty(ctx, DType::kF32, to.shape());
  kernel(0.0f, sum);
  accumulate(ctx, to, sum);
}

void group_gradient(CpuBackend cpu, Context& ctx, const GroupNote& note) {
  Tensor dx;
  for (size_t i = 0; i < note.weights.size(); ++i) {
    Gradient& arrived = *note.outputs[i];
    if (!arrived.value) continue;
    const Tensor dy = arrived.value.reshape(note.shapes[i]).counted_like(note.x), &weight = note.weights[i];
    arrived.value = {};
    if (note.x.gradient()) {
      const float beta = dx ? 1.0f : 0.0f;
      if (!dx) dx = Tensor::empty(ctx, DType::kF32, note.x.shape()).counted_like(note.x);
      linear_dx_kernel(cpu, ctx, dy, weight, beta, dx);
    }
    if (weight.gradient()) {
      add_gradient(ctx, weight, [&](float beta, Tensor& dw) {
        linear_dw_kernel(cpu, ctx, dy, note.x, weight.dtype(), beta, dw);
      });
    }
    if (!note.biases.empty() && note.biases[i].gradient()) {
      add_gradient(ctx, note.biases[i], [&](float beta, Tensor& db) { linear_db_kernel(cpu, dy, beta, db); });
    }
  }
  if (dx) accumulate(ctx, note.x, dx);
}

// x as the weights' products want it: rounded once where all of them round it and it is kept.
Tensor operand(CpuBackend cpu, Context& ctx, const LinearCall& call, bool keep) {
  const bool all_bf16 = std::all_of(call.weights.begin(), call.weights.end(),
                                    [](const Tensor& w) { return w.dtype() == DType::kBF16; });
  if (!keep || !all_bf16) return call.x;
  Tensor rounded = Tensor::empty(ctx, DType::kBF16, call.x.shape()).counted_like(call.x);
  round_rows_kernel(cpu, call.x, rounded);
  return rounded.with_gradient(call.x.gradient());
}

// While a tape is attached, recording or not (what is computed twice must be the same twice).
void taped_group(CpuBackend cpu, Context& ctx, const LinearCall& call) {
  GroupNote note{
      {}, {call.weights.begin(), call.weights.end()}, {call.biases.begin(), call.biases.end()}, {}, {}};
  const bool recording = ctx.tape()->recording(), keep = recording && wants_gradient(note.weights);
  note.x = operand(cpu, ctx, call, keep);
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const Tensor bias = call.biases.empty() ? Tensor() : call.biases[i];
    const DType type = call.weights[i].dtype();
    if (type == DType::kF32 || type == DType::kBF16)
      linear_gemm_kernel(cpu, ctx, note.x, call.weights[i], bias, call.outputs[i]);
    else  // frozen: as at inference
      linear_kernel(cpu, ctx, {call.x, call.weights.subspan(i, 1), {&bias, 1}, call.outputs.subspan(i, 1)});
  }
  if (!recording || !(call.x.gradient() || keep || wants_gradient(note.biases))) return;
  if (!keep) note.x = without_values(call.x);
  for (Tensor& out : call.outputs) {
    out = out.with_gradient(std::make_shared<Gradient>());
    note.outputs.push_back(out.gradient());
    note.shapes.push_back(out.shape());
  }
  ctx.tape()->record([note = std::move(note)](Context& c) {
    on_cpu(c, "the gradient of linear", [&](CpuBackend dev) { group_gradient(dev, c, note); });
  });
}

}  // namespace

void linear_group(Context& ctx, const Tensor& x, std::span<const Tensor> weights,
                  std::span<const Tensor> biases, std::span<Tensor> outputs) {
  const LinearCall call{x, weights, biases, outputs};
  check_operands(call);
  for (size_t i = 0; i < weights.size(); ++i)
    outputs[i] = Tensor::empty(ctx, DType::kF32, {x.dim(0), weights[i].dim(0)}).counted_like(x);
  if (ctx.tape() && (ctx.device() != Device::kCuda || ctx.tape()->recording()))
    return on_cpu(ctx, "linear with a tape", [&](CpuBackend cpu) { taped_group(cpu, ctx, call); });
  on_device(ctx, [&](auto device) { linear_kernel(device, ctx, call); });
}

Tensor linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  Tensor out;
  linear_group(ctx, x, {&weight, 1}, {&bias, 1}, {&out, 1});
  return out;
}

}  // namespace fathom
