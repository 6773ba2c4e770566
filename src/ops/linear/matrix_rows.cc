#include "ops/linear/matrix_rows.h"

#include <algorithm>

#include "base/format.h"
#include "base/mapped_file.h"
#include "quant/formats.h"
#include "quant/fours.h"
#include "tensor/memory.h"

namespace fathom {
namespace {

using Rearrange = void (*)(DType dtype, const uint8_t* from, int64_t k, uint8_t* to);

// A strip at a time: of a mapped file, no more than that counts as memory beside the copy.
Tensor rearranged(Context& ctx, const Tensor& matrix, Layout layout, Rearrange rearrange) {
  constexpr int64_t kStripBytes = 8 << 20;
  Tensor out = Tensor::owned(Device::kCpu, matrix.dtype(), matrix.shape()).with_layout(layout);
  expect_to_fill(out.raw(), static_cast<size_t>(out.nbytes()));
  const int64_t k = matrix.dim(1), four = 4 * row_bytes(matrix.dtype(), k), fours = matrix.dim(0) / 4,
                strip = std::max<int64_t>(kStripBytes / std::max<int64_t>(four, 1), 1);
  const auto* from = matrix.data<uint8_t>();
  for (int64_t first = 0; first < fours; first += strip) {
    const int64_t count = std::min(strip, fours - first);
    ctx.pool().parallel_for(count, 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = first + begin; i < first + end; ++i)
        rearrange(matrix.dtype(), from + i * four, k, out.data<uint8_t>() + i * four);
    });
    MappedFile::forget({matrix.data<std::byte>() + first * four, static_cast<size_t>(count * four)});
  }
  return out;
}

}  // namespace

void decode_matrix_row(const Tensor& matrix, int64_t row, float* out) {
  const int64_t k = matrix.dim(1), bytes = row_bytes(matrix.dtype(), k);
  const auto* data = matrix.data<uint8_t>();
  if (matrix.layout() == Layout::kRows) return decode_row(matrix.dtype(), data + row * bytes, out, k);
  decode_row_of_fours(matrix.dtype(), data + row / 4 * 4 * bytes, static_cast<int>(row % 4), out, k);
}

Tensor in_fours(Context& ctx, const Tensor& matrix) {
  if (matrix.layout() == Layout::kFours) return matrix;
  if (matrix.rank() != 2 || matrix.dim(0) % 4 != 0 || matrix.dim(1) == 0 || !has_fours(matrix.dtype()))
    fail("in_fours: {} {} has no such layout", name_of(matrix.dtype()), to_string(matrix.shape()));
  return rearranged(ctx, matrix, Layout::kFours, rows_to_fours);
}

Tensor in_rows(Context& ctx, const Tensor& matrix) {
  if (matrix.layout() == Layout::kRows) return matrix;
  return rearranged(ctx, matrix, Layout::kRows, fours_to_rows);
}

}  // namespace fathom
