#include "ops/loss/output_loss.h"

#include "base/format.h"
#include "ops/kernels/without_values.h"
#include "ops/linear/linear.h"
#include "ops/loss/cross_entropy.h"
#include "ops/loss/output_loss_kernel.h"
#include "ops/rows/soft_cap.h"

namespace fathom {
namespace {

void expect_output(const OutputRows& rows, const char* op) {
  const Tensor &x = rows.x, &w = rows.weight;
  const bool floats = x.defined() && (x.dtype() == DType::kF32 || x.dtype() == DType::kBF16);
  if (!floats || x.rank() != 2)
    fail("{}: x must be f32 or bf16 (rows, width), got {} {}", op,
         x.defined() ? name_of(x.dtype()) : "nothing", to_string(x.shape()));
  const bool products = w.defined() && w.dtype() != DType::kI32 && w.dtype() != DType::kU8;
  if (!products || w.rank() != 2 || w.dim(0) < 1 || w.dim(1) != x.dim(1) || !w.is_contiguous())
    fail("{}: weight must be dense (vocab, {}) with vocab above 0, got {} {}", op, x.dim(1),
         w.defined() ? name_of(w.dtype()) : "nothing", to_string(w.shape()));
  if (w.dtype() == DType::kF32 && x.dtype() != DType::kF32)
    fail("{}: x must be f32 where the weight is, got {}", op, name_of(x.dtype()));
  if (w.gradient() && w.dtype() != DType::kF32 && w.dtype() != DType::kBF16)
    fail("{}: a weight with a gradient must be f32 or bf16, got {}", op, name_of(w.dtype()));
  if (!(rows.soft_cap >= 0)) fail("{}: soft_cap must be above 0, or 0 for none, got {}", op, rows.soft_cap);
}

// Calls fn with the GPU's tag. A build without CUDA has no such context.
template <class Fn>
void on_gpu(Context& ctx, Fn&& fn) {
  if constexpr (kHasCuda) fn(ctx.cuda());
}

// Adds d · gradient to the gradient of `to`. The gradient's memory is this call's.
template <class Backend>
void pass_on(Backend dev, Context& ctx, const Tensor& to, Tensor gradient, const Tensor& d) {
  if (!gradient) return;
  if (Tensor sum = gradient_to_add_to(to)) {
    sum = sum.reshape(to.shape()).counted_like(to);
    return add_times_scalar_kernel(dev, gradient, d, sum);
  }
  times_scalar_kernel(dev, gradient, d, gradient);
  accumulate(ctx, to, gradient);
}

// The loss is linear in d, which is known only when the gradients go back: until then it is 1.
Tensor loss_in_pieces(Context& ctx, OutputLossCall call) {
  const Tensor x = call.rows.x, weight = call.rows.weight;
  Tensor out = Tensor::empty(ctx, DType::kF32, {1});
  if (differentiable(ctx, {&x, &weight})) {
    if (x.gradient()) call.dx = gradient_like(ctx, x);
    if (weight.gradient()) call.dw = Tensor::empty(ctx, DType::kF32, weight.shape());
  }
  on_gpu(ctx, [&](auto cuda) { output_loss_kernel(cuda, ctx, call, out); });
  differentiate(ctx, {&x, &weight}, out,
                [x = without_values(x), weight = without_values(weight), dx = call.dx, dw = call.dw](
                    Context& c, const Tensor& d) {
                  on_gpu(c, [&](auto cuda) {
                    pass_on(cuda, c, x, dx, d);
                    pass_on(cuda, c, weight, dw, d);
                  });
                });
  return out;
}

}  // namespace

Tensor output_logits(Context& ctx, const OutputRows& rows) {
  const Tensor logits = linear(ctx, rows.x, rows.weight);
  return rows.soft_cap > 0 ? soft_cap(ctx, logits, rows.soft_cap) : logits;
}

Tensor output_cross_entropy(Context& ctx, const OutputRows& rows, const Tensor& targets,
                            const Tensor& weights, int64_t logits_at_once) {
  expect_output(rows, "output_cross_entropy");
  if (ctx.device() != Device::kCuda) return cross_entropy(ctx, output_logits(ctx, rows), targets, weights);
  expect(targets, DType::kI32, {rows.x.dim(0)}, "output_cross_entropy", "targets");
  expect(weights, DType::kF32, {rows.x.dim(0)}, "output_cross_entropy", "weights");
  return loss_in_pieces(ctx, {rows, {}, targets, weights, logits_at_once, {}, {}});
}

Tensor output_kl(Context& ctx, const OutputRows& teacher, const OutputRows& student, const Tensor& weights,
                 int64_t logits_at_once) {
  expect_output(student, "output_kl");
  expect_output(teacher, "output_kl");
  if (teacher.x.dim(0) != student.x.dim(0) || teacher.weight.dim(0) != student.weight.dim(0))
    fail("output_kl: the teacher must have {} rows and a vocabulary of {}, got {} and {}", student.x.dim(0),
         student.weight.dim(0), teacher.x.dim(0), teacher.weight.dim(0));
  if (ctx.device() != Device::kCuda) {
    Tensor taught;
    {
      const RecordingScope quiet(ctx, false);
      taught = output_logits(ctx, teacher);
    }
    return kl_divergence(ctx, taught, output_logits(ctx, student), weights);
  }
  expect(weights, DType::kF32, {student.x.dim(0)}, "output_kl", "weights");
  return loss_in_pieces(ctx, {student, teacher, {}, weights, logits_at_once, {}, {}});
}

}  // namespace fathom
