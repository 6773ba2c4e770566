#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tensor/arena.h"
#include "tensor/rows.h"

// The sanitizers' allocators end the process instead of returning null.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FATHOM_ALLOCATOR_ABORTS
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FATHOM_ALLOCATOR_ABORTS
#endif

namespace fathom {
namespace {

Tensor counting(Context& ctx, Shape shape) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0.0f);
  return Tensor::from(ctx, values, shape);
}

template <class Fn>
std::string message(Fn fn) {
  try {
    fn();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Shape, Basics) {
  const Shape shape{5, 64};
  EXPECT_EQ(to_string(shape), "(5, 64)");
  EXPECT_EQ(to_string(Shape{}), "()");
  EXPECT_EQ(shape.numel(), 320);
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ(shape[-1], 64);
  EXPECT_EQ(shape.last(), 64);
  EXPECT_TRUE(shape == (Shape{5, 64}));
  EXPECT_FALSE(shape == (Shape{5, 64, 1}));
  EXPECT_FALSE(shape == (Shape{5, 63}));
}

TEST(Tensor, UndefinedUntilMade) {
  const Tensor tensor;
  EXPECT_FALSE(tensor.defined());
  EXPECT_FALSE(tensor);
  EXPECT_EQ(message([&] { expect(tensor, DType::kF32, {3}, "op", "x"); }),
            "op: x must be f32 (3), got nothing");
}

TEST(Tensor, OwnedMemoryIsZeroedAndAligned) {
  const Tensor tensor = Tensor::owned(Device::kCpu, DType::kF32, {3, 5});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw()) % 64, 0u);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(tensor.data<float>()[i], 0.0f);
  EXPECT_EQ(tensor.nbytes(), 60);
  EXPECT_TRUE(Tensor::owned(Device::kCpu, DType::kF32, {0, 5}).defined());
}

TEST(Tensor, AViewKeepsItsOwner) {
  auto memory = std::make_shared<std::vector<float>>(4, 2.0f);
  const std::weak_ptr<std::vector<float>> watched = memory;
  Tensor tensor = Tensor::view(Device::kCpu, memory->data(), DType::kF32, {4}, memory);
  memory.reset();
  const Tensor part = tensor.rows(1, 2);
  tensor = {};
  EXPECT_FALSE(watched.expired());
  EXPECT_EQ(part.data<float>()[0], 2.0f);
}

TEST(Tensor, RowsAreAView) {
  Context ctx({.threads = 1});
  const Tensor tensor = counting(ctx, {4, 3});
  const Tensor part = tensor.rows(1, 2);
  EXPECT_EQ(part.shape(), (Shape{2, 3}));
  EXPECT_EQ(part.data<float>(), tensor.data<float>() + 3);
  EXPECT_TRUE(part.is_contiguous());
  EXPECT_EQ(counting(ctx, {5}).rows(2, 1).data<float>()[0], 2.0f);
  EXPECT_EQ(counting(ctx, {2, 3, 4}).rows(1, 1).data<float>()[0], 12.0f);
  EXPECT_EQ(tensor.rows(4, 0).dim(0), 0);
  EXPECT_EQ(message([&] { tensor.rows(3, 2); }), "rows: [3, 5) of (4, 3)");
  EXPECT_NE(message([&] { tensor.rows(-1, 1); }), "no error");
}

TEST(Tensor, RowsOfABlockFormat) {
  const Tensor tensor = Tensor::owned(Device::kCpu, DType::kQ8_0, {4, 64});
  EXPECT_EQ(tensor.nbytes(), 4 * 2 * 34);
  EXPECT_EQ(tensor.rows(2, 1).data<std::byte>(), tensor.data<std::byte>() + 2 * 68);
  EXPECT_NE(message([&] { tensor.columns(0, 32); }), "no error");
  EXPECT_NE(message([] { Tensor::owned(Device::kCpu, DType::kQ8_0, {4, 65}); }), "no error");
}

TEST(Tensor, FoursStayWhole) {
  Context ctx({.threads = 1});
  const Tensor tensor = Tensor::owned(Device::kCpu, DType::kQ8_0, {8, 64}).with_layout(Layout::kFours);
  EXPECT_EQ(tensor.rows(4, 4).layout(), Layout::kFours);
  EXPECT_EQ(tensor.rows(4, 4).data<std::byte>(), tensor.data<std::byte>() + 4 * 68);
  EXPECT_EQ(message([&] { tensor.rows(2, 4); }), "rows: [2, 6) of (8, 64) is not whole fours");
  EXPECT_EQ(message([&] { tensor.rows(4, 2); }), "rows: [4, 6) of (8, 64) is not whole fours");
  EXPECT_NE(message([&] { tensor.reshape({2, 4, 64}); }), "no error");
  EXPECT_EQ(message([&] { tensor.to(ctx, Device::kCuda); }),
            "to: (8, 64) is in fours, which only the CPU multiplies");
}

