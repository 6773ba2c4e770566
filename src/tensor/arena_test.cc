#include "tensor/arena.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support/heap_allocations.h"
#include "tensor/tensor.h"

namespace fathom {
namespace {

TEST(Arena, AlignedAndApart) {
  Arena arena(Device::kCpu);
  auto* a = static_cast<std::byte*>(arena.allocate(1));
  auto* b = static_cast<std::byte*>(arena.allocate(65));
  auto* c = static_cast<std::byte*>(arena.allocate(0));
  auto* d = static_cast<std::byte*>(arena.allocate(10));
  for (const std::byte* p : {a, b, c, d}) EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
  EXPECT_GE(b - a, 1);
  EXPECT_GE(c - b, 65);
  EXPECT_NE(c, d);
}

TEST(Arena, AScopeGivesBack) {
  Context ctx({.threads = 1});
  const void* first;
  {
    const ArenaScope scope(ctx);
    first = ctx.arena().allocate(1000);
    {
      const ArenaScope inner(ctx);
      ctx.arena().allocate(1000);
    }
    ctx.arena().allocate(10);
  }
  const ArenaScope scope(ctx);
  EXPECT_EQ(ctx.arena().allocate(1000), first);
}

TEST(Arena, GrowsWithoutMovingWhatIsThere) {
  Context ctx({.threads = 1});
  const Tensor small = Tensor::empty(ctx, DType::kU8, {100});
  std::memset(const_cast<void*>(small.raw()), 7, 100);
  const Tensor large = Tensor::empty(ctx, DType::kU8, {5 << 20});  // more than the first chunk
  std::memset(const_cast<void*>(large.raw()), 9, 5 << 20);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(small.data<uint8_t>()[i], 7);
}

void step(Context& ctx, int64_t rows) {
  const ArenaScope scope(ctx);
  for (int layer = 0; layer < 30; ++layer) {
    const ArenaScope inner(ctx);
    Tensor x = Tensor::empty(ctx, DType::kF32, {rows, 576});
    x.data<float>()[0] = 1;
    x.reshape({rows, 9, 64}).rows(0, 1).data<float>();
    Tensor::empty(ctx, DType::kF32, {rows, 1536});
  }
  Tensor::empty(ctx, DType::kF32, {rows, 49152});
}

TEST(Arena, ASteadyStepAllocatesNothing) {
  Context ctx({.threads = 2});
  step(ctx, 64);
  step(ctx, 1);
  const size_t capacity = ctx.arena().capacity(), before = heap_allocations();
  for (int i = 0; i < 100; ++i) step(ctx, 1 + i % 64);
  EXPECT_EQ(ctx.arena().capacity(), capacity);
  EXPECT_EQ(heap_allocations(), before);
}

}  // namespace
}  // namespace fathom
