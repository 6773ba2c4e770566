#include "ops/loss/cross_entropy.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/kernels/without_values.h"
#include "ops/rows/fill.h"

namespace fathom {

// losses: room for f64 (rows), what each row adds to the sum. log_sums: f32 (rows), log Σ eˡ of each row, for
// the gradient.
void cross_entropy_kernel(CpuBackend dev, const Tensor& logits, const Tensor& targets, const Tensor& weights,
                          Tensor& log_sums, Tensor& losses, Tensor& out);
void cross_entropy_kernel(CudaBackend dev, const Tensor& logits, const Tensor& targets, const Tensor& weights,
                          Tensor& log_sums, Tensor& losses, Tensor& out);
// d_logits may be the logits themselves.
void cross_entropy_gradient_kernel(CpuBackend dev, const Tensor& logits, const Tensor& targets,
                                   const Tensor& weights, const Tensor& log_sums, const Tensor& d,
                                   Tensor& d_logits);
void cross_entropy_gradient_kernel(CudaBackend dev, const Tensor& logits, const Tensor& targets,
                                   const Tensor& weights, const Tensor& log_sums, const Tensor& d,
                                   Tensor& d_logits);
// log_sums: f32 (2, rows), the teacher's first.
void kl_divergence_kernel(CpuBackend dev, const Tensor& teacher, const Tensor& student, const Tensor& weights,
                          Tensor& log_sums, Tensor& losses, Tensor& out);
void kl_divergence_kernel(CudaBackend dev, const Tensor& teacher, const Tensor& student,
                          const Tensor& weights, Tensor& log_sums, Tensor& losses, Tensor& out);
// d_student may be the student itself.
void kl_divergence_gradient_kernel(CpuBackend dev, const Tensor& teacher, const Tensor& student,
                                   const Tensor& weights, const Tensor& log_sums, const Tensor& d,
                                   Tensor& d_student);
void kl_divergence_gradient_kernel(CudaBackend dev, const Tensor& teacher, const Tensor& student,
                                   const Tensor& weights, const Tensor& log_sums, const Tensor& d,
                                   Tensor& d_student);
// losses: f64 (rows), as above; out: f32 (rows).
void narrow_losses_kernel(CpuBackend dev, const Tensor& losses, Tensor& out);
void narrow_losses_kernel(CudaBackend dev, const Tensor& losses, Tensor& out);
void mean_squared_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, const Tensor& weights,
                         Tensor& losses, Tensor& out);
void mean_squared_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, const Tensor& weights,
                         Tensor& losses, Tensor& out);
// sign: 1 for a's gradient, −1 for b's.
void mean_squared_gradient_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, const Tensor& weights,
                                  const Tensor& d, float sign, Tensor& dx);
void mean_squared_gradient_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, const Tensor& weights,
                                  const Tensor& d, float sign, Tensor& dx);

namespace {

void expect_matrix(const Tensor& x, const char* op, const char* name) {
  expect_rows(x, op, name);
  if (x.rank() != 2 || x.dim(1) < 1 || !x.is_contiguous())
    fail("{}: {} must be dense f32 (rows, d) with d above 0, got {}", op, name, to_string(x.shape()));
}

// Room for the gradient of x: x's own memory where the note is the last to hold it. Logits are the largest
// tensor of a training step.
Tensor room_for_gradient(Context& ctx, const Tensor& x) {
  const std::shared_ptr<const void> memory = x.owner();
  constexpr int64_t kTheNoteAndThisCall = 2;
  if (memory && memory.use_count() == kTheNoteAndThisCall) return detach(x);
  return gradient_like(ctx, x);
}

// Room for f64 (rows of x).
Tensor room_for_losses(Context& ctx, const Tensor& x) {
  return Tensor::empty(ctx, DType::kU8, {x.dim(0) * static_cast<int64_t>(sizeof(double))});
}

}  // namespace

