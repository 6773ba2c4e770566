#include "ops/linear/linear.h"

#include <algorithm>
#include <vector>

#include "base/format.h"
#include "ops/kernels/without_values.h"
#include "ops/linear/linear_kernel.h"
#include "ops/rows/accumulate.h"

namespace fathom {
namespace {

bool is_bf16(const Tensor& t) {
  return t.defined() && t.dtype() == DType::kBF16;
}

// Activations in bf16, as operands or results: training on a GPU, with bf16 weights or, for f32 results, f32
// ones of a few outputs.
void check_bf16(const Context& ctx, const LinearCall& call, DType type) {
  require(type == DType::kF32 || type == DType::kBF16, "linear: the results must be f32 or bf16, got {}",
          name_of(type));
  const bool meet = std::all_of(call.weights.begin(), call.weights.end(), [&](const Tensor& w) {
    return is_bf16(w) || (type == DType::kF32 && has_few_outputs(w));
  });
  require(ctx.device() == Device::kCuda && ctx.tape() && meet,
          "linear: bf16 activations need a tape, a GPU and bf16 weights");
  require(type == DType::kF32 || std::none_of(call.biases.begin(), call.biases.end(),
                                              [](const Tensor& bias) { return bias.defined(); }),
          "linear: results in bf16 take no bias");
}

void check_operands(const LinearCall& call) {
  const Tensor& x = call.x;
  // The texts are made only where they are needed: this runs for every product of a decode step.
  if (!x.defined() || (x.dtype() != DType::kF32 && x.dtype() != DType::kBF16) || x.rank() != 2)
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
  DType dx_type;                        // of x as it was given
  std::vector<Tensor> weights, biases;  // those without a gradient may be of any format
  std::vector<std::shared_ptr<Gradient>> outputs;
  std::vector<Shape> shapes;           // of the outputs
  std::shared_ptr<GradientRoom> room;  // of bf16 outputs
  Tensor h;                            // without its values: what the only output was added to, or undefined
};

// x as the gradient keeps it, which needs its values where `needed`, unless they are made again.
Tensor kept(const Tensor& x, bool needed) {
  return needed && !(x.gradient() && x.gradient()->await) ? x : without_values(x);
}

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

// The matrices as one, where each begins where the one before it ends; undefined: they do not.
Tensor joined(std::span<const Tensor> matrices) {
  int64_t rows = 0;
  const auto* end = static_cast<const std::byte*>(matrices[0].raw());
  for (const Tensor& m : matrices) {
    if (!m || m.raw() != end || m.dtype() != matrices[0].dtype()) return {};
    end += m.nbytes();
    rows += m.dim(0);
  }
  return Tensor::view(matrices[0].device(), matrices[0].raw(), matrices[0].dtype(),
                      {rows, matrices[0].dim(1)}, matrices[0].owner());
}

// Where the weights' gradients add up, in their shapes; undefined: in one of them nothing can be added to.
std::vector<Tensor> gradients_to_add_to(const std::vector<Tensor>& weights) {
  std::vector<Tensor> sums;
  for (const Tensor& weight : weights) {
    const Tensor sum = gradient_to_add_to(weight);
    sums.push_back(sum ? sum.reshape(weight.shape()) : Tensor());
  }
  return sums;
}

// All outputs' gradients have arrived in their room: one product gives dx, one all of dW. Returns whether it
// was so.
template <class Backend>
bool joined_gradient(Backend dev, Context& ctx, const GroupNote& note) {
  if (!note.room || !note.room->memory) return false;
  for (const auto& output : note.outputs) {
    const Tensor& value = output->value;
    const auto* place = note.room->memory.columns(output->column, 0).raw();
    if (!value || value.raw() != place) return false;
  }
  const Tensor weight = joined(note.weights);
  const bool trained = wants_gradient(note.weights);
  Tensor dw = trained ? joined(gradients_to_add_to(note.weights)) : Tensor();
  if (!weight || (trained && (!dw || !note.x))) return false;
  for (const auto& output : note.outputs) output->value = {};
  const Tensor dy = dy_factor(dev, ctx, note.room->memory.counted_like(note.x), weight.dtype());
  note.room->memory = {};
  if (dw) linear_dw_kernel(dev, ctx, dy, note.x, weight.dtype(), 1.0f, dw);
  if (!note.x.gradient()) return true;
  Tensor dx = Tensor::empty(ctx, note.dx_type, note.x.shape()).counted_like(note.x);
  linear_dx_kernel(dev, ctx, dy, weight, 0.0f, dx);
  accumulate(ctx, note.x, dx);
  return true;
}

template <class Backend>
void group_gradient(Backend dev, Context& ctx, const GroupNote& note) {
  if (joined_gradient(dev, ctx, note)) return;
  Tensor dx = adds_to_dx(dev) && note.dx_type == DType::kF32 ? gradient_to_add_to(note.x) : Tensor();
  const bool added = dx.defined();
  if (added) dx = dx.reshape(note.x.shape()).counted_like(note.x);
  for (size_t i = 0; i < note.weights.size(); ++i) {
    Gradient& arrived = *note.outputs[i];
    if (!arrived.value) continue;
    const Tensor dy = arrived.value.reshape(note.shapes[i]).counted_like(note.x), &weight = note.weights[i];
    const Tensor rounded = arrived.rounded ? arrived.rounded.reshape(dy.shape()).counted_like(dy) : dy;
    arrived.value = arrived.rounded = {};
    accumulate(ctx, note.h, dy);
    if (!note.biases.empty() && note.biases[i].gradient()) {
      add_gradient(ctx, note.biases[i],
                   [&](float beta, Tensor& db) { linear_db_kernel(dev, ctx, dy, beta, db); });
    }
    if (!note.x.gradient() && !weight.gradient()) continue;
    const Tensor factor = dy_factor(dev, ctx, rounded, weight.dtype());
    if (note.x.gradient()) {
      const float beta = dx ? 1.0f : 0.0f;
      if (!dx) dx = Tensor::empty(ctx, note.dx_type, note.x.shape()).counted_like(note.x);
      linear_dx_kernel(dev, ctx, factor, weight, beta, dx);
    }
    if (!weight.gradient()) continue;
    const auto add_dw = [dev, factor, weight](Context& c, const Tensor& x) {
      add_gradient(c, weight, [&](float beta, Tensor& dw) {
        linear_dw_kernel(dev, c, factor, x, weight.dtype(), beta, dw);
      });
    };
    if (note.x) {
      add_dw(ctx, note.x);
    } else {
      note.x.gradient()->await->push_back(add_dw);
    }
  }
  if (dx && !added) accumulate(ctx, note.x, dx);
}

// x as the weights' products want it: rounded once where all of them round it and it is kept, or read so.
template <class Backend>
Tensor operand(Backend dev, Context& ctx, const LinearCall& call, bool keep) {
  const bool all_bf16 = std::all_of(call.weights.begin(), call.weights.end(),
                                    [](const Tensor& w) { return w.dtype() == DType::kBF16; });
  if (is_bf16(call.x) || !(keep || reads_bf16(dev)) || !all_bf16) return call.x;
  Tensor rounded = Tensor::empty(ctx, DType::kBF16, call.x.shape()).counted_like(call.x);
  round_rows_kernel(dev, call.x, rounded);
  return rounded.with_gradient(call.x.gradient());
}

// The products. all: the matrix whose columns the outputs are; undefined: each is one of its own.
template <class Backend>
void multiply(Backend dev, Context& ctx, const LinearCall& call, const Tensor& x, Tensor& all) {
  if (const Tensor weight = all ? joined(call.weights) : Tensor())
    return linear_gemm_kernel(dev, ctx, x, weight, {}, all);
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const Tensor bias = call.biases.empty() ? Tensor() : call.biases[i];
    const DType type = call.weights[i].dtype();
    if (type == DType::kF32 || type == DType::kBF16)
      linear_gemm_kernel(dev, ctx, x, call.weights[i], bias, call.outputs[i]);
    else  // frozen: as at inference
      linear_kernel(dev, ctx, {call.x, call.weights.subspan(i, 1), {&bias, 1}, call.outputs.subspan(i, 1)});
  }
}

// Where the outputs' gradients will arrive.
void expect_gradients(const LinearCall& call, const Tensor& all, GroupNote& note) {
  if (all) note.room = std::make_shared<GradientRoom>(GradientRoom{all.dtype(), all.shape(), {}});
  int64_t column = 0;
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    Tensor& out = call.outputs[i];
    const bool rounds = !all && is_bf16(call.weights[i]);
    out = out.with_gradient(std::make_shared<Gradient>(Gradient{{}, false, note.room, column, rounds}));
    column += out.dim(1);
    note.outputs.push_back(out.gradient());
    note.shapes.push_back(out.shape());
  }
}

