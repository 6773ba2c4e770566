// A steady decode step makes no heap allocation: every op of a block, over and over, with operator new
// counted.
#include <gtest/gtest.h>

#include "ops/attention/append_kv.h"
#include "ops/attention/attention.h"
#include "ops/attention/rope.h"
#include "ops/linear/embed.h"
#include "ops/loss/token_log_probs.h"
#include "ops/rows/add_rows.h"
#include "ops/rows/gated_activation.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/rms_norm.h"
#include "ops/rows/soft_cap.h"
#include "support/heap_allocations.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int64_t kPassRows = 3, kPassHeads = 6, kPassFewHeads = 2, kPassDim = 32,
                  kPassWidth = kPassHeads * kPassDim, kPassVocab = 500;
constexpr int64_t kLongCapacity = 4096, kLongPage = 64;

Tensor floats(Shape shape) {
  Tensor tensor = Tensor::owned(Device::kCpu, DType::kF32, shape);
  for (int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data<float>()[i] = static_cast<float>(i % 17) * 0.1f - 0.8f;
  return tensor;
}

Tensor ints(Shape shape) {
  return Tensor::owned(Device::kCpu, DType::kI32, shape);
}

struct Model {
  Tensor table = floats({kPassVocab, kPassWidth}), weight = floats({kPassWidth}),
         frequency = floats({kPassDim / 2});
  Tensor ids = ints({kPassRows}), positions = ints({kPassRows}), sequence = ints({kPassRows}),
         kept_ids = ints({kPassRows}), count = ints({1});
  KvPages pages{ints({kPassRows, kLongCapacity / kLongPage}), ints({kPassRows}), kLongPage};
  KvView kv;

  Model() {
    kv.k = Tensor::owned(Device::kCpu, DType::kF16, {kPassRows * kLongCapacity, kPassFewHeads, kPassDim});
    kv.v = Tensor::owned(Device::kCpu, DType::kF16, {kPassRows * kLongCapacity, kPassFewHeads, kPassDim});
    kv.entries = ints({kPassRows, kLongCapacity});
    kv.positions = ints({kPassRows, kLongCapacity});
    kv.lengths = ints({kPassRows});
    count.data<int32_t>()[0] = 2;
    kept_ids.data<int32_t>()[1] = 2;
    for (int32_t i = 0; i < kPassRows; ++i) sequence.data<int32_t>()[i] = i;
    for (int32_t i = 0; i < pages.table.numel(); ++i) pages.table.data<int32_t>()[i] = i;
  }

  void step(Context& ctx, int32_t position) {
    const ArenaScope scope(ctx);
    for (int32_t i = 0; i < kPassRows; ++i) positions.data<int32_t>()[i] = position;
    const RowSet all = RowSet::all(kPassRows), some = RowSet::some(kept_ids, count);
    Tensor h = embed(ctx, ids, table);
    const Tensor x = rms_norm(ctx, h, weight);
    const Tensor q = rope(ctx, x.reshape({kPassRows, kPassHeads, kPassDim}), positions, frequency);
    const Tensor k = rope(ctx, floats_of(ctx, {kPassRows, kPassFewHeads, kPassDim}), positions, frequency,
                          {RopeStyle::kPairs});
    append_kv(ctx, kv, pages, k, k, all, positions, sequence);
    h = add_rows(ctx, h, all,
                 attention(ctx, q, kv, all, positions, sequence, {.scale = 0.2f, .soft_cap = 20.0f}));
    const Tensor kept = gather_rows(ctx, h, some);
    h = add_rows(ctx, h, some, gated_activation(ctx, kept, kept, Activation::kGeluTanh));
    token_log_probs(ctx, soft_cap(ctx, h, 30.0f), ids);
  }

  static Tensor floats_of(Context& ctx, Shape shape) {
    Tensor tensor = Tensor::empty(ctx, DType::kF32, shape);
    for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] = 0.5f;
    return tensor;
  }
};

TEST(Allocation, ASteadyDecodeStepMakesNone) {
  for (const int threads : {1, 3}) {
    Context ctx({.threads = threads});
    Model model;
    int32_t position = 0;
    for (; position < 300; ++position) model.step(ctx, position);  // the arena finds out what it needs
    const size_t capacity = ctx.arena().capacity(), before = heap_allocations();
    for (; position < 400; ++position) model.step(ctx, position);
    EXPECT_EQ(heap_allocations(), before);
    EXPECT_EQ(ctx.arena().capacity(), capacity);
  }
}

}  // namespace
}  // namespace fathom