Tensor cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets, const Tensor& weights) {
  expect_matrix(logits, "cross_entropy", "logits");
  expect(targets, DType::kI32, {logits.dim(0)}, "cross_entropy", "targets");
  expect(weights, DType::kF32, {logits.dim(0)}, "cross_entropy", "weights");
  Tensor out = Tensor::empty(ctx, DType::kF32, {1});
  Tensor log_sums = Tensor::empty(ctx, DType::kF32, weights.shape());
  Tensor losses = room_for_losses(ctx, logits);
  on_device(ctx,
            [&](auto dev) { cross_entropy_kernel(dev, logits, targets, weights, log_sums, losses, out); });
  differentiate(ctx, {&logits}, out, [=, weights = detach(weights)](Context& c, const Tensor& d) {
    Tensor d_logits = room_for_gradient(c, logits);
    on_device(c, [&](auto dev) {
      cross_entropy_gradient_kernel(dev, logits, targets, weights, log_sums, d, d_logits);
    });
    accumulate(c, logits, d_logits);
  });
  return out;
}

Tensor kl_divergence(Context& ctx, const Tensor& teacher, const Tensor& student, const Tensor& weights) {
  expect_matrix(student, "kl_divergence", "student");
  expect(teacher, DType::kF32, student.shape(), "kl_divergence", "teacher");
  expect_matrix(teacher, "kl_divergence", "teacher");
  expect(weights, DType::kF32, {student.dim(0)}, "kl_divergence", "weights");
  Tensor out = Tensor::empty(ctx, DType::kF32, {1});
  Tensor log_sums = Tensor::empty(ctx, DType::kF32, {2, student.dim(0)});
  Tensor losses = room_for_losses(ctx, student);
  on_device(ctx,
            [&](auto dev) { kl_divergence_kernel(dev, teacher, student, weights, log_sums, losses, out); });
  differentiate(ctx, {&student}, out,
                [=, teacher = detach(teacher), weights = detach(weights)](Context& c, const Tensor& d) {
                  Tensor d_student = room_for_gradient(c, student);
                  on_device(c, [&](auto dev) {
                    kl_divergence_gradient_kernel(dev, teacher, student, weights, log_sums, d, d_student);
                  });
                  accumulate(c, student, d_student);
                });
  return out;
}

Tensor kl_of_rows(Context& ctx, const Tensor& teacher, const Tensor& student) {
  expect_matrix(student, "kl_of_rows", "student");
  expect(teacher, DType::kF32, student.shape(), "kl_of_rows", "teacher");
  expect_matrix(teacher, "kl_of_rows", "teacher");
  if (student.row_count() || teacher.row_count()) fail("kl_of_rows: every row must be there");
  Tensor sum = Tensor::empty(ctx, DType::kF32, {1}), ones = Tensor::empty(ctx, DType::kF32, {student.dim(0)}),
         out = Tensor::empty(ctx, DType::kF32, {student.dim(0)}),
         log_sums = Tensor::empty(ctx, DType::kF32, {2, student.dim(0)});
  Tensor losses = room_for_losses(ctx, student);
  fill(ctx, ones, 1.0f);
  on_device(ctx, [&](auto dev) {
    kl_divergence_kernel(dev, teacher, student, ones, log_sums, losses, sum);
    narrow_losses_kernel(dev, losses, out);
  });
  return out;
}

Tensor mean_squared(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& weights) {
  expect_matrix(a, "mean_squared", "a");
  expect(b, DType::kF32, a.shape(), "mean_squared", "b");
  expect_matrix(b, "mean_squared", "b");
  expect(weights, DType::kF32, {a.dim(0)}, "mean_squared", "weights");
  Tensor out = Tensor::empty(ctx, DType::kF32, {1});
  Tensor losses = room_for_losses(ctx, a);
  on_device(ctx, [&](auto dev) { mean_squared_kernel(dev, a, b, weights, losses, out); });
  differentiate(ctx, {&a, &b}, out, [=, weights = detach(weights)](Context& c, const Tensor& d) {
    const auto pass = [&](const Tensor& to, float sign) {
      if (!to.gradient()) return;
      Tensor dx = gradient_like(c, a);
      on_device(c, [&](auto dev) { mean_squared_gradient_kernel(dev, a, b, weights, d, sign, dx); });
      accumulate(c, to, dx);
    };
    pass(a, 1.0f);
    pass(b, -1.0f);
  });
  return out;
}

}  // namespace fathom