void record(Context& ctx, const LinearCall& call, const Tensor& all, GroupNote&& note) {
  expect_gradients(call, all, note);
  ctx.tape()->record([note = std::move(note)](Context& c) {
    on_device(c, [&](auto device) { group_gradient(device, c, note); });
  });
}

// While a tape is attached, recording or not (what is computed twice must be the same twice).
template <class Backend>
void taped_group(Backend dev, Context& ctx, const LinearCall& call, Tensor& all) {
  GroupNote note{.x = {},
                 .dx_type = call.x.dtype(),
                 .weights = {call.weights.begin(), call.weights.end()},
                 .biases = {call.biases.begin(), call.biases.end()},
                 .outputs = {},
                 .shapes = {},
                 .room = {},
                 .h = {}};
  const bool recording = ctx.tape()->recording(), keep = recording && wants_gradient(note.weights);
  note.x = operand(dev, ctx, call, keep);
  multiply(dev, ctx, call, note.x, all);
  if (!recording || !(call.x.gradient() || keep || wants_gradient(note.biases))) return;
  note.x = kept(keep ? note.x : call.x, keep);
  record(ctx, call, all, std::move(note));
}

// Room for the outputs: f32 each, or the columns of one bf16 matrix, which is returned.
Tensor make_outputs(Context& ctx, const LinearCall& call, DType type) {
  if (type == DType::kF32) {
    for (size_t i = 0; i < call.weights.size(); ++i)
      call.outputs[i] =
          Tensor::empty(ctx, type, {call.x.dim(0), call.weights[i].dim(0)}).counted_like(call.x);
    return {};
  }
  int64_t columns = 0, column = 0;
  for (const Tensor& weight : call.weights) columns += weight.dim(0);
  Tensor all = Tensor::empty(ctx, type, {call.x.dim(0), columns}).counted_like(call.x);
  for (size_t i = 0; i < call.weights.size(); ++i) {
    call.outputs[i] = all.columns(column, call.weights[i].dim(0));
    column += call.weights[i].dim(0);
  }
  return all;
}

}  // namespace

