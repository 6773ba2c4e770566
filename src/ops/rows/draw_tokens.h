// Tokens drawn from softmax(logits / temperature), where all of a vocabulary may come.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/kernels/row_kernels.h"
#include "tensor/tensor.h"

namespace fathom {

// Probabilities add up in f64, over pieces of this many tokens: the sums say in which piece a token lies, and
// no list of candidates is made.
inline constexpr int64_t kDrawPiece = 512;
inline constexpr int64_t kMostDrawn = 6144 * kDrawPiece;  // tokens: the sums lie in a GPU's shared memory

struct TokenDraw {
  int32_t row;
  float temperature;  // above 0
  double at;          // in [0, 1): where in the sum of the probabilities
};

// logits: f32 (rows, vocab). Returns a token for each draw, which depends on its row alone; −1 where a logit
// is NaN or +∞, or none is above −∞.
std::vector<int32_t> draw_tokens(Context& ctx, const Tensor& logits, std::span<const TokenDraw> draws);

// One draw on the host; `room` keeps its memory for the next.
struct DrawRoom {
  std::vector<float> weights;  // of a piece
  std::vector<double> sums;    // of each piece
};
int32_t draw_token(const RowKernels& kernels, std::span<const float> logits, float temperature, double at,
                   DrawRoom& room);

}  // namespace fathom
