#include "ops/linear/score_head.h"

#include "base/format.h"
#include "ops/kernels/without_values.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_kernel.h"
#include "ops/linear/row_sums.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/pointwise.h"

namespace fathom {

// slopes: f32 (rows, 2): d · s (1 − s) and cost · s (1 − s). d: f32 (rows), undefined: 0.
void score_slopes_kernel(CudaBackend dev, const Tensor& score, const Tensor& d, float cost, Tensor& slopes);

namespace {

// What the gradient of a score needs. sums, biases: f32 (2, d) and (2), its own gradients and the pulls.
struct ScoreNote {
  Tensor x, weight, bias, score;  // weight, bias: without values
  float cost;
  Tensor sums, biases;
};

void score_gradient(Context& ctx, const ScoreNote& note, const Tensor& d) {
  if constexpr (kHasCuda) {
    const CudaBackend dev = ctx.cuda();
    Tensor slopes = Tensor::empty(ctx, DType::kF32, {note.x.dim(0), 2}), sums = note.sums,
           biases = note.biases;
    score_slopes_kernel(dev, note.score, d, note.cost, slopes);
    dev.counters.add({.madds = static_cast<uint64_t>(note.x.numel())});  // the pull's are the forward's
    narrow_dw_kernel(dev, ctx, slopes, note.x, 0.0f, sums);
    linear_db_kernel(dev, ctx, slopes, 0.0f, biases);
    if (!d) return;
    accumulate(ctx, note.weight, sums.rows(0, 1));
    accumulate(ctx, note.bias, biases.rows(0, 1));
  }
}

ScoreHead on_one_pass(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias, float cost) {
  ScoreNote note{x, without_values(weight), without_values(bias), {}, cost, {}, {}};
  {
    const RecordingScope quiet(ctx, false);
    const Tensor logit = linear(ctx, x, detach(weight), detach(bias));
    note.score = apply(ctx, Unary::kSigmoid, logit.reshape({x.dim(0)}));
  }
  ctx.counters().add({.madds = static_cast<uint64_t>(x.numel())});
  note.sums = Tensor::empty(ctx, DType::kF32, {2, x.dim(1)});
  note.biases = Tensor::empty(ctx, DType::kF32, {2});
  ScoreHead out{note.score.with_gradient(std::make_shared<Gradient>()), note.sums.rows(1, 1),
                note.biases.rows(1, 1)};
  ctx.tape()->record([note, gradient = out.score.gradient()](Context& c) {
    const Tensor d = gradient->value;
    gradient->value = {};
    score_gradient(c, note, d);
  });
  return out;
}

}  // namespace

ScoreHead score_head(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias, float cost) {
  expect(bias, DType::kF32, {1}, "score_head", "bias");
  if (!x.defined() || x.rank() != 2) fail("score_head: x must be (rows, d), got {}", to_string(x.shape()));
  expect(weight, DType::kF32, {1, x.dim(1)}, "score_head", "weight");
  const Tensor rows = detach(x);
  const bool records = ctx.tape() && ctx.tape()->recording();
  if (ctx.device() == Device::kCuda && records && !x.row_count())
    return on_one_pass(ctx, rows, weight, bias, cost);
  const Tensor logit = linear(ctx, rows, weight, bias);
  ScoreHead out{apply(ctx, Unary::kSigmoid, logit.reshape({logit.dim(0)})), {}, {}};
  const RecordingScope quiet(ctx, false);
  const Tensor& s = out.score;
  const Tensor slope =
      multiply(ctx, affine(ctx, s, cost, 0.0f), affine(ctx, s, -1.0f, 1.0f))  // c · s (1 − s)
          .reshape({rows.dim(0), 1});
  out.weight_pull = transposed_product(ctx, slope, rows);
  out.bias_pull = sum_rows(ctx, slope);
  return out;
}

}  // namespace fathom