void linear_group(Context& ctx, const Tensor& x, std::span<const Tensor> weights,
                  std::span<const Tensor> biases, std::span<Tensor> outputs, DType type) {
  const LinearCall call{x, weights, biases, outputs};
  check_operands(call);
  if (type != DType::kF32 || x.dtype() != DType::kF32) check_bf16(ctx, call, type);
  Tensor all = make_outputs(ctx, call, type);
  on_device(ctx, [&](auto device) {
    if (ctx.tape()) return taped_group(device, ctx, call, all);
    linear_kernel(device, ctx, call);
  });
}

Tensor add_linear(Context& ctx, const Tensor& h, const Tensor& x, const Tensor& weight) {
  Tensor out = h.is_only_handle() ? detach(h) : Tensor::empty(ctx, DType::kF32, h.shape());
  const LinearCall call{x, {&weight, 1}, {}, {&out, 1}};
  check_operands(call);
  check_bf16(ctx, call, DType::kF32);
  require(is_bf16(x) && !x.row_count(), "add_linear: x must be bf16 with every row there, got {}",
          name_of(x.dtype()));
  expect(h, DType::kF32, {x.dim(0), weight.dim(0)}, "add_linear", "h");
  require(h.is_contiguous(), "add_linear: h must be dense");
  if constexpr (kHasCuda) add_linear_kernel(ctx.cuda(), h, x, weight, out);
  if (!differentiable(ctx, {&h, &x, &weight})) return out;
  record(ctx, call, {},
         {.x = kept(x, weight.gradient() != nullptr),
          .dx_type = x.dtype(),
          .weights = {weight},
          .biases = {},
          .outputs = {},
          .shapes = {},
          .room = {},
          .h = without_values(h)});
  return out;
}

Tensor linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  Tensor out;
  linear_group(ctx, x, {&weight, 1}, {&bias, 1}, {&out, 1});
  return out;
}

}  // namespace fathom
