#include "ops/rows/draw_tokens.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"

namespace fathom {

// rows: i32 (draws); how: f32 (draws, 3), the temperature and the two halves of `at`; out: i32 (draws).
void draw_tokens_kernel(CpuBackend dev, const Tensor& logits, const Tensor& rows, const Tensor& how,
                        Tensor& out);
void draw_tokens_kernel(CudaBackend dev, const Tensor& logits, const Tensor& rows, const Tensor& how,
                        Tensor& out);

std::vector<int32_t> draw_tokens(Context& ctx, const Tensor& logits, std::span<const TokenDraw> draws) {
  if (draws.empty()) return {};
  expect_rows(logits, "draw_tokens", "logits");
  if (logits.rank() != 2 || logits.dim(1) < 1)
    fail("draw_tokens: logits must be f32 (rows, vocab), got {}", to_string(logits.shape()));
  if (logits.dim(1) > kMostDrawn)
    fail("draw_tokens: a vocabulary may have up to {} tokens, got {}", kMostDrawn, logits.dim(1));
  std::vector<int32_t> tokens(draws.size());
  std::vector<int32_t> rows;
  std::vector<float> how;
  for (const TokenDraw& draw : draws) {
    if (draw.row < 0 || draw.row >= logits.dim(0))
      fail("draw_tokens: row {} is not one of {}", draw.row, logits.dim(0));
    const auto high = static_cast<float>(draw.at);
    rows.push_back(draw.row);
    how.insert(how.end(), {draw.temperature, high, static_cast<float>(draw.at - double{high})});
  }
  const auto count = static_cast<int64_t>(draws.size());
  const Tensor there = Tensor::from(ctx, rows, {count}), numbers = Tensor::from(ctx, how, {count, 3});
  Tensor out = Tensor::empty(ctx, DType::kI32, {count});
  on_device(ctx, [&](auto dev) { draw_tokens_kernel(dev, logits, there, numbers, out); });
  copy_to_host(ctx, out, tokens);
  return tokens;
}

}  // namespace fathom
