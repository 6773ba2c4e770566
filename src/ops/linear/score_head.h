// A score between 0 and 1 for each row, and the gradients of cost · Σ score to the weight and the bias that
// make it.
#pragma once

#include "tensor/tensor.h"

namespace fathom {

struct ScoreHead {
  Tensor score;                   // f32 (rows): σ(x · weight + bias)
  Tensor weight_pull, bias_pull;  // f32 (1, d), (1): the gradients of cost · Σ score over the rows
};

// x: f32 (rows, d), or as linear() takes it; weight: f32 (1, d), bias: f32 (1). No gradient goes to x. On a
// GPU while a tape records, the pulls are made with the gradient of the score, in one pass over x: they are
// there once the tape has gone back.
ScoreHead score_head(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias, float cost);

}  // namespace fathom
