// AdamW (Loshchilov & Hutter 2019): Adam with the weights' decay apart from the gradient.
#pragma once

#include <span>

#include "tensor/tensor.h"

namespace fathom {

// Elements that share a rate.
struct AdamWSegment {
  int64_t begin = 0, end = 0;  // begin: a multiple of 4
  float rate = 0;              // the learning rate over the bias correction of the mean
  float keep = 1;              // what the decay leaves of a value
};

struct AdamWParams {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float root = 1;             // 1 / the root of the bias correction of the square
  float gradient_factor = 1;  // multiplies every gradient: what clipping leaves of it
};

// f32 (elements) each, dense.
struct AdamWBuffers {
  Tensor value, gradient, mean, square;
};

// One step of the segments' elements: value, mean and square move. Other elements stay as they are.
void adamw(Context& ctx, AdamWBuffers& buffers, std::span<const AdamWSegment> segments,
           const AdamWParams& params);

}  // namespace fathom
