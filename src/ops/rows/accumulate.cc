#include "ops/rows/accumulate.h"

#include <algorithm>

#include "base/format.h"

namespace fathom {

// out = a + b; out may be a.
void accumulate_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, Tensor& out);
void accumulate_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, Tensor& out);

void accumulate(Context& ctx, const Tensor& x, const Tensor& d) {
  if (!x.gradient()) return;
  Gradient& gradient = *x.gradient();
  gradient.rounded = {};
  const bool bf16 = d.dtype() == DType::kBF16 && x.dtype() == DType::kBF16;
  if (!(d.dtype() == DType::kF32 || bf16) || d.numel() != x.numel() || !(d.is_contiguous() || gradient.room))
    fail(
        "accumulate: the gradient of {} {} must be dense f32 (or bf16 as it is) of as many elements, got {} "
        "{}",
        name_of(x.dtype()), to_string(x.shape()), name_of(d.dtype()), to_string(d.shape()));
  if (!gradient.value) {
    gradient.value = d;
    gradient.own = false;
    return;
  }
  if (d.dtype() != gradient.value.dtype() || !d.is_contiguous() || !gradient.value.is_contiguous())
    fail("accumulate: {} {} cannot be added to {} {}", name_of(d.dtype()), to_string(d.shape()),
         name_of(gradient.value.dtype()), to_string(gradient.value.shape()));
  // The first that arrived may be another tensor's too (both operands of a sum get the same one).
  Tensor sum = gradient_to_add_to(x)
                   ? gradient.value
                   : Tensor::empty(ctx, d.dtype(), gradient.value.shape()).counted_like(gradient.value);
  on_device(ctx, [&](auto dev) { accumulate_kernel(dev, gradient.value, d.reshape(sum.shape()), sum); });
  gradient.value = sum;
  gradient.own = true;
}

Tensor gradient_to_add_to(const Tensor& x) {
  if (!x.gradient()) return {};
  Gradient& gradient = *x.gradient();
  gradient.rounded = {};
  const bool addable = gradient.own || (gradient.value.is_only_handle() && gradient.value.is_contiguous());
  return addable ? gradient.value : Tensor();
}

std::vector<Tensor> recompute(Context& ctx, std::function<std::vector<Tensor>()> fn) {
  if (!ctx.tape() || !ctx.tape()->recording()) return fn();
  std::vector<Tensor> outputs;
  {
    const RecordingScope quiet(ctx, false);
    outputs = fn();
  }
  std::vector<std::shared_ptr<Gradient>> gradients;
  for (Tensor& out : outputs) {
    gradients.push_back(std::make_shared<Gradient>());
    if (out) out = out.with_gradient(gradients.back());
  }
  ctx.tape()->record([fn = std::move(fn), gradients](Context& c) {
    const auto arrived = [](const auto& gradient) { return gradient->value.defined(); };
    if (std::none_of(gradients.begin(), gradients.end(), arrived)) return;
    std::vector<Tensor> again;
    {
      const RecordingScope loud(c, true);
      again = fn();  // its notes are now the newest: backward() goes on with them
    }
    for (size_t i = 0; i < again.size(); ++i) {
      if (gradients[i]->value) accumulate(c, again[i], gradients[i]->value);
      gradients[i]->value = {};
    }
  });
  return outputs;
}

}  // namespace fathom
