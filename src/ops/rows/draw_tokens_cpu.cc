#include <algorithm>
#include <array>
#include <cmath>

#include "base/isa.h"
#include "ops/kernels/row_access.h"
#include "ops/rows/draw_tokens.h"

namespace fathom {
namespace {

// What the tokens of a piece weigh against the most likely one.
std::span<const float> weigh(const RowKernels& kernels, std::span<const float> logits, size_t piece,
                             float temperature, float largest, std::vector<float>& weights) {
  const size_t first = piece * kDrawPiece;
  const auto part = logits.subspan(first, std::min<size_t>(kDrawPiece, logits.size() - first));
  weights.resize(kDrawPiece);
  const float* scaled = part.data();
  if (temperature != 1) {
    std::transform(part.begin(), part.end(), weights.begin(), [&](float x) { return x / temperature; });
    scaled = weights.data();
  }
  kernels.exp_less(scaled, largest / temperature, weights.data(), std::ssize(part));
  return std::span(weights).first(part.size());
}

}  // namespace

int32_t draw_token(const RowKernels& kernels, std::span<const float> logits, float temperature, double at,
                   DrawRoom& room) {
  const float largest = kernels.max(logits.data(), std::ssize(logits));
  const size_t pieces = (logits.size() + kDrawPiece - 1) / kDrawPiece;
  double total = 0;
  room.sums.resize(pieces);
  for (size_t piece = 0; piece < pieces; ++piece) {
    const auto weights = weigh(kernels, logits, piece, temperature, largest, room.weights);
    std::array<double, 4> sum = {};  // four chains: one would wait for each addition
    for (size_t i = 0; i < weights.size(); ++i) sum[i % 4] += static_cast<double>(weights[i]);
    room.sums[piece] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    total += room.sums[piece];
  }
  if (!std::isfinite(total)) return -1;
  double left = at * total;
  size_t piece = 0;
  while (piece + 1 < pieces && left >= room.sums[piece]) left -= room.sums[piece++];
  int32_t last = -1;  // where rounding leaves nothing for the end
  const auto weights = weigh(kernels, logits, piece, temperature, largest, room.weights);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    last = static_cast<int32_t>(piece * kDrawPiece + i);
    left -= static_cast<double>(weights[i]);
    if (left < 0) break;
  }
  return last;
}

void draw_tokens_kernel(CpuBackend dev, const Tensor& logits, const Tensor& rows, const Tensor& how,
                        Tensor& out) {
  const RowKernels& kernels = row_kernels(choose_isa());
  const auto vocab = static_cast<size_t>(logits.dim(1));
  dev.pool.parallel_for(rows.dim(0), 1, [&](int64_t begin, int64_t end) {
    DrawRoom room;
    for (int64_t i = begin; i < end; ++i) {
      const float* row = logits.data<float>() + rows.data<int32_t>()[i] * logits.stride(0);
      const float* number = how.data<float>() + 3 * i;
      out.data<int32_t>()[i] =
          draw_token(kernels, {row, vocab}, number[0], double{number[1]} + double{number[2]}, room);
    }
  });
}

}  // namespace fathom
