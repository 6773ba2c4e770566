// Adafactor (Shazeer & Stern 2018) at a given rate: the second moments of a matrix are the product of a row
// and a column of means, so its state is rows + columns numbers; the update of a tensor is clipped by its
// root mean square, and the rate is relative to the tensor's own (at least 1e-3), as the paper's algorithm 5
// has it.
#pragma once

#include "tensor/tensor.h"

namespace fathom {

struct AdafactorParams {
  double rate = 0;            // the learning rate
  double decay = 0;           // of the values, decoupled
  float beta1 = 0;            // decay of the mean update
  float beta2 = 0.99f;        // decay of the mean squares
  float eps = 1e-30f;         // added to every square
  float update_clip = 1;      // the largest root mean square of an update
  bool scale_by_size = true;  // the rate is relative to the root mean square of the values
  float gradient_factor = 1;  // multiplies every gradient: what clipping leaves of it
};

// How many second moments a tensor has: rows + columns of a matrix (of more dimensions: the last one's, and
// the others' together), else one for each element.
int64_t adafactor_moments(const Shape& shape);

// One step: value, moments and mean move. value, gradient: f32, of one shape, dense. moments: f32
// (adafactor_moments). mean: f32 (elements), or undefined where beta1 is 0.
void adafactor(Context& ctx, Tensor& value, const Tensor& gradient, Tensor& moments, Tensor& mean,
               const AdafactorParams& params);

}  // namespace fathom