TEST(Tensor, ColumnsAreStrided) {
  Context ctx({.threads = 1});
  const Tensor tensor = counting(ctx, {4, 10});
  const Tensor part = tensor.columns(6, 3);
  EXPECT_EQ(part.shape(), (Shape{4, 3}));
  EXPECT_EQ(part.stride(0), 10);
  EXPECT_FALSE(part.is_contiguous());
  EXPECT_EQ(part.rows(2, 1).data<float>()[1], 27.0f);
  EXPECT_NE(message([&] { part.reshape({12}); }), "no error");
  EXPECT_NE(message([&] { tensor.columns(8, 3); }), "no error");
}

TEST(Tensor, Reshape) {
  Context ctx({.threads = 1});
  const Tensor tensor = counting(ctx, {4, 6});
  const Tensor cube = tensor.reshape({4, 2, 3});
  EXPECT_EQ(cube.stride(0), 6);
  EXPECT_EQ(cube.stride(1), 3);
  EXPECT_EQ(cube.raw(), tensor.raw());
  EXPECT_EQ(message([&] { tensor.reshape({5, 5}); }), "reshape: f32 (4, 6) cannot become (5, 5)");
  const Tensor blocks = Tensor::owned(Device::kCpu, DType::kQ4_0, {4, 64});
  EXPECT_EQ(blocks.reshape({2, 2, 64}).dim(0), 2);
  EXPECT_NE(message([&] { blocks.reshape({8, 32}); }), "no error");
}

TEST(Tensor, ToTheHostAndBack) {
  Context ctx({.threads = 1});
  const std::vector<int32_t> ids{3, 1, 2};
  const Tensor tensor = Tensor::from(ctx, ids, {3});
  std::vector<int32_t> back(3);
  copy_to_host(ctx, tensor, back);
  EXPECT_EQ(back, ids);
  std::vector<float> floats(3);
  EXPECT_EQ(message([&] { copy_to_host(ctx, tensor, floats); }),
            "copy_to_host: expected 3 values of f32, got i32 (3)");
  EXPECT_NE(message([&] { Tensor::from(ctx, ids, {4}); }), "no error");
  EXPECT_EQ(tensor.to(ctx, Device::kCpu).raw(), tensor.raw());
}

TEST(Tensor, ExpectNamesTheOpTheExpectationAndTheFact) {
  Context ctx({.threads = 1});
  const Tensor tensor = counting(ctx, {4, 6});
  expect(tensor, DType::kF32, {4, 6}, "linear", "x");
  EXPECT_EQ(message([&] {
              expect(tensor, DType::kF32, {6, 4}, "linear", "weight");
            }),
            "linear: weight must be f32 (6, 4), got f32 (4, 6)");
  EXPECT_EQ(message([&] {
              expect(tensor, DType::kBF16, {4, 6}, "linear", "weight");
            }),
            "linear: weight must be bf16 (4, 6), got f32 (4, 6)");
}

#if !defined(FATHOM_ALLOCATOR_ABORTS)
TEST(Tensor, TooMuchMemoryIsAnError) {
  EXPECT_EQ(message([] { Tensor::owned(Device::kCpu, DType::kU8, {int64_t{1} << 62}); }),
            "out of memory: 4611686018427387904 bytes wanted");
}
#endif

TEST(RowSet, KindsAndCapacity) {
  Context ctx({.threads = 1});
  EXPECT_TRUE(RowSet::all(5).is_all());
  EXPECT_EQ(RowSet::all(5).capacity(), 5);
  EXPECT_TRUE(RowSet::none(5).is_none());
  const std::vector<int32_t> ids{0, 2, 0}, count{2};
  const RowSet some = RowSet::some(Tensor::from(ctx, ids, {3}), Tensor::from(ctx, count, {1}));
  EXPECT_FALSE(some.is_all() || some.is_none());
  EXPECT_EQ(some.capacity(), 3);
  EXPECT_TRUE(some.ids().defined() && some.count().defined());
}

TEST(Context, NoCudaWithoutABuildForIt) {
  if constexpr (!kHasCuda) {
    EXPECT_NE(message([] { Context ctx({.device = Device::kCuda}); }).find("no CUDA backend"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace fathom
